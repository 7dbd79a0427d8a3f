"""Whatever the pool, the budgets, the preemptions, the aborts and the faults: every output is the toy model's alone."""

import random

from tests.drive import run_interleaved, run_workload
from tests.faults import KINDS, Faults
from tests.prove import Figures, Proof, combine
from tests.workloads import Workload, make_workload, overlaps

OTHER = 1_000_000  # seed s runs beside this one more in some of the workloads
# What must have come up, and how often, for the claim to mean something.
LEAST = 500
ERRORS = ("KeyboardInterrupt", "Injected")
EXERCISED = (
    *("interleaved", "preemptions", "aborted", "further_samples", "broken_rows", "cache_resets", "refused"),
    *("prioritised", "salted", "rows_with_cache_hits", "salted_rows_with_hits", "evicted_prefixes"),
    *("folded_steps", "failed_steps", "planned_ahead", "fed_rows", "late_rows", "given_up"),
    *("refused_for_blocks", "refused_for_the_host"),
    *(f"policy_{name}" for name in ("prefill_first", "mixed", "own")),
    *(f"eviction_{name}" for name in ("lru", "lfu", "own")),
    *(f"hash_{name}" for name in ("xxhash", "sha256")),
    *(f"runner_{stage}_{error}" for stage in ("begin", "write", "end") for error in ERRORS),
    *(f"boundary_{error}" for error in ERRORS),
    *(f"watcher_{error}" for error in (*ERRORS, "SnapshotNeeded")),
    *(f"invalid_{choice}" for choice in ("order", "victim", "eviction")),
)


def draw_faults(seed: int) -> Faults:
    """None in half of the workloads; interrupts inside the engine, which take long, in about one in eight."""
    rng = random.Random(f"kinds {seed}")
    if rng.random() < 0.5:
        return Faults(seed)
    return Faults(seed, tuple(kind for kind in KINDS if rng.random() < (0.25 if kind == "boundary" else 0.5)))


def make(seed: int) -> Workload:
    return make_workload(seed, faults=draw_faults(seed), overlap=overlaps(seed))


def run_one(seed: int) -> list[Figures]:
    """One workload, or in one case of ten two of them, a step of one or the other at random."""
    works = [make(seed)]
    rng = random.Random(f"beside {seed}")
    if rng.random() < 0.9:
        return [{"workloads": 1, **run_workload(works[0])}]
    works.append(make(seed + OTHER))
    return [{"workloads": 1, "interleaved": 1, **figures} for figures in run_interleaved(works, rng)]


def run_chunk(seeds: range) -> Figures:
    """Invariants are checked after each step and each fault of each workload; where steps overlap, after some."""
    return combine(figures for seed in seeds for figures in run_one(seed))


def check(figures: Figures) -> None:
    """Everything that the claim speaks of has come up."""
    rare = {name: figures.get(name, 0) for name in EXERCISED if figures.get(name, 0) < LEAST}  # type: ignore[operator]
    assert not rare, f"too rare to prove anything: {rare}"


PROOF = Proof(
    "oracle", "Toy KV oracle: outputs equal an unconstrained run", 20_000, 300, run_chunk, chunk=200, is_parallel=True
)
