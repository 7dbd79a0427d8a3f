"""Keeps true what stands in a notebook's file of the views that its cells display: text and image, after each run.

A view is displayed under an id of its own, so that its output can be written again from another cell. That is done
when a cell ends after which the engine stands elsewhere, never while it runs. A button has no cell: then it is done a
second after the engine has come to rest, and where a page is open no output is written twice in a second.

JupyterLab draws an output anew that is written again. Its page then finds the view that stood there and puts it back
as it was (``keeper`` in widgets/explorer.js), before anything is painted. What can't be reached is an output that the
page knows only from the file, because it was loaded again since: that one keeps its text until its cell runs again,
and the widgets' own state, which is saved too, tells the newest step.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from IPython.core.getipython import get_ipython

from nvexplore.notebook.weak import if_alive

MAX_OUTPUTS = 8
"""The newest outputs, which are kept up to date."""
REST_S = 1.0
logger = logging.getLogger(__name__)


class Still:
    """A moment of a view as text and image, without a widget: it changes no more."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.data = {mime: part for mime, part in data.items() if mime in ("text/plain", "image/png")}
        self.metadata = {mime: part for mime, part in metadata.items() if mime in self.data}

    def __repr__(self) -> str:
        return str(self.data["text/plain"])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.data, self.metadata


class Displayed:
    """How an Explorer and its views are displayed: as widgets that leave a text and an image, or these alone."""

    def still(self) -> Still:
        """What is shown now as text and image: for a front end without widgets, and for what is to stay as it is."""
        widget: Any = self
        data, metadata = widget._repr_mimebundle_() or ({"text/plain": repr(self)}, {})
        return Still(data, metadata or {})

    def _ipython_display_(self) -> None:
        explorer: Any = getattr(self, "explorer", self)
        explorer.outputs.show(self)


@dataclass
class _Output:
    id: str
    widget: weakref.ref[Any]
    text: str


class Outputs:
    """What an Explorer and its views have left in cells.

    is_seen: a page has said that it shows one of them. catch_up: called before anything is written.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._outputs: deque[_Output] = deque(maxlen=MAX_OUTPUTS)
        self.is_seen = False
        self.catch_up: Callable[[], object] = lambda: None
        self._is_due = self._is_hooked = False
        self._written = -REST_S
        self._timer: asyncio.TimerHandle | None = None

    def show(self, widget: Any) -> None:
        """Display a widget so that its output can be written again.

        Raises NotImplementedError outside of a kernel, which tells IPython to show it in the usual way.
        """
        if getattr(get_ipython(), "kernel", None) is None:
            raise NotImplementedError
        data, metadata = widget._repr_mimebundle_() or ({"text/plain": repr(widget)}, {})
        output = _Output(uuid.uuid4().hex, weakref.ref(widget), data["text/plain"])
        self._outputs.append(output)
        _publish(output.id, data, metadata, update=False)

    def mark(self) -> None:
        """The engine stands: what is displayed may tell of another step. Writes when the cell ends."""
        if not self._outputs:
            return
        self._is_due = True
        shell: Any = get_ipython()
        if shell is not None and not self._is_hooked:
            # Not "post_execute", which also follows each message of a page: it would hold up who waits for a run.
            shell.events.register("post_run_cell", self._cell_ended)
            self._is_hooked = True
        self._arm(REST_S)

    def hold(self) -> None:
        """The engine runs: write nothing before it stands again."""
        self._is_due = False
        self._stop_timer()

    def _cell_ended(self, result: object = None) -> None:
        shell: Any = get_ipython()
        shell.events.unregister("post_run_cell", self._cell_ended)
        self._is_hooked = False
        wait = self._written + REST_S - self._clock()
        # Without a page the notebook is run by a program, which hears of an output only while a cell runs.
        if wait <= 0 or not self.is_seen:
            self.write()
        else:
            self._arm(wait)

    def _arm(self, seconds: float) -> None:
        """Write after that time, unless it is done before; what was to happen sooner waits with it."""
        self._stop_timer()
        self._timer = after(seconds, weakref.ref(self), Outputs.write)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def write(self) -> None:
        """Write again what has changed. An error here is no error of the cell that ends."""
        self._stop_timer()
        if not self._is_due:
            return
        self.catch_up()
        self._is_due = False
        bundles: dict[tuple[int, str], Any] = {}
        for output in list(self._outputs):
            widget = output.widget()
            if widget is None or widget.comm is None:  # gone, or closed: its page shows nothing
                self._outputs.remove(output)
                continue
            try:
                key = (id(widget), output.text)
                if key not in bundles:
                    bundles[key] = widget.written_again(output.text)
                if (bundle := bundles[key]) is not None:
                    output.text = bundle[0]["text/plain"]
                    _publish(output.id, *bundle, update=True)
            except Exception:
                logger.debug("the output of %r was not written again", widget, exc_info=True)
        self._written = self._clock()


def after(seconds: float, this: weakref.ref[Any], call: Callable[[Any], object]) -> asyncio.TimerHandle | None:
    """Have ``call`` get what ``this`` leads to after that time, if it is still there; None where no event loop runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop.call_later(seconds, lambda: if_alive(this, call))


def _publish(id: str, data: dict[str, Any], metadata: dict[str, Any], *, update: bool) -> None:
    shell: Any = get_ipython()
    shell.display_pub.publish(data, metadata, transient={"display_id": id}, update=update)
