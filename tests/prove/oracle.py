"""Whatever the pool, the budgets, the preemptions and the aborts: every output is what the toy model says alone."""

from tests.prove import Figures, Proof, combine
from tests.workloads import make_workload, run_workload


def run_chunk(seeds: range) -> Figures:
    """Invariants are checked after each step of each workload."""
    return combine({"workloads": 1, **run_workload(make_workload(seed))} for seed in seeds)


PROOF = Proof("oracle", "Toy KV oracle: outputs equal an unconstrained run", 5_000, 300, run_chunk, chunk=100)
