"""An interrupt of a magic says in one line what it left and how to go on, and still stops the cell (J04)."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
from IPython.core.error import UsageError

from nvexplore.notebook.errors import Interrupted
from nvexplore.notebook.session import Session
from tests.fakes import unconstrained
from tests.notebook_fakes import Shell


@pytest.fixture(params=["", "--overlap"], ids=["in turn", "overlapped"])
def interrupted(shell: Shell, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell with two requests, whose 4th step raises KeyboardInterrupt in the runner the first time."""
    shell.run(f"loaded = %nvx_load {request.param} -o llm", "session = loaded.session")
    shell.run("%nvx_add --id a --max-tokens 9 abc", "%nvx_add --id b --max-tokens 3 b")
    runner = shell["llm"].engine.runner
    calls: list[int] = []

    def cut_off(compute: Callable[..., Any]) -> Callable[..., Any]:
        def cut(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return compute(*arguments)

        return cut

    for name in ("run", "launch") if request.param else ("run",):  # a step asked for by itself is not launched ahead
        monkeypatch.setattr(runner, name, cut_off(getattr(runner, name)))
    return shell


def test_a_run_says_how_far_it_came(interrupted: Shell) -> None:
    with pytest.raises(Interrupted) as error:
        interrupted.run("%nvx_run\nafter = 1")
    made = len(interrupted["session"].recorder)
    assert "after" not in interrupted.ip.user_ns
    assert interrupted.shown == f"KeyboardInterrupt: {error.value}\n"
    done = sum(request.is_finished for request in interrupted["session"].requests)
    assert str(error.value) == f"interrupted after {made} steps; {2 - done} unfinished: %nvx_run goes on"
    assert made in (2, 3)  # overlapped, the one before was still being computed
    rest = interrupted.run("%nvx_run")
    assert "all requests are finished" in repr(rest)
    a, b = interrupted["session"].requests
    assert a.token_ids == unconstrained(list(b"abc"), 9) and b.token_ids == unconstrained(list(b"b"), 3)


@pytest.mark.parametrize("cell", ["%nvx_step -n 9", "%nvx_run --until preempt", "session.run()"])
def test_all_that_runs_says_it(interrupted: Shell, cell: str) -> None:
    with pytest.raises(KeyboardInterrupt):  # as which a program may catch it
        interrupted.run(cell)
    assert interrupted.shown.startswith("KeyboardInterrupt: interrupted after ")
    assert interrupted.shown.count("\n") == 1


def test_a_single_step_says_it(interrupted: Shell) -> None:
    with pytest.raises(Interrupted, match=r"^interrupted; [12] unfinished: %nvx_step goes on$"):
        interrupted.run(*["%nvx_step"] * 4)
    assert interrupted.shown.count("\n") == 1
    interrupted.run("%nvx_run")
    assert interrupted["session"].requests[0].token_ids == unconstrained(list(b"abc"), 9)


def test_front_ends_take_it_for_what_it_is(interrupted: Shell) -> None:
    """They know an interrupt by the name of its class; an error of another kind keeps its traceback."""
    session: Session = interrupted["session"]
    with pytest.raises(Interrupted) as error:
        session.run()
    assert type(error.value).__name__ == "KeyboardInterrupt" and error.value.__suppress_context__
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        interrupted.ip.showtraceback((type(error.value), error.value, error.tb))
    assert shown.getvalue() == f"KeyboardInterrupt: {error.value}\n"
    with pytest.raises(UsageError):
        interrupted.run("%nvx_step -n 0")
