"""What a watched run tells about its time: which steps were held up, whatever their own size is."""

from __future__ import annotations

from msgspec.structs import replace

from nvexplore.engine.events import Snapshot, StepRecord
from tests.serving_turns import slowest
from tests.watch import busy_engine


def test_a_step_is_held_against_those_beside_it() -> None:
    made: list[Snapshot | StepRecord] = []
    engine = busy_engine(max_tokens=40)
    with engine.subscribe(made.append):
        for _ in range(30):
            engine.step()
    records = [record for record in made if isinstance(record, StepRecord)]
    # Ten long steps, then short ones: what is usual changes, and nothing is held up but the steps 15 and 20.
    spent = [0.1] * 10 + [0.004] * 20
    spent[15] += 0.02
    spent[20] += 0.03
    timed = [replace(record, time=sum(spent[: at + 1])) for at, record in enumerate(records)]
    found = slowest(timed, count=3)
    tokens = [sum(record.planned.count) for record in records]
    assert found[:2] == [(20, 30.0, tokens[20]), (15, 20.0, tokens[15])]
    assert found[2][1] == 0.0 and len(slowest(timed)) == 5
    assert slowest(timed[:1]) == []
