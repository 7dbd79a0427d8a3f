"""Breakpoints stop every run; they are the boxes ticked in the views, and keep no engine alive."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.until import EVENTS, Until
from tests.comms import RecordedComm, recorded_comms
from tests.notebook_fakes import FakeLLM
from tests.test_stops import crowded, steps_of


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    import ipywidgets

    with recorded_comms() as made:
        yield made
    ipywidgets.Widget.close_all()


def test_breakpoints_stop_every_run() -> None:
    session = crowded()
    session.stops.breakpoints = ["finish"]
    found = []
    while session.has_work:
        found.append(session.run().found)
    assert [words.split(":")[0] for words in found if words] == [f"step {step}" for step in steps_of("finish")]
    assert found[0] == f"step {steps_of('finish')[0]}: request a finished (length) (a breakpoint)"
    for bad in (["late"], ["step==3"], ["finish", "1"]):
        with pytest.raises(ValueError, match="no event"):
            session.stops.breakpoints = bad
    assert session.stops.breakpoints == ("finish",)


def test_what_steps_by_hand_meet_is_not_left_over_for_the_next_run() -> None:
    session = crowded()
    session.stops.breakpoints = ["finish"]
    for _ in range(steps_of("finish")[0] + 1):
        session.step()
    assert session.run(max_steps=1).found is None

    async def cell() -> None:
        session = crowded()
        session.stops.breakpoints = ["finish"]
        for _ in range(steps_of("finish")[0] + 1):
            session.step()
        session.runner.run()
        await session.runner.done()
        assert session.runner.status.startswith(f"stopped at step {steps_of('finish')[1]}: ")
        session.step()
        assert session.runner.status == "paused"

    asyncio.run(cell())


@pytest.mark.parametrize("seen", range(1, 14))
def test_a_box_ticked_while_steps_overlap_counts_for_the_step_that_is_in_the_air(seen: int) -> None:
    """The step that has begun is looked at before another begins."""
    session = crowded(overlap=True)
    llm: Any = session.llm
    told: list[int] = []

    def push(item: Snapshot | StepRecord) -> None:
        if isinstance(item, StepRecord):
            told.append(item.step)
            if item.step == seen:
                session.stops.breakpoints = ["preempt", "finish", "hit"]

    with llm.engine.subscribe(push):
        summary = session.run()
    assert llm.engine.runner.num_ahead > 0
    until = Until.of_events(session.stops.breakpoints)
    matching = [r.step for r in session.recorder if until.matches(r) and r.step > seen]
    assert matching == [told[-1]] == [summary.tally.last_step] == [llm.engine.next_step - 1]
    assert summary.tally.num_steps == session.runner.num_steps == len(told)


def test_boxes_in_the_views_are_the_breakpoints(comms: list[RecordedComm]) -> None:
    session = crowded()
    session.stops.breakpoints = ["miss"]
    session.watch()
    explorer: Any = session.explorer
    assert explorer.breakpoints == ["miss"]
    explorer.breakpoints = ["finish", "hit"]
    assert session.stops.breakpoints == ("finish", "hit")
    session.stops.breakpoints = ["hit"]
    assert explorer.breakpoints == ["hit"]
    explorer.breakpoints = ["hit", "__import__('os').abort()"]  # what no box says
    assert explorer.breakpoints == ["hit"]
    assert session.stops.breakpoints == ("hit",)
    assert explorer.events == EVENTS
    # Another model, another explorer: the boxes stay ticked, and the old views have no say any more.
    session.attach(FakeLLM())  # type: ignore[arg-type]
    assert session.explorer is not explorer
    assert session.explorer.breakpoints == ["hit"]
    explorer.breakpoints = ["miss"]
    assert session.stops.breakpoints == ("hit",)


def test_views_keep_no_engine_through_their_boxes(comms: list[RecordedComm]) -> None:
    session = crowded()
    explorer, engine = session.explorer, weakref.ref(session.llm.engine)  # type: ignore[union-attr]
    session.close()
    del session
    gc.collect()
    assert engine() is None
    assert explorer.status == "closed"
