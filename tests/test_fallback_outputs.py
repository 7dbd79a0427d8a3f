"""When the output of a cell that shows a view is written again, and when it is left alone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets
import pytest

from nvexplore.notebook import still_outputs
from nvexplore.notebook.block_view import BlockView
from nvexplore.notebook.session import Session
from nvexplore.notebook.still_outputs import MAX_OUTPUTS, Outputs
from nvexplore.notebook.why_view import WhyView
from tests.comms import recorded_comms
from tests.notebook_fakes import FakeLLM


class FakeShell:
    """What of a kernel's shell is used: ``outputs`` by display id, ``written`` in order.

    ``end_cell`` ends a cell, ``end_message`` the handling of a page's message.
    """

    def __init__(self) -> None:
        self.kernel: object | None = None
        self.events = self
        self.display_pub = self
        self.hooks: list[tuple[str, Callable[..., None]]] = []
        self.outputs: dict[str, dict[str, Any]] = {}
        self.written: list[tuple[str, str]] = []

    def register(self, event: str, hook: Callable[..., None]) -> None:
        self.hooks.append((event, hook))

    def unregister(self, event: str, hook: Callable[..., None]) -> None:
        self.hooks.remove((event, hook))

    def publish(self, data: Any, metadata: Any, *, transient: dict[str, str], update: bool) -> None:
        assert update == (transient["display_id"] in self.outputs)
        self.outputs[transient["display_id"]] = data
        if update:
            self.written.append((data["text/plain"].split("(")[0], data["text/plain"].split("\n")[1]))

    def end_cell(self) -> int:
        """End a cell; how often something was written."""
        return self._trigger("post_execute") + self._trigger("post_run_cell", object())

    def end_message(self) -> int:
        """A message of a page was handled, as comm does it; how often something was written."""
        return self._trigger("post_execute")

    def _trigger(self, event: str, *arguments: object) -> int:
        before = len(self.written)
        for name, hook in list(self.hooks):
            if name == event:
                hook(*arguments)
        return len(self.written) - before


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShell]:
    shell = FakeShell()
    shell.kernel = object()
    monkeypatch.setattr(still_outputs, "get_ipython", lambda: shell)
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "made", [])
    with recorded_comms():
        yield shell
        ipywidgets.Widget.close_all()


@pytest.fixture
def session(shell: FakeShell) -> Session:
    """A session with one request, whose dashboard and sentences are displayed."""
    session = Session()
    session.load()
    session.add("hello", max_tokens=200, request_id="first")
    for what in ("all", "why"):
        session.watch(what)._ipython_display_()
    assert len(shell.outputs) == 2 and shell.written == []
    return session


def test_a_cell_writes_once_what_has_changed(session: Session, shell: FakeShell) -> None:
    session.step()
    session.step()
    assert shell.written == [] and len(shell.hooks) == 1, "not while the cell runs"
    assert shell.end_cell() == 2 and shell.hooks == []
    assert shell.written == [
        ("Explorer", "after step 1: 1 running, 0 waiting"),
        ("WhyView of Explorer", "after step 1: 1 running, 0 waiting"),
    ]
    assert shell.end_cell() == 0, "a cell that makes no step"
    session.display.refresh()
    assert shell.end_cell() == 0, "nothing has changed"
    session.add("later")
    assert shell.end_cell() == 2 and shell.written[-1][1] == "after step 1: 1 running, 1 waiting"


def test_a_message_of_a_page_writes_nothing(session: Session, shell: FakeShell) -> None:
    """Images take a second, and a page that asks right after a run would hold up who waits for its end."""
    session.step()
    session.explorer._on_message({"type": "ask", "ask": "1", "what": "why_view", "id": -1, "step": -1}, [])
    assert shell.end_message() == 0 and session.explorer.outputs._is_due
    assert shell.end_cell() == 2


def test_with_a_page_no_output_is_written_twice_in_a_second(session: Session, shell: FakeShell) -> None:
    async def cells() -> None:
        outputs = session.explorer.outputs
        now = [100.0]
        outputs._clock = lambda: now[0]
        session.explorer._on_message({"type": "shown"}, [])
        assert outputs.is_seen
        session.step()
        assert shell.end_cell() == 2
        now[0] += 0.4
        session.step()
        assert shell.end_cell() == 0 and outputs._timer is not None
        wait = outputs._timer.when() - asyncio.get_running_loop().time()
        assert 0.4 < wait <= 0.6, "the rest of the second"
        now[0] += 0.2
        session.step()
        assert shell.end_cell() == 0
        outputs.write()  # as the timer does
        assert len(shell.written) == 4 and shell.written[-1][1].startswith("after step 2: ")

    asyncio.run(cells())


def test_a_button_has_no_cell_and_a_run_is_left_in_peace(
    session: Session, shell: FakeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cells() -> None:
        monkeypatch.setattr(still_outputs, "REST_S", 0.05)
        session.settings.live_hz = 100
        explorer = session.explorer
        explorer._on_message({"type": "command", "command": "run"}, [])
        await asyncio.sleep(0.2)
        assert session.runner.is_running and shell.written == [] and shell.end_cell() == 0
        explorer._on_message({"type": "command", "command": "pause"}, [])
        await session.runner.done()
        assert shell.written == []
        await asyncio.sleep(0.5)
        step = explorer.recorder.last_step
        assert len(shell.written) == 2
        assert shell.written[0][1] == f"after step {step}: 1 running, 0 waiting"

    asyncio.run(cells())


def test_what_is_closed_gone_or_old_is_not_written(session: Session, shell: FakeShell) -> None:
    explorer = session.explorer
    views = [BlockView(explorer) for _ in range(3)]
    for view in views:
        view._ipython_display_()
    views[0].close()
    session.step()
    assert shell.end_cell() == 4, "the two of the fixture and two that are open"
    kept = WhyView(explorer)
    for _ in range(MAX_OUTPUTS + 3):
        kept._ipython_display_()
    session.step()
    assert shell.end_cell() == MAX_OUTPUTS
    session.step()
    session.close()
    assert shell.end_cell() == MAX_OUTPUTS, "what the closed engine had come to"
    assert shell.written[-1][1].startswith("after step 2: ")


def test_an_output_holds_neither_engine_nor_widget(session: Session, shell: FakeShell) -> None:
    outputs, dead = session.explorer.outputs, weakref.ref(session.llm.engine)  # type: ignore[union-attr]
    session.step()
    session.close()
    FakeLLM.made.clear()
    gc.collect()
    assert dead() is None and outputs._is_due
    assert shell.end_cell() == 2


def test_an_error_is_none_of_the_cell(session: Session, shell: FakeShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "publish", lambda *_, **__: 1 / 0)
    session.step()
    assert shell.end_cell() == 0 and shell.hooks == []


def test_outside_of_a_kernel_ipython_shows_it_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_comms() as made:
        outputs = Outputs()
        for shell in (None, FakeShell()):
            monkeypatch.setattr(still_outputs, "get_ipython", lambda shell=shell: shell)
            with pytest.raises(NotImplementedError):
                outputs.show(None)
        outputs.mark()
        outputs.write()
        assert made == []
