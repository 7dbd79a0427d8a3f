"""Public bug reports about a notebook whose cell is running: buttons and event loops. Each as its small input.

The ids are this project's own numbering; each docstring names the public thread it comes from. More in
tests/test_task_runner.py and test_session.py.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

import nvexplore
from nvexplore import LLM
from nvexplore.notebook.session import Session
from tests.comms import RecordedComm, comm_of, recorded_comms
from tests.fakes import unconstrained
from tests.notebook_fakes import FakeLLM
from tests.reports.common import GREEDY, toy_llm


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


# ---------------------------------------------------------------------------------------------------------- J16


class AtStep:
    """Calls ``then`` when the n-th step from now on begins."""

    def __init__(self) -> None:
        self.left = 0
        self.then: Callable[[], Any] = int

    def __call__(self, stage: str) -> None:
        if stage == "begin":
            self.left -= 1
            if self.left == 0:
                self.then()

    def arm(self, n: int, then: Callable[[], Any]) -> None:
        self.left, self.then = n, then


@pytest.fixture
def at_step(comms: list[RecordedComm], monkeypatch: pytest.MonkeyPatch) -> AtStep:
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "made", [])
    return AtStep()


def watched(at_step: AtStep) -> Session:
    """A session whose views are shown, with a request of 100 steps."""
    session = Session()
    session.load(interrupt=at_step)
    session.explorer.start()
    session.add("hello", max_tokens=100, request_id="a")
    return session


def click(session: Session, command: str) -> Callable[[], Any]:
    """What the kernel does with a button's message: it lies in the queue until the loop takes its turn."""
    loop, comm = asyncio.get_running_loop(), comm_of(session.explorer)
    return lambda: loop.call_soon(lambda: comm.send_custom(type="command", command=command))


def said(session: Session) -> list[int]:
    return session.requests[0].token_ids


EXPECTED = unconstrained(list(b"hello"), 100)


def test_j16_a_button_cannot_stop_a_blocking_run_and_does_not_spoil_the_next(at_step: AtStep) -> None:
    """vscode-jupyter#17360, ipykernel#758: the click at step 5 of 100 is handled when the cell is over. No tricks."""

    async def cells() -> None:
        session = watched(at_step)
        at_step.arm(5, click(session, "pause"))
        session.run()
        assert said(session) == EXPECTED and session.runner.status == "idle"
        await asyncio.sleep(0)  # the cell is over: the click arrives, and there is nothing to pause
        session.add("more", max_tokens=3)
        await asyncio.sleep(0)
        assert session.run().tally.num_steps == 3
        session.close()

    asyncio.run(cells())


@pytest.mark.parametrize("command", ["pause", "step"])
def test_j16_a_button_stops_a_live_run_at_once(at_step: AtStep, command: str) -> None:
    """jupyter-ui-poll#56, #13: in a live run the click is handled between two steps; "step" makes one more."""

    async def cells() -> None:
        session = watched(at_step)
        at_step.arm(5, click(session, command))
        runner = session.run_live(hz=5000)  # a step a slice, so that the loop has its turn after each
        await runner.done()
        assert session.llm is not None
        assert session.llm.engine.next_step in ((5, 6) if command == "pause" else (6, 7))
        assert runner.status == "paused" == session.explorer.status
        session.run()
        assert said(session) == EXPECTED
        session.close()

    asyncio.run(cells())


def test_j16_an_interrupt_or_another_thread_stops_a_blocking_run(at_step: AtStep) -> None:
    """ipywidgets#3281, the sibling: Ctrl-C undoes the step it hits; a subshell's ``pause`` lets it end."""
    session = watched(at_step)

    def interrupt() -> None:
        raise KeyboardInterrupt

    at_step.arm(5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.run()
    assert session.llm is not None and session.llm.engine.next_step == 4
    at_step.arm(5, session.pause)
    session.run()
    assert session.llm.engine.next_step == 9 and session.runner.status == "paused"
    session.run()
    assert said(session) == EXPECTED
    session.close()


FORBIDDEN = {"do_one_iteration", "run_until_complete", "run_forever", "_run_once", "nest_asyncio", "jupyter_ui_poll"}


def test_j16_j17_no_private_kernel_calls_and_no_loop_of_ones_own() -> None:
    """jupyter-ui-poll#50, notebook#4312: tricks with the kernel's loop break with each ipykernel; none are used."""
    wrong, looked_at = [], 0
    for source in sorted(Path(nvexplore.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Attribute):
                names = [node.attr, f"{getattr(node.value, 'id', '')}.{node.attr}"]
            elif isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0], *(alias.name for alias in node.names)]
            looked_at += len(names)
            wrong += [f"{source.name}:{name}" for name in names if name in FORBIDDEN | {"ipykernel", "asyncio.run"}]
    assert looked_at > 1000 and wrong == []


# ---------------------------------------------------------------------------------------------------------- J17


def use_all(llm: LLM) -> list[list[int]]:
    """Every synchronous way to make tokens."""
    ids = [llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids]
    ids.append(llm.chat([{"role": "user", "content": "hi"}], GREEDY).token_ids)
    ids.append([token for delta in llm.stream("abc", GREEDY) for token in delta.token_ids])
    seq = llm.add_request("abc", GREEDY)
    llm.plan()
    llm.step()
    list(llm.steps())
    assert not llm.abort(seq.request_id)
    return [*ids, seq.completion_token_ids]


def test_j17_an_llm_works_inside_a_running_loop(toy: Path) -> None:
    """notebook#4312, FastChat#684: asyncio.run in a library call fails where a loop runs, as it does in a kernel."""

    async def cell() -> list[list[int]]:
        before = asyncio.get_running_loop()
        with toy_llm(toy) as llm:
            found = use_all(llm)
        assert asyncio.get_running_loop() is before
        return found

    with toy_llm(toy) as llm:
        expected = use_all(llm)
    assert expected[0] == expected[2] == expected[3]
    assert asyncio.run(cell()) == expected


def test_j17_the_awaitable_part_is_a_coroutine_in_any_loop(at_step: AtStep) -> None:
    """distilabel PR#501, the sibling: awaited from a script, in a loop of its own each time; nothing is patched."""
    names = ("run", "new_event_loop", "get_running_loop", "sleep")
    before = [getattr(asyncio, name) for name in names]
    session = watched(at_step)
    with pytest.raises(RuntimeError, match="no event loop runs here"):
        session.run_live()

    async def some(steps: int) -> None:
        session.runner.step(steps)
        await session.runner.done()

    asyncio.run(some(3))
    asyncio.run(some(4))
    assert session.llm is not None and session.llm.engine.next_step == 7
    session.run()
    assert said(session) == EXPECTED
    session.close()
    assert [getattr(asyncio, name) for name in names] == before
