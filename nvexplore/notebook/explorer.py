"""The model behind all views of one engine or recording: the only one that gets data. Knows no engine.

Displayed itself it is the dashboard: buttons, schedule and blocks. See widgets/README.md for what it sends.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import anywidget
import traitlets as t

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.notebook import assets, rerun
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.messages import Message, sendable

Decode = Callable[[list[int]], str]
_Callback = TypeVar("_Callback", bound=Callable[..., object])
COMMANDS = ("run", "pause", "step")
MAX_TEXT = 600
"""Characters of a text that a browser asks for; of a longer one the end is cut (a sequence's text: the beginning)."""


def _frame_json(_: object, explorer: Explorer) -> Message:
    return explorer._take_frame()


class Explorer(anywidget.AnyWidget):
    """Shows what an engine does: ``subscription = engine.subscribe(explorer.push)``, then display it.

    decode:     turns token ids into the text that is shown for blocks and sequences; None: ids are shown.
    limits:     see ``Feed``: hz, max_steps, max_entries, max_finished.
    selection:  ("none", -1), ("sequence", seq_id) or ("block", block_id); the views set it, and so may you.
    cursor:     the step that was clicked, -1 for the newest.
    status:     a line beside the buttons; "running" makes the pause button the one to press.

    Nothing is sent until the explorer or one of its views is displayed. It holds no engine; a bound method given as
    ``decode`` or as a callback is held weakly, so that neither does it keep the object behind it.
    """

    _esm = t.Unicode().tag(sync=True)
    _css = t.Unicode().tag(sync=True)
    key = t.Unicode().tag(sync=True)
    frame = t.Any().tag(sync=True, echo_update=False, to_json=_frame_json, from_json=lambda value, widget: None)
    selection = t.Tuple(t.Enum(("none", "sequence", "block")), t.Int(), default_value=("none", -1)).tag(sync=True)
    cursor = t.Int(-1).tag(sync=True)
    status = t.Unicode("").tag(sync=True)
    has_controls = t.Bool(False).tag(sync=True)

    def __init__(self, *, decode: Decode | None = None, **limits: Any) -> None:
        this = weakref.ref(self)
        self._feed = Feed(
            lambda message: _if_alive(this, Explorer._send_message, message),
            later=lambda seconds: bool(_if_alive(this, Explorer._call_later, seconds)),
            **limits,
        )
        self._decode = _weakly(decode) if decode is not None else None
        self._outgoing: Message | None = None
        self._on_select: list[Callable[[], Callable[[str, int], object] | None]] = []
        self._on_command: list[Callable[[], Callable[[str], object] | None]] = []
        self._views: weakref.WeakSet[rerun.Closable] = weakref.WeakSet()
        super().__init__(_esm=assets.module_text(), _css=assets.style_text(), key=uuid.uuid4().hex)
        self.on_msg(Explorer._on_message)
        rerun.close_previous(self, "Explorer")

    # From the engine.

    def push(self, item: Snapshot | StepRecord) -> None:
        """Take what ``Engine.subscribe`` delivers, on any thread; costs microseconds unless a message is due."""
        self._feed.push(item)

    def flush(self) -> None:
        """Show the newest step now."""
        self._feed.flush()

    def keyframe(self) -> None:
        """The run pauses or ends: send the whole state, so that a saved notebook has it."""
        self._feed.keyframe()

    # To whoever listens.

    def on_select(self, callback: Callable[[str, int], object]) -> None:
        """Call ``callback(kind, id)`` when something is selected, here or in a browser; on any thread."""
        self._on_select.append(_weakly(callback))

    def on_command(self, callback: Callable[[str], object]) -> None:
        """Call ``callback("run" | "pause" | "step")`` when a button is pressed; on any thread, so only set flags.

        The buttons appear with the first callback.
        """
        self._on_command.append(_weakly(callback))
        self.has_controls = True

    def select(self, kind: str, id: int) -> None:
        """Select a "sequence" or a "block" in all views; ("none", -1) selects nothing."""
        self.selection = (kind, id)

    @t.observe("selection")
    def _selected(self, change: Any) -> None:
        for find in self._on_select:
            callback = find()
            if callback is not None:
                callback(*change["new"])

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
        mirror = self._feed.mirror
        if mirror is None:
            return "Explorer(no engine yet)"
        return f"Explorer(step {mirror.state.step}, {mirror.state.num_blocks} blocks)"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self.start()
        return super()._repr_mimebundle_(**kwargs)

    # Messages.

    def _take_frame(self) -> Message:
        outgoing, self._outgoing = self._outgoing, None
        return self._feed.frame() if outgoing is None else outgoing

    def _send_message(self, message: Message) -> None:
        if self.comm is None:
            return
        if message["full"]:
            self._outgoing = message
            self.send_state("frame")
            return
        buffers = {name: part for name, part in message.items() if isinstance(part, bytes)}
        content = {name: part for name, part in message.items() if name not in buffers}
        self.send({"type": "delta", **content, "buffers": list(buffers)}, list(buffers.values()))

    def _call_later(self, seconds: float) -> bool:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        this = weakref.ref(self)
        loop.call_later(seconds, lambda: _if_alive(this, lambda explorer: explorer._feed.tick()))
        return True

    def _on_message(self, content: dict[str, Any], buffers: object) -> None:
        kind = content.get("type")
        if kind == "resync":
            self._feed.resync()
        elif kind == "shown":
            if not self._feed.is_active:
                self.start()
        elif kind == "command" and content.get("command") in COMMANDS:
            for find in self._on_command:
                callback = find()
                if callback is not None:
                    callback(content["command"])
        elif kind == "ask":
            self.send({"type": "answer", "ask": content.get("ask"), **self._answer(content)})

    def _answer(self, content: dict[str, Any]) -> dict[str, Any]:
        """What is too much to send at each step: a block's hash and text, a sequence's text."""
        with self._feed.lock:
            self._feed.fold()
            mirror, what, id = self._feed.mirror, content.get("what"), content.get("id")
            if mirror is None or not isinstance(id, int):
                return {}
            if what == "block" and 0 <= id < mirror.state.num_blocks:
                hash_, token_ids = mirror.state.hash[id], mirror.block_tokens(id)
                text = None if token_ids is None else self._text(token_ids)[:MAX_TEXT]
                return {"hash": None if hash_ is None else f"{hash_:016x}", "text": text}
            seq = mirror.find(id) if what == "sequence" else None
            if seq is None:
                return {}
            n = seq.num_prompt_tokens
            prompt, output = (self._text(ids)[-MAX_TEXT:] for ids in (seq.token_ids[:n], seq.token_ids[n:]))
            return {"prompt": prompt, "text": output}

    def _text(self, token_ids: list[int]) -> str:
        decode = self._decode() if self._decode is not None else None
        if decode is None:
            return " ".join(map(str, token_ids))
        return sendable(decode(token_ids))


def _weakly(callback: _Callback) -> Callable[[], _Callback | None]:
    """A function that returns ``callback``, or None once the object it is a method of is gone."""
    if inspect.ismethod(callback):
        return weakref.WeakMethod(callback)
    return lambda: callback


def _if_alive(this: weakref.ref[Explorer], call: Callable[..., Any], *arguments: Any) -> Any:
    explorer = this()
    return None if explorer is None else call(explorer, *arguments)
