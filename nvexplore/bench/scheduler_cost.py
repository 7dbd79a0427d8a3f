"""What deciding costs: microseconds a step and an admission, with a runner that answers at once.

Every contender sees the same prompts and the same tokens, in turns, in one process with Python's garbage collector
on. Knows neither the peer nor the command line.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.sequence import Sequence as Completion
from nvexplore.sampling_params import SamplingParams

STEPS = 32  # a pass; at 16 tokens a block every sequence needs two new blocks in it
PROMPT_LENS = (372, 627)  # drawn evenly from these 256 lengths, so that blocks fill up at different steps
ADMITTED, ADMITTED_LEN = 256, 512
TOKEN_BUDGET = 16_384  # prompt tokens a step, for all contenders
TOKEN_IDS = range(1_000, 150_000)
END_OF_SEQUENCE = 2  # is looked for, and never comes


@dataclass(frozen=True, slots=True)
class Shape:
    """What a contender is built for."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int


class Decider(Protocol):
    """An engine without a model: the next step samples the tokens it is told."""

    name: str

    def add(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        """Queue prompts."""
        ...

    def step(self, token_ids: list[int]) -> None:
        """One whole step; row i of those that sample gets ``token_ids[i]``, and there may be too many of them."""
        ...

    def num_waiting(self) -> int:
        """Requests that have no token yet."""
        ...

    def completions(self) -> list[list[int]]:
        """The tokens that the running sequences have so far, prompts included, in the order in which they came."""
        ...


MakeDecider = Callable[[Shape], Decider]


class _Runner:
    """Gives the tokens it was given."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def run(self, batch: ScheduledBatch) -> list[int]:
        return self.token_ids[: sum(batch.samples)] if batch.is_prefill[0] else self.token_ids

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        return Dispatch()


class Nvexplore:
    """``Engine.step``, whole: the transaction, the output and the runner's call are in its time; nobody subscribes."""

    name = "nvexplore"

    def __init__(self, shape: Shape) -> None:
        limits = EngineLimits(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=TOKEN_BUDGET,
            max_model_len=shape.max_model_len,
        )
        self._runner = _Runner()
        self._engine = Engine(limits, self._runner, eos_token_ids=[END_OF_SEQUENCE])

    def add(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        for prompt in prompts:
            self._engine.add_request(prompt, params)

    def step(self, token_ids: list[int]) -> None:
        self._runner.token_ids = token_ids
        self._engine.step()

    def _running(self) -> list[Completion]:
        return self._engine.scheduler.queues.running

    def num_waiting(self) -> int:
        unborn = sum(1 for seq in self._running() if not seq.num_completion_tokens)
        return len(self._engine.scheduler.queues.waiting) + unborn

    def completions(self) -> list[list[int]]:
        return [seq.token_ids for seq in sorted(self._running(), key=lambda seq: seq.seq_id)]


class DifferentWork(Exception):
    """Two contenders ended up with different tokens, so their times must not be compared."""


@dataclass(slots=True)
class Cost:
    """Microseconds of each pass, by contender and blocks in the pool; ours come first.

    what: "step", or "admission" (of a prompt whose blocks are new), "hits" (of one whose blocks all but the last are
    shared with a running sequence) or "freed hits" (of one whose blocks lie in the cache, held by nobody).
    """

    what: str
    block_size: int
    rows: int
    passes: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def median(self, name: str, num_blocks: int) -> float:
        return median(self.passes[name, num_blocks])

    def speedup(self, ours: str, peer: str, num_blocks: int) -> float:
        """Median of the passes' ratios, the peer's time to ours: more than 1 is faster than the peer."""
        both = zip(self.passes[peer, num_blocks], self.passes[ours, num_blocks], strict=True)
        return median(theirs / mine for theirs, mine in both)

    def growth(self, name: str) -> float:
        """Median of the passes' ratios, the largest pool's time to the smallest's."""
        pools = sorted(num_blocks for each, num_blocks in self.passes if each == name)
        both = zip(self.passes[name, pools[-1]], self.passes[name, pools[0]], strict=True)
        return median(large / small for large, small in both)

    def as_dict(self) -> dict[str, Any]:
        """All figures, plain enough for JSON."""
        rows = [
            {"name": name, "num_blocks": num_blocks, "median_us": median(passes), "passes_us": passes}
            for (name, num_blocks), passes in self.passes.items()
        ]
        names = list(dict.fromkeys(name for name, _ in self.passes))
        figures: dict[str, Any] = {"what": self.what, "block_size": self.block_size, "rows": self.rows}
        figures |= {"times": rows, "growth": {name: self.growth(name) for name in names}}
        if len(names) > 1:
            pools = [num_blocks for name, num_blocks in self.passes if name == names[0]]
            figures["speedup"] = {str(pool): self.speedup(names[0], names[1], pool) for pool in pools}
        return figures


class _Field:
    """All contenders of one comparison, a fresh one for each pool; they move in turns."""

    def __init__(self, makers: Sequence[MakeDecider], shapes: Sequence[Shape]) -> None:
        self.deciders = {(d.name, s.num_blocks): d for s in shapes for d in (make(s) for make in makers)}
        self._turn = 0

    def time(self, work: Callable[[Decider], None], count: int, cost: Cost | None) -> None:
        """Let all do ``work``, who begins changing each time; ``cost`` gets the microseconds of a ``count``-th."""
        keys = list(self.deciders)
        self._turn = (self._turn + 1) % len(keys)
        for key in keys[self._turn :] + keys[: self._turn]:
            decider = self.deciders[key]
            begin = time.perf_counter_ns()
            work(decider)
            took = time.perf_counter_ns() - begin
            if cost is not None:
                cost.passes.setdefault(key, []).append(took / count / 1e3)

    def check_equal(self) -> None:
        """DifferentWork unless all have the same tokens."""
        (first, wanted), *others = ((key, decider.completions()) for key, decider in self.deciders.items())
        for key, completions in others:
            if completions != wanted:
                raise DifferentWork(f"{key[0]} with {key[1]} blocks has other tokens than {first[0]} with {first[1]}")


def fitting_pool(rows: int, block_size: int, passes: int) -> int:
    """Blocks that ``step_cost`` and ``admission_costs`` need."""
    longest = PROMPT_LENS[1] + STEPS * (passes + 2)
    return max(rows * -(-longest // block_size), 2 * ADMITTED * -(-(ADMITTED_LEN + 2) // block_size))


def step_cost(makers: Sequence[MakeDecider], block_size: int, rows: int, pools: Sequence[int], passes: int) -> Cost:
    """What a step that decodes ``rows`` sequences costs, over ``passes`` passes after one that does not count."""
    source = random.Random(0)
    max_tokens = STEPS * (passes + 2)
    shapes = [Shape(num_blocks, block_size, rows, PROMPT_LENS[1] + max_tokens) for num_blocks in pools]
    field_ = _Field(makers, shapes)
    prompts = [source.choices(TOKEN_IDS, k=source.randint(*PROMPT_LENS)) for _ in range(rows)]
    first = source.choices(TOKEN_IDS, k=rows)
    field_.time(lambda decider: decider.add(prompts, max_tokens), 1, None)
    field_.time(lambda decider: _prefill(decider, first), 1, None)
    cost = Cost("step", block_size, rows)
    for number in range(passes + 1):
        sampled = [source.choices(TOKEN_IDS, k=rows) for _ in range(STEPS)]

        def decode(decider: Decider, sampled: list[list[int]] = sampled) -> None:
            for token_ids in sampled:
                decider.step(token_ids)

        field_.time(decode, STEPS, cost if number else None)
    return cost


def admission_costs(makers: Sequence[MakeDecider], block_size: int, pools: Sequence[int], passes: int) -> list[Cost]:
    """What the steps that admit prompts cost a prompt: new ones, ones that somebody holds, ones that nobody holds."""
    source = random.Random(0)
    field_ = _Field(makers, [Shape(num_blocks, block_size, 2 * ADMITTED, ADMITTED_LEN + 2) for num_blocks in pools])
    costs = [Cost(what, block_size, ADMITTED) for what in ("admission", "hits", "freed hits")]
    for number in range(passes + 1):
        prompts = [source.choices(TOKEN_IDS, k=ADMITTED_LEN) for _ in range(ADMITTED)]
        token_ids = source.choices(TOKEN_IDS, k=ADMITTED)
        # The first stay for one more step; those after them end with their prefill.
        for cost, max_tokens in zip(costs, (2, 1, 1), strict=True):
            if cost.what == "freed hits":
                field_.check_equal()
                field_.time(lambda decider, ids=token_ids: decider.step(ids), 1, None)
            field_.time(lambda decider, prompts=prompts, most=max_tokens: decider.add(prompts, most), 1, None)
            field_.time(lambda decider, ids=token_ids: _prefill(decider, ids), ADMITTED, cost if number else None)
    return costs


def _prefill(decider: Decider, token_ids: list[int]) -> None:
    while decider.num_waiting():
        decider.step(token_ids)
