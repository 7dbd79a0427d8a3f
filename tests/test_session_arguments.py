"""A session's numbers, names and conditions: what is none is refused in words, and nothing runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from IPython.core.error import UsageError

from nvexplore.notebook.errors import SessionError
from nvexplore.notebook.runner import TaskRunner
from nvexplore.notebook.session import Session
from tests.conftest import RunPython
from tests.notebook_fakes import Shell


@pytest.fixture
def session(loaded: Shell) -> Session:
    """One with a request that would take 20 steps."""
    loaded.run("%nvx_add --max-tokens 20 --id r abc")
    session: Session = loaded["session"]
    return session


def num_steps(session: Session) -> int:
    assert session.llm is not None
    return session.llm.engine.next_step


NO_COUNTS: list[tuple[Any, type[Exception]]] = [
    (-1, ValueError),
    (-(10**20), ValueError),
    (1.5, TypeError),
    (3.0, TypeError),
    ("3", TypeError),
    (True, TypeError),
    ([3], TypeError),
]


@pytest.mark.parametrize(("number", "error"), NO_COUNTS, ids=repr)
def test_a_number_of_steps_that_is_none_runs_nothing(session: Session, number: Any, error: type[Exception]) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("max_steps", lambda: session.run(max_steps=number)),
        ("max_steps", lambda: session.runner.run_blocking(max_steps=number)),
        ("n", lambda: session.runner.step(number)),
    ]
    for name, call in calls:
        with pytest.raises(error, match=rf"^{name}="):
            call()
    assert num_steps(session) == 0 and session.runner.status == "paused"


@pytest.mark.parametrize(("number", "expected"), [(0, 0), (3, 3), (np.int64(2), 2), (None, 20)], ids=repr)
def test_a_number_of_steps_is_made(session: Session, number: Any, expected: int) -> None:
    assert session.run(max_steps=number).tally.num_steps == num_steps(session) == expected


@pytest.mark.parametrize("hz", [-1, float("nan"), float("inf"), "3", True, [1]], ids=repr)
def test_a_pace_that_is_none_starts_nothing(session: Session, hz: Any) -> None:
    async def cell() -> None:
        with pytest.raises((TypeError, ValueError), match=r"^hz="):
            session.run_live(hz=hz)
        await asyncio.sleep(0.01)
        assert num_steps(session) == 0 and not session.runner.is_running

    asyncio.run(cell())


def test_a_pace_of_zero_is_no_limit(session: Session) -> None:
    async def cell() -> None:
        session.settings.live_hz = 1
        await session.run_live(hz=0).done()

    asyncio.run(cell())
    assert num_steps(session) == 20


@pytest.mark.parametrize(
    ("until", "number"),
    [
        ("step==-3", "-3"),
        ("step == -1", "-1"),
        ("step==1.5", "1.5"),
        ("-3==step", "-3"),
        ("step=='3'", "'3'"),
        ("step==None", "None"),
        ("step==1e400", "1e309"),
        ("preempt,step==-3", "-3"),
        ("step==5,step==2.5", "2.5"),
    ],
)
def test_a_step_that_can_not_be_is_refused(loaded: Shell, session: Session, until: str, number: str) -> None:
    for run in (session.run, session.run_live):
        with pytest.raises(SessionError) as error:
            run(until=until)
        assert str(error.value).endswith(f": no step has the number {number}: they are 0, 1, 2, ...")
    for magic in ("run", "run --live", "step", "step -n 2"):
        with pytest.raises(UsageError, match="no step has the number"):
            loaded.run(f'%nvx_{magic} --until="{until}"')
    assert num_steps(session) == 0


@pytest.mark.parametrize(("until", "last"), [("step==3", 3), ("step==4.0", 4), ("step==2+3", 5), ("0<=step==6", 6)])
def test_a_step_that_can_be_is_stopped_at(session: Session, until: str, last: int) -> None:
    assert session.run(until=until).tally.last_step == last


def test_a_name_alone_is_one_breakpoint(session: Session) -> None:
    session.stops.breakpoints = "finish"
    assert session.stops.breakpoints == ("finish",)
    session.stops.breakpoints = iter(["finish", "miss", "finish"])
    assert session.stops.breakpoints == ("finish", "miss")
    for wrong, error, words in [
        ("late", ValueError, "no event 'late': there are preempt"),
        ("finish,miss", ValueError, "no event 'finish,miss'"),
        (["late"], ValueError, "no event 'late'"),
        (3, TypeError, "breakpoints=3: must be names of events, not int"),
        (None, TypeError, "breakpoints=None: must be names"),
        ([3], TypeError, r"breakpoints\[0\]=3: must be a str"),
        (["finish", []], TypeError, r"breakpoints\[1\]=\[\]: must be a str"),
    ]:
        with pytest.raises(error, match=f"^{words}"):
            session.stops.breakpoints = wrong
        assert session.stops.breakpoints == ("finish", "miss")  # as it was
    session.stops.breakpoints = ()
    assert session.run().found is None


@pytest.mark.parametrize("term", [3, b"block", ["block"], 1.5], ids=repr)
def test_a_term_that_is_no_text_is_named(session: Session, term: Any) -> None:
    with pytest.raises(TypeError) as error:
        session.glossary(term)
    assert str(error.value) == f"term={term!r}: must be a str, not {type(term).__name__}"


@pytest.mark.parametrize("what", [3, None, [], {}], ids=repr)
def test_a_name_that_is_no_text_is_named(session: Session, what: Any) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("no plot ", lambda: session.plot(what)),
        ("no frame ", lambda: session.frame(what)),
        ("no view ", lambda: session.watch(what)),
        ("request_id=", lambda: session.abort(what)),
    ]
    for words, call in calls:
        with pytest.raises((ValueError, TypeError)) as error:
            call()
        assert str(error.value).startswith(f"{words}{what!r}: ")
    assert session.has_work and session.display._explorer is None  # what is refused makes nothing


def test_a_runner_alone_knows_a_number_too() -> None:
    made: list[int] = []
    runner = TaskRunner(lambda: made.append(1), lambda: len(made) < 9)
    with pytest.raises(ValueError, match=r"^max_steps=-1: must be at least 0"):
        runner.run_blocking(max_steps=-1)
    assert not made and runner.run_blocking(max_steps=2) == 2


def test_a_session_without_traitlets_says_what_to_install(run_python: RunPython) -> None:
    """As where nvexplore is installed without an extra."""
    packages = ("traitlets", "IPython", "ipywidgets", "anywidget", "torch", "transformers")
    out = run_python(
        f"import sys; sys.modules.update(dict.fromkeys({packages!r}))\n"
        "try: from nvexplore.notebook.session import Session\n"
        "except ImportError as error: print(error)\n"
    )
    assert out == 'a session needs traitlets: pip install "nvexplore[notebook]"\n'
