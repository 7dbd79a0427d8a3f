"""Views of a model that is closed: their buttons are gone, and what is pressed all the same is answered."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvexplore.notebook.errors import CLOSED, SessionError
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.links import Links
from nvexplore.notebook.session import Session
from tests.comms import RecordedComm, comm_of, recorded_comms
from tests.notebook_fakes import FakeLLM

COMMANDS = ("run", "pause", "step")


@pytest.fixture(autouse=True)
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "made", [])


@pytest.fixture(autouse=True)
def comms() -> Iterator[list[RecordedComm]]:
    import ipywidgets

    with recorded_comms() as made:
        yield made
    ipywidgets.Widget.close_all()


def answers_to(explorer: Explorer, command: str) -> list[dict[str, Any]]:
    """What a page gets that sends a command."""
    comm = comm_of(explorer)
    before = len(comm.sent)
    comm.send_custom(type="command", command=command)
    customs = [data["content"] for _, data, _ in comm.sent[before:] if data.get("method") == "custom"]
    return [content for content in customs if content["type"] == "done"]


# How the model of a view ends, or stops being the one that is looked at.
ENDS: dict[str, Callable[[Session], object]] = {
    "closed": lambda session: session.close(),
    "another loaded": lambda session: session.load("B", num_kvcache_blocks=64),
    "another attached": lambda session: session.attach(FakeLLM("B"), "B"),
}


@pytest.mark.parametrize("is_held", [True, False], ids=["Out keeps the runner", "nothing is kept"])
@pytest.mark.parametrize("end", ENDS)
def test_the_buttons_of_a_model_that_is_closed_go_and_drive_no_other(end: str, is_held: bool) -> None:
    async def cell() -> None:
        session = Session()
        session.load("A", num_kvcache_blocks=64)
        old = session.watch()
        assert old.has_controls
        session.add("hello world", max_tokens=3)
        out = [session.run_live()]  # what Out[n] keeps of %nvx_run --live
        await session.runner.done()
        ENDS[end](session)
        if not is_held:
            out.clear()
            gc.collect()
        assert (old.status, old.has_controls) == ("closed", False)
        if session.llm is not None:
            session.add("for model B", max_tokens=5)
        for command in COMMANDS:
            assert answers_to(old, command) == [{"type": "done", "command": command, "refused": CLOSED}]
        await asyncio.sleep(0.05)
        if session.llm is not None:
            assert session.llm.engine.next_step == 0 and session.runner.status == "paused"
            assert session.explorer.has_controls

    asyncio.run(cell())


def test_links_reach_their_own_model_only() -> None:
    """Whatever somebody kept of them: a runner, a display, a button."""

    async def cell() -> None:
        session = Session()
        session.load("A")
        links = Links(session)
        session.add("hello", max_tokens=3)
        assert links.has_work()
        links.step()
        other = session.load("B")
        session.add("hello", max_tokens=3)
        runner = session.runner
        assert not links.has_work() and not links.settle()
        calls: list[Callable[[], object]] = [links.step, links.advance]
        for call in calls + [lambda name=name: links.command(name) for name in COMMANDS]:
            with pytest.raises(SessionError, match="closed"):
                call()
        links.changed(runner)
        assert (other.engine.next_step, runner.is_running) == (0, False)

    asyncio.run(cell())


def test_a_model_that_was_closed_by_hand_refuses_too() -> None:
    session = Session()
    llm = session.load("A")
    explorer = session.watch()
    llm.close()
    (answer,) = answers_to(explorer, "run")
    assert answer["refused"] == CLOSED


def test_what_is_pressed_is_answered_and_says_why_nothing_came_of_it() -> None:
    explorer, pressed = Explorer(), list[str]()
    assert answers_to(explorer, "run")[0]["refused"], "no callback: a page from before"
    explorer.on_command(pressed.append)
    assert answers_to(explorer, "step") == [{"type": "done", "command": "step", "refused": ""}]
    assert answers_to(explorer, "format the disk") == [] and pressed == ["step"]

    class Odd:
        def command(self, name: str) -> None:
            raise ValueError(f"no {name} today")

    odd = Odd()
    explorer.on_command(odd.command)
    assert answers_to(explorer, "pause")[0]["refused"] == "ValueError: no pause today"
    assert pressed == ["step", "pause"], "the others were called"


def test_a_run_without_an_event_loop_is_refused() -> None:
    session = Session()
    session.load("A")
    session.add("hello", max_tokens=3)
    (answer,) = answers_to(session.watch(), "run")
    assert "no event loop runs here" in answer["refused"]
