"""What a running task and an open page call of a session, without keeping it, or its model's memory, alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from nvexplore.generation import check_progress
from nvexplore.notebook.errors import CLOSED, SessionError

if TYPE_CHECKING:
    from nvexplore.llm import LLM
    from nvexplore.notebook.runner import TaskRunner
    from nvexplore.notebook.session import Session


class Links:
    """Calls that reach the session as long as somebody else keeps it and it looks at the model that it has now.

    A session may be given another model: whoever has kept these links, a runner in ``Out`` or a view, means this one.
    """

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._own = weakref.ref(session.llm) if session.llm is not None else lambda: None

    def step(self) -> None:
        """One step of a run; the subscribers do the rest."""
        llm = self._llm()
        check_progress(llm.step(), llm.engine)

    def advance(self) -> None:
        """One step of a run that nobody asked to stop at a certain step: the next one may be running already."""
        self._llm().advance()

    def settle(self) -> bool:
        """What is running comes to its end; whether anything was."""
        session = self._find()
        if session is None:
            return False
        before = session.recorder.last_step
        self._llm().settle()
        return session.recorder.last_step != before

    def _find(self) -> Session | None:
        """The session, while it has the model of these links, open."""
        session = self._session()
        return session if session is not None and session.is_loaded and session.llm is self._own() else None

    def _llm(self) -> LLM:
        session = self._find()
        if session is None or session.llm is None:
            raise SessionError(CLOSED)
        return session.llm

    def has_work(self) -> bool:
        session = self._find()
        return session is not None and session.has_work

    def changed(self, runner: TaskRunner) -> None:
        """A run started, paused or ended."""
        session = self._find()
        if session is not None:
            session.stops.follow(is_running=runner.is_running)
            session.display.show(runner.status)

    def command(self, name: str) -> None:
        """A button was pressed. This may be any thread: flags are set, and no step is made.

        Raises SessionError where the model is closed.
        """
        session = self._find()
        if session is None:
            raise SessionError(CLOSED)
        if name == "run":
            session.run_live()
        elif name == "pause":
            session.pause()
        elif name == "step":
            session.stops.begin()
            session.runner.step()
