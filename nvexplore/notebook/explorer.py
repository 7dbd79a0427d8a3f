"""The model behind all views of one engine or recording: the only one that gets data. Knows no engine.

Displayed itself it is the dashboard: buttons, schedule and blocks. See widgets/README.md for what it sends.
"""

from __future__ import annotations

import uuid
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets as t

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook import assets, fallback, rerun, still_frames
from nvexplore.notebook.answers import Answers, Decode
from nvexplore.notebook.commands import Commands, Find, call_all
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.messages import Message
from nvexplore.notebook.still_outputs import Displayed, Outputs, after
from nvexplore.notebook.weak import if_alive, weakly

if TYPE_CHECKING:
    from nvexplore.runner.memory_ledger import MemoryLedger

SELECTABLE = ("none", "sequence", "block", "token")
POSITIONS = 2**22
"""A token is selected by one number: seq_id * POSITIONS + position (widgets/wire.js has it too)."""


class Explorer(Displayed, anywidget.AnyWidget):
    """Shows what an engine does: ``subscription = engine.subscribe(explorer.push)``, then display it.

    decode:     turns token ids into the text that is shown for blocks and sequences; None: ids are shown.
    limits:     see ``Feed``: hz, max_steps, max_entries, max_finished.
    recorder:   keeps the steps that can be looked at again; None: the explorer keeps them itself.
    memory:     where the engine's memory goes, for the view that shows it.
    selection:  ("none", -1), ("sequence", seq_id), ("block", block_id) or ("token", seq_id * POSITIONS + position);
                the views set it, and so may you.
    cursor:     the step that is looked at, as it was right after it; -1 follows the newest. Set it as you like.
    panels:     views that the dashboard shows beside schedule and blocks, by file name.
    events:     what a run can be stopped at, event -> when; the buttons offer these. breakpoints: the chosen ones.
    status:     a line beside the buttons; "running" makes the pause button the one to press.

    Nothing is sent until the explorer or one of its views is displayed. It holds no engine; a bound method given as
    ``decode`` or as a callback is held weakly, so that neither does it keep the object behind it.
    """

    _esm = t.Unicode().tag(sync=True)
    _css = t.Unicode().tag(sync=True)
    key = t.Unicode().tag(sync=True)
    frame = t.Any().tag(
        sync=True, echo_update=False, to_json=lambda _, it: it._take_frame(), from_json=lambda value, widget: None
    )
    selection = t.Tuple(t.Enum(SELECTABLE), t.Int(), default_value=("none", -1)).tag(sync=True)
    cursor = t.Int(-1, min=-1).tag(sync=True)
    panels = t.List(t.Unicode(), default_value=["why_view", "throughput_view"]).tag(sync=True)
    events = t.Dict(key_trait=t.Unicode(), value_trait=t.Unicode()).tag(sync=True)
    breakpoints = t.List(t.Unicode()).tag(sync=True)
    status = t.Unicode("").tag(sync=True)
    has_controls = t.Bool(False).tag(sync=True)

    def __init__(
        self,
        *,
        decode: Decode | None = None,
        recorder: Recorder | None = None,
        memory: MemoryLedger | None = None,
        **limits: Any,
    ) -> None:
        this = weakref.ref(self)
        self._feed = Feed(
            lambda message: if_alive(this, Explorer._send_message, message),
            later=lambda seconds: after(seconds, this, lambda explorer: explorer._feed.tick()) is not None,
            **limits,
        )
        find_decode = weakly(decode) if decode is not None else lambda: None
        self._owns_recorder = recorder is None
        self._answers = Answers(self._feed, recorder or Recorder(), find_decode, memory)
        self._outgoing: Message | None = None
        self._asked: deque[dict[str, Any]] = deque()
        self._is_text = False  # a page has said that no binary parts arrive there
        self.outputs = Outputs()
        self._on_select: list[Find] = []
        self._commands = Commands()
        self._views: weakref.WeakSet[rerun.Closable] = weakref.WeakSet()
        super().__init__(_esm=assets.module_text(), _css=assets.style_text(), key=uuid.uuid4().hex)
        self.on_msg(Explorer._on_message)
        rerun.close_previous(self, "Explorer")

    # From the engine.

    def push(self, item: Snapshot | StepRecord) -> None:
        """Take what ``Engine.subscribe`` delivers, on any thread; costs microseconds unless a message is due."""
        if self._owns_recorder and isinstance(item, StepRecord):
            self.recorder.push(item)
        run = self._feed.run
        self._feed.push(item)
        if self._owns_recorder and isinstance(item, Snapshot):
            if self._feed.run != run:  # another engine
                self._answers.read_from(Recorder())
            self.recorder.push(item)

    def flush(self) -> None:
        """Show the newest step now."""
        self._feed.flush()

    def keyframe(self) -> None:
        """The run pauses or ends: send the whole state, so that a saved notebook has it."""
        self._feed.keyframe()

    # To whoever listens.

    def on_select(self, callback: Callable[[str, int], object]) -> None:
        """Call ``callback(kind, id)`` when something is selected, here or in a browser; on any thread."""
        self._on_select.append(weakly(callback))

    def on_command(self, callback: Callable[[str], object]) -> None:
        """Call ``callback("run" | "pause" | "step")`` when a button is pressed; on any thread, so only set flags.

        The buttons appear with the first callback; a SessionError that it raises is shown beside them.
        """
        self._commands.add(callback)
        self.has_controls = True

    def retire(self) -> None:
        """There is nothing to run any more: the buttons go, and a page that presses one all the same is told."""
        self._commands.clear()
        self.has_controls = False

    def select(self, kind: str, id: int) -> None:
        """Select a "sequence", a "block" or a "token" in all views; ("none", -1) selects nothing."""
        self.selection = (kind, id)

    def look_at(self, step: int) -> None:
        """Set the cursor of all views; -1 follows the newest. Raises ValueError for a step that is not kept."""
        if step >= 0:
            self._answers.past.check(step)
        self.cursor = step

    @property
    def recorder(self) -> Recorder:
        """What keeps the steps that can be looked at."""
        return self._answers.recorder

    @t.observe("selection")
    def _selected(self, change: Any) -> None:
        call_all(self._on_select, *change["new"])

    # Being displayed.

    def start(self) -> None:
        """A view is displayed: news are sent from now on."""
        if self.comm is not None:
            self._feed.start()

    def add_view(self, view: rerun.Closable) -> None:
        """A view of this explorer; it is closed together with it."""
        self._views.add(view)

    def close(self) -> None:
        """Leave the page and the kernel, with all views; records that still come are ignored."""
        self._feed.stop()
        for view in list(self._views):
            view.close()
        layout = self.layout
        super().close()
        layout.close()

    def __repr__(self) -> str:
        with self._feed.lock:
            self._feed.fold()
        if (mirror := self._feed.mirror) is None:
            return "Explorer(no engine yet)"
        return f"Explorer(step {mirror.state.step}, {mirror.state.num_blocks} blocks)"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self.start()
        return self.completed(super()._repr_mimebundle_(**kwargs), "")

    def written_again(self, unless: str) -> Any:
        """What its output is to hold now; None if its text would be ``unless``, as it was."""
        return self.completed(super()._repr_mimebundle_(), "", unless)

    def completed(self, bundle: Any, view: str, unless: str = "") -> Any:
        """A widget's mimebundle with what is shown of ``view`` where there are no widgets (fallback.py)."""
        return fallback.completed(bundle, view, self._feed, self._answers, self.cursor, unless=unless)

    def _take_frame(self) -> Message:
        outgoing, self._outgoing = self._outgoing, None
        message = still_frames.compact(self._feed.frame()) if outgoing is None else outgoing
        message = still_frames.saved(message) | {"oldest": self._oldest()}
        return still_frames.as_text(message) if self._is_text else message

    def _oldest(self) -> int:
        """The first step that can be looked at; -1: none."""
        return -1 if (first := self.recorder.first_step) is None else first

    def _send_message(self, message: Message) -> None:
        if self.comm is None:
            return
        if not message["full"]:
            return self._send_parts("delta", message)
        self._outgoing = message = still_frames.compact(message)
        if still_frames.size_of(message) > still_frames.MAX_SAVED:
            self._send_parts("frame", message)
        self.send_state("frame")

    def _send_parts(self, kind: str, message: Message) -> None:
        content, buffers = still_frames.divided(message)
        self._post(content | {"type": kind, "oldest": self._oldest()}, buffers)

    def _post(self, content: Message, buffers: list[bytes]) -> None:
        self.send(*still_frames.with_texts(content, buffers) if self._is_text else (content, buffers))

    def _on_message(self, content: dict[str, Any], buffers: object) -> None:
        kind = content.get("type")
        if kind == "resync":
            self._is_text |= content.get("text") is True
            self._feed.resync()
        elif kind == "shown":
            self.outputs.is_seen = True
            self._reply({"type": "here"})
            if not self._feed.is_active:
                self.start()
        elif kind == "command":
            self._commands.press(content.get("command"), self._reply)
        elif kind == "ask":
            self._asked.append(content)
            self._answer_in_turn()

    def _answer_in_turn(self) -> None:
        """Answer what was asked, as soon as it does not make too many messages of a second."""
        while self._asked:
            wait = self._feed.seconds_until_free()
            if wait and after(wait, weakref.ref(self), Explorer._answer_in_turn) is not None:
                return
            self._answer(self._asked.popleft())

    def _answer(self, content: dict[str, Any]) -> None:
        self._reply(*self._answers.reply(content))

    def _reply(self, content: Message, buffers: list[bytes] | None = None) -> None:
        self._post(content, buffers or [])
        self._feed.note_message()
