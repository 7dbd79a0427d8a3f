"""The records, folded onto the first snapshot, give the engine's own snapshot after every step."""

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import State
from tests.fakes import check_invariants
from tests.prove import Figures, Proof, combine
from tests.workloads import make_workload, run_workload


def run_one(seed: int) -> Figures:
    """One workload, watched from its first step on."""
    work = make_workload(seed)
    states: list[State] = []

    def watch(item: Snapshot | StepRecord) -> None:
        if isinstance(item, Snapshot):
            states.append(State(item))
        else:
            states[0].apply(item)

    def compare(engine: Engine) -> None:
        check_invariants(engine)
        theirs, ours = engine.snapshot(), states[0].snapshot()
        assert ours.same_state(theirs), f"step {theirs.step}: folded {ours}, engine {theirs}"

    with work.engine.subscribe(watch) as subscription:
        figures = run_workload(work, compare)
        assert subscription.error is None
    assert len(states) == 1
    return {"runs": 1, **figures}


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    return combine(run_one(seed) for seed in seeds)


PROOF = Proof(
    "fold", "Records folded onto the first snapshot equal the engine's snapshot", 500, 60, run_chunk, chunk=50
)
