"""What views cost and how fast they draw: pools of 20,000, 200,000 and 1,000,000 blocks with all views open.

Seed 0 looks at the size of what is sent. The others belong to `make prove` only: a flood of 20,000 steps in one cell of
a real kernel, microseconds a step there with a page attached, and steps a second that chromium draws.
"""

import asyncio
import gc
from typing import Any

from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.messages import Message
from nvexplore.notebook.still_frames import compact, size_of
from nvexplore.sampling_params import SamplingParams
from tests.comms import recorded_comms
from tests.fakes import toy_engine
from tests.prove import Figures, Proof, combine, least

POOLS = (20_000, 200_000, 1_000_000)
FLOOD = 20_000
RUNNING = 8
MOST_US = {20_000: 250.0, 200_000: 250.0, 1_000_000: 500.0}  # a step, at 8 sequences
LEAST_DRAWS = 30  # a second
MOST_LAG_S = 2.0


def sizes() -> Figures:
    """A frame of a pool that is mostly free is small however large the pool is, and a delta always."""
    found: dict[str, int] = {}
    for num_blocks in POOLS:
        with recorded_comms():
            explorer = Explorer(frame_s=1e9)
        sent: list[Message] = []
        explorer._feed._send = sent.append
        engine = toy_engine(num_blocks, 16, max_num_batched_tokens=2048, max_num_seqs=64)
        with engine.subscribe(explorer.push):
            explorer._feed.start()
            for i in range(40):
                engine.add_request([i % 7] * (400 + i), SamplingParams(max_tokens=30, ignore_eos=True))
            while engine.has_unfinished:
                engine.step()
                explorer.flush()
            explorer.keyframe()
        *deltas, frame = sent[1:]
        assert frame["full"] and not any(delta["full"] for delta in deltas)
        found[f"max_frame_bytes_at_{num_blocks}"] = frame_bytes = size_of(compact(frame))
        found["max_delta_bytes"] = delta_bytes = max(map(size_of, deltas))
        assert frame_bytes < 250_000 and delta_bytes < 60_000, found
        gc.collect()
    return found


def flooded() -> Figures:
    """The last step is shown, the cell ends, and nothing was lost."""
    from tests.kernel_flood import flood

    told = asyncio.run(flood(FLOOD))
    for run in told:
        assert run["shown"] == run["next_step"] and run["is_frame_last"] and run["gaps"] == 0, run
        assert run["max_lag"] < MOST_LAG_S and run["most_in_a_second"] <= 30, run
    return {
        "max_us_a_step_in_a_flood": round(max(run["seconds"] for run in told) / FLOOD * 1e6, 1),
        "max_seconds_until_idle": round(max(run["idle_after"] for run in told), 2),
        "max_messages_of_a_flood": max(sum(run["messages"].values()) for run in told),
    }


def cost(num_blocks: int) -> Figures:
    from tests.kernel_cost import kernel_cost

    plain: list[float] = []

    def of_the_views() -> float:
        told = asyncio.run(kernel_cost(num_blocks, running=RUNNING))
        assert told["shown"] == told["next_step"], told
        plain.append(told["us_a_step"])
        return float(told["us_of_the_views"])

    return {
        f"max_us_of_the_views_at_{num_blocks}": round(least(of_the_views, MOST_US[num_blocks]), 1),
        f"max_us_of_the_step_itself_at_{num_blocks}": round(plain[-1], 1),
    }


def draws(num_blocks: int) -> Figures:
    from tests.browser.frame_rate import frame_rates

    told: dict[str, Any] = frame_rates((num_blocks,), enough=LEAST_DRAWS)[num_blocks]
    assert told["most"] >= LEAST_DRAWS, f"{told['most']:.1f} draws a second at {num_blocks} blocks"
    return {
        f"min_draws_a_second_at_{num_blocks}": round(told["draws_a_second"], 1),
        f"min_draws_a_second_at_most_at_{num_blocks}": round(told["most"], 1),
    }


CASES = [sizes, flooded, *((lambda n=n: cost(n)) for n in POOLS), *((lambda n=n: draws(n)) for n in POOLS)]


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    return combine(CASES[seed]() for seed in seeds)


PROOF = Proof("view_speed", "What views cost, and how fast they draw", len(CASES), 1, run_chunk, chunk=1)
