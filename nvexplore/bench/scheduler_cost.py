"""What deciding costs: microseconds a step and an admission, with a runner that answers at once.

Every contender sees the same prompts and the same tokens, in turns, in one process with Python's garbage collector on.
Times are the thread's own: what other programs take from it does not count. Knows neither the peer nor the command
line.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from statistics import median
from typing import Any

from nvexplore.bench.deciders import FIRST_TOKENS, Decider, MakeDecider, Shape

STEPS = 32  # a pass; at 16 tokens a block every sequence needs two new blocks in it
PROMPT_LENS = (372, 627)  # drawn evenly from these 256 lengths, so that blocks fill up at different steps
ADMITTED, ADMITTED_LEN = 256, 512
FREED = 4  # of these hit the cache again after nobody holds them
TOKEN_IDS = range(1_000, 150_000)


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
        if cost is not None and not cost.passes:
            cost.passes = {key: [] for key in keys}
        self._turn = (self._turn + 1) % len(keys)
        for key in keys[self._turn :] + keys[: self._turn]:
            decider = self.deciders[key]
            begin = time.thread_time_ns()
            work(decider)
            took = time.thread_time_ns() - begin
            if cost is not None:
                cost.passes[key].append(took / count / 1e3)

    def check_equal(self) -> None:
        """DifferentWork unless all have the same tokens."""
        (first, wanted), *others = ((key, decider.completions()) for key, decider in self.deciders.items())
        for key, completions in others:
            if completions != wanted:
                raise DifferentWork(f"{key[0]} with {key[1]} blocks has other tokens than {first[0]} with {first[1]}")


def scheduler_costs(
    makers: Sequence[MakeDecider],
    block_size: int,
    rows: Sequence[int],
    pools: Sequence[int],
    passes: int,
    tell: Callable[[str], None],
) -> list[Cost]:
    """All costs at one block size, in a pool that just fits and in ``pools``; ValueError for one that is too small."""
    costs = []
    for count in rows:
        tell(f"{count} rows, {block_size} tokens a block")
        longest = PROMPT_LENS[1] + STEPS * (passes + 2)
        costs.append(step_cost(makers, block_size, count, _pools(count, longest, block_size, pools), passes))
    tell(f"admission, {block_size} tokens a block")
    pools = _pools(2 * ADMITTED, ADMITTED_LEN + 2, block_size, pools)
    return costs + admission_costs(makers, block_size, pools, passes)


def _pools(count: int, longest: int, block_size: int, pools: Sequence[int]) -> list[int]:
    fitting = count * -(-longest // block_size)
    if min(pools) < fitting:
        raise ValueError(
            f"{count} sequences of {longest} tokens need {fitting} blocks of {block_size}, not {min(pools)}"
        )
    return sorted({fitting, *pools})


def step_cost(makers: Sequence[MakeDecider], block_size: int, rows: int, pools: Sequence[int], passes: int) -> Cost:
    """What a step that decodes ``rows`` sequences costs, over ``passes`` passes after one that does not count."""
    source = random.Random(0)
    max_tokens = STEPS * (passes + 2)
    shapes = [Shape(num_blocks, block_size, rows, PROMPT_LENS[1] + max_tokens) for num_blocks in pools]
    field_ = _Field(makers, shapes)
    prompts = [source.choices(TOKEN_IDS, k=source.randint(*PROMPT_LENS)) for _ in range(rows)]
    field_.time(methodcaller("add", prompts, max_tokens), 1, None)
    field_.time(_prefill, 1, None)
    cost = Cost("step", block_size, rows)
    for number in range(passes + 1):
        sampled = [source.choices(TOKEN_IDS, k=rows) for _ in range(STEPS)]
        field_.time(partial(_decode, sampled=sampled), STEPS, cost if number else None)
    field_.check_equal()
    return cost


def admission_costs(makers: Sequence[MakeDecider], block_size: int, pools: Sequence[int], passes: int) -> list[Cost]:
    """What the steps that admit prompts cost a prompt: new ones, ones that somebody holds, ones that nobody holds."""
    source = random.Random(0)
    field_ = _Field(makers, [Shape(num_blocks, block_size, 2 * ADMITTED, ADMITTED_LEN + 2) for num_blocks in pools])
    kinds = (("admission", ADMITTED), ("hits", ADMITTED), ("freed hits", FREED))
    costs = [Cost(what, block_size, count) for what, count in kinds]
    for number in range(passes + 1):
        prompts = [source.choices(TOKEN_IDS, k=ADMITTED_LEN) for _ in range(ADMITTED)]
        # The first stay for one more step; those after them end with their prefill.
        for cost, max_tokens in zip(costs, (2, 1, 1), strict=True):
            if cost.what == "freed hits":
                field_.check_equal()
                field_.time(methodcaller("step", FIRST_TOKENS[:ADMITTED]), 1, None)
            field_.time(methodcaller("add", prompts[: cost.rows], max_tokens), 1, None)
            field_.time(_prefill, cost.rows, cost if number else None)
    return costs


def _decode(decider: Decider, sampled: list[list[int]]) -> None:
    for token_ids in sampled:
        decider.step(token_ids)


def _prefill(decider: Decider) -> None:
    while decider.is_prefilling():
        decider.step(FIRST_TOKENS)
