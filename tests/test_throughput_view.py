"""The throughput view's answer: latencies on the engine's own clock. And the flags of a step in the timeline."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nvexplore.engine.events import StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook.answers import Context
from nvexplore.notebook.mirror import Mirror
from nvexplore.notebook.throughput_view import MOST, STEPS, EngineClock, ThroughputView
from nvexplore.notebook.timeline import EAGER, GRAPH, PLANNED_AHEAD, Timeline
from tests import hand_made
from tests.fakes import toy_engine
from tests.hand_made import A, B, C, D, E
from tests.watch import greedy

LIMITS = {"max_steps": 100, "max_entries": 1000, "max_finished": 100}


def told(items: list[Any], step: int, id: int = -1) -> dict[str, Any]:
    """What the view is told about ``step``."""
    recorder, mirror = Recorder(), Mirror(items[0], **LIMITS)
    for item in items:
        recorder.push(item)
        if isinstance(item, StepRecord) and item.step <= step:
            mirror.apply(item)
    record = recorder.record_of(step) if step >= 0 else None
    return ThroughputView.answer(Context(step, mirror.state, record, recorder, None, None, mirror), id)


def by_id(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in answer["requests"]}


def test_latencies_leave_out_the_pauses_between_steps() -> None:
    # A step ends at each full second and works 20 ms and 10 ms a token: 100, 60, 40, 40, 30, 100, 30, 50, 100 ms.
    rows = by_id(told(hand_made.items(), 8))
    assert list(rows) == sorted(rows, reverse=True), "the newest first"
    a, b = rows[A], rows[B]
    assert a["first"] == pytest.approx(0.1) and b["first"] == pytest.approx(0.16)
    # a's tokens come in steps 0, 2, 3, 4; b's in 1, 2, 3, 6
    assert a["mean"] == pytest.approx((0.1 + 0.04 + 0.03) / 3) and a["longest"] == pytest.approx(0.1)
    assert b["mean"] == pytest.approx((0.04 + 0.04 + 0.16) / 3) and b["longest"] == pytest.approx(0.16)
    assert (a["num_tokens"], b["num_tokens"], a["is_live"]) == (4, 4, False)
    assert rows[D]["first"] == pytest.approx(0.05) and rows[D]["is_live"] and rows[D]["mean"] is None
    # c was aborted while it waited, e came in a pause
    assert rows[C]["first"] is None and rows[C]["waited"] is None
    assert rows[E]["first"] == pytest.approx(0.05)


def test_a_past_step_knows_nothing_of_what_came_later() -> None:
    items = hand_made.items()
    rows = by_id(told(items, 1))
    assert set(rows) == {A, B, C} and rows[A]["num_tokens"] == 1 and rows[A]["mean"] is None
    assert rows[C]["waited"] == pytest.approx(0.06) and rows[C]["num_tokens"] == 0
    before = told(items, -1)
    assert before == {"step": -1, "requests": [], "num_hidden": 0}


def test_of_many_requests_those_that_run_the_newest_and_the_selected_one() -> None:
    engine = toy_engine(400, 4, max_num_seqs=2)
    for i in range(60):
        engine.add_request([i + 1] * 3, greedy(2), request_id=f"r{i}")
    items: list[Any] = [engine.snapshot()]
    engine.subscribe(items.append)
    for _ in range(3):
        engine.step()
    items = [items[0], *(item for item in items if isinstance(item, StepRecord))]
    answer = told(items, 2)
    assert len(answer["requests"]) == MOST and answer["num_hidden"] == 60 - MOST
    assert [row["name"] for row in answer["requests"][:3]] == ["r3", "r2", "r59"], "two run, and of the rest the newest"
    answer = told(items, 2, id=0)
    assert answer["requests"][-1]["name"] == "r0" and answer["num_hidden"] == 60 - MOST - 1
    row = answer["requests"][-1]
    assert row["num_tokens"] == 2 and 0 < row["mean"] == row["longest"] and row["first"] > 0
    assert told(items, 2, id=10_000)["num_hidden"] == 60 - MOST


def test_a_gap_in_the_records_is_not_counted_over() -> None:
    engine, items = toy_engine(400, 4), list[Any]()
    engine.add_request([1, 2, 3], greedy(20), request_id="through")
    for step in range(6):
        if step in (0, 3):
            items.append(engine.snapshot())
        remove = engine.subscribe(lambda item: items.append(item) if isinstance(item, StepRecord) else None)
        engine.step()
        remove.close()
        if step == 2:
            items.pop()  # nobody saw this one
    recorder = Recorder()
    for item in items:
        recorder.push(item)
    assert recorder.gaps == [(2, 2)]
    mirror = Mirror(engine.snapshot(), **LIMITS)
    context = Context(5, mirror.state, recorder.record_of(5), recorder, None, None, mirror)
    (row,) = ThroughputView.answer(context, -1)["requests"]
    assert row["num_tokens"] == 6 and row["first"] is None and row["mean"] is not None
    assert row["longest"] <= sum(record.committed.run_ns + 10**9 for record in recorder.records) / 1e9


def test_steps_that_overlap_are_counted_once() -> None:
    first = next(item for item in hand_made.items() if isinstance(item, StepRecord))
    times = msgspec.structs.replace(first.committed, plan_ns=0, run_ns=30_000_000, commit_ns=0)
    records = [
        msgspec.structs.replace(first, step=step, time=time, committed=times)
        for step, time in ((0, 1.0), (1, 1.02), (2, 1.04), (3, 9.0))
    ]
    clock = EngineClock(records)
    worked = [clock.at(time) for time in (0.5, 0.985, 1.0, 1.01, 1.02, 1.04, 5.0, 8.98, 9.0, 20.0)]
    assert worked == pytest.approx([0, 0.015, 0.03, 0.04, 0.05, 0.07, 0.07, 0.08, 0.1, 0.1])
    assert EngineClock([]).at(3.0) == 0.0 and STEPS >= 512, "as far back as the page has columns"


@pytest.mark.parametrize(
    ("planned", "flags"),
    [
        ({"graph_size": 8}, GRAPH),
        ({"graph_size": 8, "is_ahead": True}, GRAPH | PLANNED_AHEAD),
        ({"eager_reason": "prefill"}, EAGER),
        ({"eager_reason": "cpu"}, 0),
        ({"eager_reason": "enforce_eager", "is_ahead": True}, PLANNED_AHEAD),
        ({"eager_reason": None}, 0),
    ],
)
def test_a_column_says_how_its_step_ran(planned: dict[str, Any], flags: int) -> None:
    record = next(item for item in hand_made.items() if isinstance(item, StepRecord))
    fields = {"graph_size": None, "eager_reason": None, "is_ahead": False, **planned}
    timeline = Timeline(8, 100)
    timeline.append(msgspec.structs.replace(record, planned=msgspec.structs.replace(record.planned, **fields)))
    assert timeline.columns[0].head[-2:] == (flags, len(timeline.columns[0].seq_id))
