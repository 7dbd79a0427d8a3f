"""The views of a session: few messages, current ones, and no hold on the engine (J05, J20)."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from nvexplore.notebook import display
from nvexplore.notebook.display import MODULES, VIEWS
from nvexplore.notebook.errors import SessionError
from nvexplore.notebook.session import Session
from tests.comms import RecordedComm, recorded_comms
from tests.fakes import run_to_end, toy_engine
from tests.notebook_fakes import FakeLLM


@pytest.fixture(autouse=True)
def fake_llm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
        monkeypatch.setattr(FakeLLM, "made", [])


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    import ipywidgets

    with recorded_comms() as made:
        yield made
    ipywidgets.Widget.close_all()


def test_thousands_of_steps_a_second_are_few_messages(comms: list[RecordedComm]) -> None:
    """J05: at most 30 messages in any second whatever the step rate, the last state among them; unseen, none."""
    session = Session()
    llm = session.load(num_kvcache_blocks=4000, max_model_len=9000)
    explorer = session.explorer
    dashboard = next(comm for comm in comms if comm.comm_id == explorer.model_id)
    opened = len(dashboard.sent)
    session.add("unseen", max_tokens=500)
    session.run()
    assert len(dashboard.sent) - opened <= 4  # its status, no data
    explorer.start()
    times: list[float] = []
    dashboard.on_send = lambda kind, data, buffers: times.append(time.monotonic())
    session.add("seen", max_tokens=2000, request_id="seen")
    started = time.monotonic()
    session.run()
    took = time.monotonic() - started
    busiest = max(sum(1 for other in times if 0 <= other - t < 1.0) for t in times)
    assert busiest <= 30 + 3  # the status is told beside the data: running, then idle
    assert len(times) <= 30 * (took + 1) + 3
    last = [message for message in dashboard.messages() if message["full"]][-1]
    assert last["step"] == llm.engine.next_step  # the end of a run is always told


def test_many_requests_are_told_at_once(comms: list[RecordedComm], monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot copies the whole pool, so that one for each request would take seconds."""
    snapshots = list[int]()

    async def cell() -> None:
        session = Session()
        llm = session.load()
        explorer, snapshot = session.explorer, llm.engine.snapshot
        monkeypatch.setattr(llm.engine, "snapshot", lambda: (snapshots.append(1), snapshot())[1])
        for number in range(5):
            session.add("hello", max_tokens=3, request_id=f"r{number}")
        assert explorer.status == "paused" and not snapshots
        await asyncio.sleep(0)
        assert len(snapshots) == 1 and len(explorer._feed.mirror.state.waiting) == 5
        session.abort("r0")
        await asyncio.sleep(0)
        assert len(snapshots) == 2 and len(explorer._feed.mirror.state.waiting) == 4

    asyncio.run(cell())


def test_watching_costs_little() -> None:
    """A recorder and views that nobody has displayed yet slow a real engine's steps by microseconds."""

    def seconds_per_step(watched: bool) -> float:
        engine = toy_engine(4000, 16)
        for _ in range(8):
            engine.add_request(list(range(20)), None)
        started = time.perf_counter()
        if watched:
            from nvexplore.explore.recorder import Recorder

            engine.subscribe(Recorder().push)
        steps = run_to_end(engine)
        return (time.perf_counter() - started) / steps

    plain = min(seconds_per_step(False) for _ in range(3))
    assert min(seconds_per_step(True) for _ in range(3)) - plain < 0.001


def test_closing_frees_the_engine_even_under_open_views(comms: list[RecordedComm]) -> None:
    """J20: twenty times, with the views still on the page and their results in somebody's hands."""
    import ipywidgets

    held: list[Any] = []
    for _ in range(20):
        session = Session()
        llm = session.load()
        dead = [weakref.ref(llm), weakref.ref(llm.engine)]
        views = [session.watch(what) for what in ("all", "schedule", "blocks")]
        held += [session.add("hello", max_tokens=2), session.step(), session.run(), session.peek(), session.runner]
        session.explorer.on_select(lambda kind, id: None)
        session.close()
        held += views
        del llm
        FakeLLM.made.clear()
        gc.collect()
        assert [ref() for ref in dead] == [None, None]
        assert repr(session) == "Session(no model is loaded)"
    assert held[0].text  # a request can still be read
    for thing in held:
        if isinstance(thing, ipywidgets.DOMWidget):
            thing.close()
    assert not ipywidgets.widgets.widget._instances


def test_a_session_that_is_dropped_takes_its_engine_along(comms: list[RecordedComm]) -> None:
    async def cell() -> weakref.ref[Any]:
        session = Session()
        session.load()
        session.watch()
        session.add("hello", max_tokens=50)
        session.run_live()
        await asyncio.sleep(0)
        FakeLLM.made.clear()
        return weakref.ref(session.llm)

    async def main() -> None:
        dead = await cell()
        await asyncio.sleep(0.01)
        gc.collect()
        assert dead() is None

    asyncio.run(main())


def test_buttons_and_status(comms: list[RecordedComm]) -> None:
    async def cell() -> None:
        session = Session()
        llm = session.load()
        explorer = session.explorer
        assert explorer.status == "idle"
        session.add("hello", max_tokens=60)
        assert explorer.status == "paused"
        for _ in range(3):
            explorer._on_message({"type": "command", "command": "step"}, [])
        await session.runner.done()
        assert (llm.engine.next_step, explorer.status) == (3, "paused")
        explorer._on_message({"type": "command", "command": "run"}, [])
        await session.runner.done()
        assert (llm.engine.next_step, explorer.status) == (60, "idle")
        session.add("more", max_tokens=60)
        session.settings.live_hz = 1000
        explorer._on_message({"type": "command", "command": "run"}, [])
        await asyncio.sleep(0.02)
        explorer._on_message({"type": "command", "command": "pause"}, [])
        await asyncio.sleep(0.02)
        assert explorer.status == "paused"
        assert 60 < llm.engine.next_step < 120
        session.run()
        session.close()
        assert explorer.status == "closed"
        explorer._on_message({"type": "command", "command": "run"}, [])  # nothing to run, no error

    asyncio.run(cell())


def test_every_view_has_a_name_and_a_widget(comms: list[RecordedComm]) -> None:
    assert VIEWS[:3] == ("all", "schedule", "blocks") and "controls" not in VIEWS
    session = Session()
    session.load()
    assert session.watch("all") is session.explorer
    for name in VIEWS[1:]:
        assert session.watch(name).view == MODULES[name]
    with pytest.raises(ValueError, match="no view 'slot_view': there are all, schedule, blocks"):
        session.watch("slot_view")


def test_a_file_without_its_class_is_told(comms: list[RecordedComm], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "VIEWS", (*VIEWS, "odd"))
    monkeypatch.setitem(MODULES, "odd", "odd_view")
    session = Session()
    session.load()
    with pytest.raises(SessionError, match=r"odd_view\.py defines no View"):
        session.watch("odd")


def test_the_past_is_read_from_the_recorder_of_the_session(comms: list[RecordedComm]) -> None:
    session = Session()
    session.load()
    session.add("hello", max_tokens=9)
    session.step()
    explorer = session.explorer
    session.run()
    assert explorer.recorder is session.recorder
    dashboard = next(comm for comm in comms if comm.comm_id == explorer.model_id)
    dashboard.send_custom(type="ask", ask="1", what="sequence", id=0, step=3)
    answer = dashboard.sent[-1][1]["content"]
    assert (answer["prompt"], len(answer["text"])) == ("hello", 4), "a token a step"
    explorer.look_at(3)
    assert session.explorer.cursor == 3


def test_a_late_view_has_the_steps_before_it(comms: list[RecordedComm]) -> None:
    session = Session()
    session.load()
    session.add("hello", max_tokens=5)
    session.run()
    session.add("waiting", max_tokens=5)
    explorer = session.explorer
    explorer.start()
    frame = explorer._take_frame()
    assert frame["step"] == 5
    assert len(frame["steps"]) // 4 // 11 == 5  # one column a step made before it was looked at
    assert len(frame["waiting"]) // 4 == 1
    session.add("later", max_tokens=5)
    assert len(explorer._take_frame()["waiting"]) // 4 == 2  # shown before it runs
