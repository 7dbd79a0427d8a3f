"""Small claims that another process can run, for the tests of the runner."""

from __future__ import annotations

from multiprocessing import parent_process

from tests.prove import Figures


def count(seeds: range) -> Figures:
    """Holds; tells whether all of it ran in processes that the runner had started."""
    return {"seeds": len(seeds), "max_seed": max(seeds), "min_is_elsewhere": int(parent_process() is not None)}


def refuse_five(seeds: range) -> Figures:
    """Fails for seed 5."""
    assert 5 not in seeds, "seed 5 is refused"
    return count(seeds)
