"""Ctrl-C anywhere: the step is undone, the next one goes on, no token is lost or repeated, the records still fold."""

import random
import sys
from types import FrameType
from typing import Any

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, check_logprobs, toy_engine, unconstrained
from tests.prove import Figures, Proof, combine
from tests.workloads import make_workload, run_workload

SCENARIO = [
    ([1, 2, 3, 4, 5, 6, 7, 9], SamplingParams(max_tokens=5, prompt_logprobs=1)),
    ([1, 2, 3, 4, 5, 6, 7, 8, 8], SamplingParams(max_tokens=4)),
    ([5, 5], SamplingParams(max_tokens=9, logprobs=1)),
    ([1, 2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=3)),
]
LONGEST = 1_400  # calls and returns in the longest step of the scenario (1,338), rounded up
STRIDE = 37  # has no factor in common with LONGEST: the first few seeds are spread over the whole step


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th call or return (Python's and C's) inside the engine."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.place = ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if "/nvexplore/engine/" not in frame.f_code.co_filename.replace("\\", "/"):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            self.place = f"{event} in {frame.f_code.co_name}, line {frame.f_lineno}"
            raise KeyboardInterrupt


def scenario(items: list[Snapshot | StepRecord]) -> tuple[Engine, list[Any]]:
    """Chunks, a prefix hit, evictions and preemptions in 13 steps."""
    engine = toy_engine(9, 2, max_num_batched_tokens=7, max_num_seqs=4)
    engine.subscribe(items.append)
    return engine, [engine.add_request(prompt, params) for prompt, params in SCENARIO]


def interrupt_once(step: int, nth: int) -> bool:
    """Interrupt step ``step`` at its ``nth`` boundary; False if it has fewer."""
    items: list[Snapshot | StepRecord] = []
    engine, seqs = scenario(items)
    for _ in range(step):
        engine.step()
    injector = InterruptAt(nth)
    sys.setprofile(injector)
    try:
        engine.step()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    engine.snapshot()  # any call makes the engine whole again
    check_invariants(engine)
    while engine.has_unfinished:
        engine.step()
        check_invariants(engine)
    first, *records = items
    assert isinstance(first, Snapshot)
    state = State(first)
    for record in records:
        assert isinstance(record, StepRecord)
        state.apply(record)
    assert state.snapshot().same_state(engine.snapshot()), injector.place
    for (prompt, params), seq in zip(SCENARIO, seqs, strict=True):
        assert seq.completion_token_ids == unconstrained(prompt, params.max_tokens), injector.place
        check_logprobs(seq)
    return bool(injector.place)


def interrupted_run(seed: int) -> Figures:
    """A random workload whose runner is interrupted again and again, half-way through writing KV too."""
    rng, count = random.Random(seed), 0

    def interrupt(stage: str) -> None:
        nonlocal count
        if rng.random() < {"begin": 0.05, "write": 0.01, "end": 0.05}[stage]:
            count += 1
            raise KeyboardInterrupt

    def look(engine: Engine) -> None:
        engine.snapshot()
        check_invariants(engine)

    figures = run_workload(make_workload(seed, interrupt), look)
    return {"runner_interrupts": count, "runs": 1, **figures}


def run_chunk(seeds: range) -> Figures:
    """Seed s interrupts every step of the scenario at its own boundary, and runs workload s under a hail of Ctrl-C."""
    parts: list[Figures] = []
    for seed in seeds:
        parts.append({"boundaries": sum(interrupt_once(step, seed * STRIDE % LONGEST + 1) for step in range(13))})
        parts.append(interrupted_run(seed))
    return combine(parts)


PROOF = Proof("interrupts", "Ctrl-C at any call boundary of a step", LONGEST, 25, run_chunk, chunk=25)
