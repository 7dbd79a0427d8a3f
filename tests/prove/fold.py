"""The records, folded onto the first snapshot, give the engine's own snapshot after every step, and tell all tokens.

Where steps overlap, they do so whenever nothing is in the air.
"""

from nvexplore.engine.engine import Engine
from tests.fakes import check_invariants
from tests.follow import Follower
from tests.prove import Figures, Proof, combine
from tests.workloads import make_workload, overlaps, run_workload

# What must have come up, and how often, for the claim to mean something.
EXERCISED = {"preemptions": 300, "aborted": 500, "planned_ahead": 1_500, "late_rows": 30, "refused_for_blocks": 30}


def run_one(seed: int) -> Figures:
    """One workload, watched from its first step on."""
    work, follower = make_workload(seed, overlap=overlaps(seed)), Follower()

    def compare(engine: Engine) -> None:
        check_invariants(engine)
        follower.compare(engine)

    with work.engine.subscribe(follower) as subscription:
        figures = run_workload(work, compare)
        assert subscription.error is None
    assert len(follower.records) == len(follower.items) - 1
    for _, seq in work.started:
        assert follower.told.get(seq.seq_id, []) == seq.completion_token_ids, f"told of request {seq.request_id}"
    return {"runs": 1, "ahead_records": sum(record.planned.is_ahead for record in follower.records), **figures}


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    return combine(run_one(seed) for seed in seeds)


def check(figures: Figures) -> None:
    """Enough of everything has come up; what the device was given ahead is what the records say so of."""
    rare = {name: figures.get(name, 0) for name, least in EXERCISED.items() if figures.get(name, 0) < least}  # type: ignore[operator]
    assert not rare, f"too rare to prove anything: {rare}"
    assert figures["ahead_records"] == figures["planned_ahead"]


PROOF = Proof(
    "fold",
    "Records folded onto the first snapshot equal the engine's snapshot",
    500,
    60,
    run_chunk,
    chunk=50,
    check=check,
)
