"""The views of one session: the Explorer that feeds them, made when somebody first looks.

Only then are the widgets imported: the names of the views are those of their files.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvexplore.explore.until import EVENTS
from nvexplore.notebook.errors import SessionError
from nvexplore.notebook.weak import if_alive

if TYPE_CHECKING:
    from nvexplore.engine.engine import Engine
    from nvexplore.engine.subscription import Subscription
    from nvexplore.explore.recorder import Recorder
    from nvexplore.notebook.explorer import Explorer
    from nvexplore.notebook.requests import Decode
    from nvexplore.notebook.runner import TaskRunner
    from nvexplore.runner.memory_ledger import MemoryLedger

NO_WIDGETS = 'the views need ipywidgets and anywidget: pip install "nvexplore[notebook]"'
PLURAL = {"block": "blocks", "slot": "slots"}
ORDER = ("schedule", "blocks", "slots", "prefix", "why", "memory", "throughput")


def _find_views() -> dict[str, str]:
    """The modules of the views by the names that a reader says: "blocks" is block_view; the known ones first."""
    files = sorted(path.stem for path in Path(__file__).parent.glob("*_view.py"))
    named = {PLURAL.get(name, name): file for file in files if (name := file.removesuffix("_view")) != "controls"}
    return {name: named[name] for name in sorted(named, key=lambda name: (*ORDER, name).index(name))}


MODULES = _find_views()
VIEWS = ("all", *MODULES)


def explorer_of(recorder: Recorder, decode: Decode | None, memory: MemoryLedger | None) -> Explorer:
    """An explorer of what a recorder has, the last steps without a gap to begin with."""
    try:
        from nvexplore.notebook.explorer import Explorer
    except ModuleNotFoundError as error:
        raise SessionError(f"{NO_WIDGETS} ({error.name} is missing)") from None
    explorer = Explorer(decode=decode, recorder=recorder, memory=memory)
    for snapshot, records in recorder.segments[-1:]:
        explorer.push(snapshot)
        for record in records:
            explorer.push(record)
    return explorer


class Display:
    """Shows an engine's steps in widgets; holds on to no engine, since a widget may outlive it.

    command: called with "run", "pause" or "step" when a button is pressed, on any thread.
    """

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        decode: Decode,
        runner: TaskRunner,
        command: Callable[[str], None],
    ) -> None:
        self._engine = weakref.ref(engine)
        self._recorder, self._decode, self._runner = recorder, decode, weakref.ref(runner)
        self._command = command
        self._explorer: Explorer | None = None
        self._subscription: Subscription | None = None
        self._will_refresh = False

    @property
    def explorer(self) -> Explorer:
        """Made at the first call, with the steps that the recorder still has."""
        if self._explorer is not None:
            return self._explorer
        engine, runner = self._engine(), self._runner()
        if engine is None or runner is None:
            raise SessionError("the engine of these views is gone")
        explorer = explorer_of(self._recorder, self._decode, getattr(engine.runner, "memory", None))
        self._subscription = engine.subscribe(explorer.push)
        explorer.on_command(self._command)
        explorer.events = EVENTS
        this = weakref.ref(self)
        explorer.outputs.catch_up = lambda: if_alive(this, Display._catch_up)
        self._explorer = explorer
        self.show(runner.status)
        return explorer

    def view(self, what: str) -> Any:
        """A widget of ``VIEWS``: "all" is the dashboard, with run, pause and step buttons and all the others."""
        if what not in VIEWS:
            raise ValueError(f"no view {what!r}: there are {', '.join(VIEWS)}")
        explorer = self.explorer
        if what == "all":
            return explorer
        from nvexplore.notebook.answers import view_class

        view = view_class(MODULES[what])
        if view is None:
            raise SessionError(f"{MODULES[what]}.py defines no View whose name is that of the file")
        return view(explorer)

    def show(self, status: str) -> None:
        """Say how the run stands; at a standstill the views get the whole state."""
        if self._explorer is not None:
            self._explorer.status = status
            self._explorer.flush()
            if status == "running":
                self._explorer.outputs.hold()
            else:
                self._explorer.keyframe()
                self._explorer.outputs.mark()

    def refresh(self) -> None:
        """Let the views catch up, with what happened since the last step too (a request was added).

        Where an event loop runs, in its next round: the whole pool is copied for it, and requests come by the hundred.
        """
        if self._explorer is None or self._will_refresh:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._refresh()
        else:
            self._will_refresh = True
            if (runner := self._runner()) is not None:
                self._explorer.status = runner.status
            self._explorer.outputs.mark()  # they are written when the cell ends, which is before the next round
            loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        if self._will_refresh:
            self._refresh()

    def _refresh(self) -> None:
        self._will_refresh = False
        engine, runner = self._engine(), self._runner()
        if self._explorer is not None and engine is not None and runner is not None:
            self._explorer.push(engine.snapshot())
            self.show(runner.status)

    def close(self) -> None:
        """Take the views off the engine; they keep what they show, since the page they stand on does."""
        explorer, subscription = self._explorer, self._subscription
        self._explorer = self._subscription = None
        if subscription is not None:
            subscription.close()
        if explorer is not None:
            explorer.status = "closed"
            explorer.retire()
            explorer.flush()
            explorer.keyframe()
            explorer.outputs.mark()
