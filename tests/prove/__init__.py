"""Claims that are proved by volume: `make prove` runs each in full, `make test` a fixed slice of each.

A proof is one module in this folder that defines ``PROOF``::

    def run_chunk(seeds: range) -> Figures:
        for seed in seeds:
            assert outputs(seed) == expected(seed)
        return {"workloads": len(seeds), "max_blocks": ...}

    PROOF = Proof("oracle", "Outputs equal a free run", volume=5_000, quick=50, run_chunk=run_chunk)

``run_chunk`` raises (an assertion with a message, any exception) where the claim does not hold for one of the
seeds; the runner then tries the seeds one by one to name the guilty. Everything random must derive from the seed alone,
and a seed must give the same result whatever chunk it is in. A proof without randomness takes its cases as
seeds. ``python -m tests.prove`` keeps finished chunks in build/prove/ and goes on after an interrupt.

A claim about all seeds together ("at least 90 % of them") stands in ``Proof.check``, which gets the combined figures
when every chunk is done and raises where it does not hold.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a chunk has to tell, by name: names that begin with max_ or min_ are combined over the chunks by max or
# min, all others are added up; lists of lines are put together, and shown below the result.
Figure = int | float | list[str]
Figures = Mapping[str, Figure]


@dataclass(frozen=True)
class Proof:
    """One claim: ``run_chunk`` is called until the seeds 0 .. volume - 1 are all tried, ``chunk`` at a time.

    ``quick`` is the number of seeds that `make test` tries, always from 0. A chunk is what an interrupt can
    lose: a few seconds of work is a good size. ``check`` judges the figures of all chunks together. ``tests`` are the
    test files that ``run_chunk`` runs: a result holds for these as they were. ``is_parallel`` lets several processes
    run chunks at the same time: not for a proof that measures time, or whose chunks use all cores by themselves.
    """

    name: str
    title: str
    volume: int
    quick: int
    run_chunk: Callable[[range], Figures]
    chunk: int = 50
    check: Callable[[Figures], None] | None = None
    is_parallel: bool = False
    tests: Sequence[Path] = ()

    def chunks(self) -> list[range]:
        """Return the seeds, cut into the ranges that are run and kept as one."""
        starts = range(0, self.volume, self.chunk)
        return [range(start, min(start + self.chunk, self.volume)) for start in starts]


def combine(parts: Iterable[Figures]) -> dict[str, Any]:
    """Return the figures of all the chunks as one."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name not in total:
                total[name] = value
            elif name.startswith("max_"):
                total[name] = max(total[name], value)
            elif name.startswith("min_"):
                total[name] = min(total[name], value)
            else:
                total[name] = total[name] + value  # not +=: that would lengthen a chunk's own list
    return total


def discover() -> list[Proof]:
    """Import every module of this folder, save the runner's own (``_``), and return their proofs by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}").PROOF for name in names if name[0] != "_"]


def least(measure: Callable[[], float], limit: float, tries: int = 3) -> float:
    """The least of up to ``tries`` measurements; stops at the first within ``limit``. Raises AssertionError above it.

    What something takes is what it takes undisturbed: other work of the machine only adds, for seconds or minutes.
    """
    found: list[float] = []
    while len(found) < tries and (not found or min(found) > limit):
        found.append(measure())
    assert min(found) <= limit, f"{', '.join(f'{each:.1f}' for each in found)}: the limit is {limit:g}"
    return min(found)
