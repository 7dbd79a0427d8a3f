"""What a running task and an open page call of a session, without keeping it, or its model's memory, alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from nvexplore.generation import check_progress
from nvexplore.notebook.errors import NO_MODEL, SessionError

if TYPE_CHECKING:
    from nvexplore.llm import LLM
    from nvexplore.notebook.runner import TaskRunner
    from nvexplore.notebook.session import Session


class Links:
    """Calls that reach the session as long as somebody else keeps it."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)

    def step(self) -> None:
        """One step of a run; the subscribers do the rest."""
        llm = self._llm()
        check_progress(llm.step(), llm.engine)

    def advance(self) -> None:
        """One step of a run that nobody asked to stop at a certain step: the next one may be running already."""
        self._llm().advance()

    def settle(self) -> bool:
        """What is running comes to its end; whether anything was."""
        session = self._session()
        if session is None or not session.is_loaded:
            return False
        before = session.recorder.last_step
        self._llm().settle()
        return session.recorder.last_step != before

    def _llm(self) -> LLM:
        session = self._session()
        if session is None or session.llm is None:
            raise SessionError(NO_MODEL)
        return session.llm

    def has_work(self) -> bool:
        session = self._session()
        return session is not None and session.has_work

    def changed(self, runner: TaskRunner) -> None:
        """A run started, paused or ended."""
        session = self._session()
        if session is not None and session.is_loaded:
            session.stops.follow(is_running=runner.is_running)
            session.display.show(runner.status)

    def command(self, name: str) -> None:
        """A button was pressed. This may be any thread: flags are set, and no step is made."""
        session = self._session()
        if session is None or not session.is_loaded:
            return
        if name == "run":
            session.run_live()
        elif name == "pause":
            session.pause()
        elif name == "step":
            session.stops.begin()
            session.runner.step()
