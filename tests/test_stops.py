"""Runs that end early: exactly after the step in question, blocking or live, asked for or ticked, and they say why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nvexplore.explore.until import EVENTS, Until, UntilError
from nvexplore.notebook.errors import SessionError
from nvexplore.notebook.session import Session
from nvexplore.notebook.stops import Condition, Stops
from nvexplore.notebook.tally import Tally
from tests.fakes import toy_engine
from tests.notebook_fakes import FakeLLM
from tests.toy_device import ToyDevice


def crowded(*, overlap: bool = False) -> Session:
    """A session over a small pool with four requests: all events come up but graph-miss."""
    llm: Any = FakeLLM()
    llm._engine = toy_engine(
        7, 4, max_num_batched_tokens=16, max_num_seqs=3, overlap=overlap, make_runner=ToyDevice if overlap else None
    )
    session = Session()
    session.attach(llm)
    for name in "abcd":
        session.add("the same" + name * 3, max_tokens=12, request_id=name)
    return session


def steps_of(what: Condition) -> list[int]:
    """The steps of a run that nothing stops in which it comes up."""
    session = crowded()
    session.run()
    until = Until.of(what)  # type: ignore[arg-type]
    return [record.step for record in session.recorder if until.matches(record)]


def next_step(session: Session) -> int:
    assert session.llm is not None
    return session.llm.engine.next_step


@pytest.mark.parametrize(
    "what", ["preempt", "miss", "hit", "finish", "evict", "step==7", "num_waiting == 0", "hit,evict"]
)
def test_a_run_stops_where_it_should_and_goes_on_from_there(what: str) -> None:
    expected = steps_of(what)
    assert expected, "it never comes up"
    session = crowded()
    for step in expected:
        summary = session.run(until=what)
        assert next_step(session) == step + 1
        assert summary.tally.last_step == step
        assert summary.found is not None and summary.found.startswith(f"step {step}: ")
        assert summary.notes[0] == session.runner.status == f"stopped at {summary.found}"
        if what.startswith("step"):
            return
    last = session.run(until=what)
    assert last.found is None
    assert last.notes[0] == f"did not come up: {what}"
    assert session.runner.status == "idle"


def test_requests_are_named_whenever_they_were_added() -> None:
    session = crowded()
    session.step()
    assert session.run(until="finish").found == f"step {steps_of('finish')[0]}: request a finished (length)"


def test_a_function_of_the_sums_is_a_condition_too() -> None:
    session = crowded()
    summary = session.run(until=lambda tally: tally.num_generated_tokens >= 10)
    assert summary.tally.num_generated_tokens >= 10
    assert "what was asked for is so" in summary.notes[0]

    def fail(tally: Tally) -> bool:
        raise ValueError("of my own")

    with pytest.raises(ValueError, match="of my own"):
        session.run(until=fail)
    assert session.runner.status == "paused"
    assert session.run(max_steps=1).found is None


def test_a_condition_that_raises_ends_the_run_and_says_where() -> None:
    session = crowded()
    with pytest.raises(
        UntilError, match=r"until 1 / .step - 3. < -9 could not be evaluated at step 3: ZeroDivisionError"
    ):
        session.run(until="1 / (step - 3) < -9")
    assert next_step(session) == 4
    session.run()
    assert not session.has_work
    assert len(session.recorder) == next_step(session)  # nobody was detached


def test_what_can_not_be_is_refused_before_the_run() -> None:
    session = crowded()
    session.run(max_steps=3)
    with pytest.raises(SessionError, match="until step==1: the next step is already 3"):
        session.run(until="step==1")
    with pytest.raises(ValueError, match=r"no name 'late' at the \^ in: \^late"):
        session.run(until="late")
    with pytest.raises(TypeError, match="until=5: must be"):
        session.run(until=5)  # type: ignore[arg-type]
    assert next_step(session) == 3
    assert session.run(until="step==1,step==4").tally.last_step == 4


def test_what_a_run_was_to_stop_at_is_over_with_it() -> None:
    session = crowded()
    session.run(until="finish", max_steps=2)
    assert not session.stops.is_set()
    session.run()
    assert not session.has_work


@pytest.mark.parametrize("what", ["preempt", "finish", "step==9", "num_waiting == 0"])
def test_a_live_run_stops_there_too(what: str) -> None:
    expected = steps_of(what)

    async def cell() -> None:
        session = crowded()
        session.run_live(until=what)
        await session.runner.done()
        assert next_step(session) == expected[0] + 1
        assert session.runner.status.startswith(f"stopped at step {expected[0]}: ")
        session.run_live()
        await session.runner.done()
        assert not session.has_work
        assert session.runner.status == "idle"

    asyncio.run(cell())


def test_a_live_run_that_can_not_look_shows_it() -> None:
    async def cell() -> None:
        session = crowded()
        runner = session.run_live(until="1 / (step - 3) < -9")
        with pytest.raises(UntilError, match="at step 3"):
            await runner.done()
        assert runner.status.startswith("stopped: UntilError: until 1 / (step - 3)")
        assert next_step(session) == 4
        count = session.run_live(until=lambda tally: tally.num_steps == 5)
        await count.done()
        assert next_step(session) == 9

    asyncio.run(cell())


def test_a_run_that_was_closed_stops_no_other() -> None:
    async def cell() -> None:
        session = crowded()
        session.run_live(until="finish")
        await asyncio.sleep(0)
        session.attach(FakeLLM())  # type: ignore[arg-type]
        assert not session.stops.is_set()
        session.add("x", max_tokens=2)
        session.step()
        session.runner.run()
        await session.runner.done()
        assert session.runner.status == "idle"

    asyncio.run(cell())


def test_a_record_that_comes_twice_is_looked_at_once() -> None:
    stops, session = Stops(), crowded()
    session.run(max_steps=2)
    snapshot, records = session.recorder.segments[0]
    tally, calls = Tally(), list[int]()
    stops.push(snapshot)
    stops.begin(lambda sums: calls.append(sums.last_step), tally=tally)
    stops.follow(is_running=True)
    for record in (records[0], records[0], records[1], records[0]):
        stops.push(record)
    assert calls == [0, 1]
    assert tally.num_steps == 2
    assert stops.reason() is None
    assert set(EVENTS) == {"preempt", "miss", "hit", "finish", "evict", "graph-miss"}
