"""Answers what a page asks about one step: the questions of the views, and those that every page has. Knows no comm."""

from __future__ import annotations

import contextlib
import importlib
import logging
import numbers
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from nvexplore.engine.events import StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.messages import sendable
from nvexplore.notebook.mirror import Mirror
from nvexplore.notebook.past import Known, Past

if TYPE_CHECKING:
    from nvexplore.runner.memory_ledger import MemoryLedger

Decode = Callable[[list[int]], str]
Answer = dict[str, Any]
MAX_TEXT = 600
"""Characters of a text that a browser asks for; of a longer one the end is cut (a sequence's text: the beginning)."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Context:
    """What a view's ``answer`` may read, and must not change.

    step:     the step that is looked at; -1 when nothing has run.
    state:    everything right after it; of the newest step also what has happened since.
    record:   the step's record, if it is kept. recorder: all records that are.
    decode:   token ids -> text, where there is a tokenizer. memory: where there is a ledger of it.
    mirror:   the state with what it needs to show it: who had ended, and the last steps' columns.
    """

    step: int
    state: State
    record: StepRecord | None
    recorder: Recorder
    decode: Decode | None
    memory: MemoryLedger | None
    mirror: Mirror

    def text(self, token_ids: list[int]) -> str:
        """What the token ids say; the ids themselves where there is no tokenizer."""
        return " ".join(map(str, token_ids)) if self.decode is None else self.decode(token_ids)


_views: dict[str, type] = {}


def register(name: str, view: type) -> None:
    """A view's class by the name of its files, "why_view": ``name`` is what its page asks for."""
    _views[name] = view


def view_class(name: str) -> type[Any] | None:
    """The view of that name; its module is loaded now if nobody has loaded it yet."""
    is_there = name in _views or not re.fullmatch(r"[a-z]\w*_view", name)
    if not is_there and (Path(__file__).parent / f"{name}.py").is_file():
        importlib.import_module(f"{__package__}.{name}")
    return _views.get(name)


class Answers:
    """Answers from the live mirror of ``feed`` and from what ``recorder`` keeps.

    decode: gives the function that turns token ids into text, or None when it has gone. memory: see ``Context``.
    """

    def __init__(
        self,
        feed: Feed,
        recorder: Recorder,
        decode: Callable[[], Decode | None],
        memory: MemoryLedger | None = None,
    ) -> None:
        self._feed, self._decode, self._memory = feed, decode, memory
        self.read_from(recorder)

    def read_from(self, recorder: Recorder) -> None:
        """From now on answer from this recorder."""
        self.past = Past(recorder, self._feed.limits)

    @property
    def recorder(self) -> Recorder:
        return self.past.recorder

    def answer(self, what: object, id: object, step: object = -1) -> Answer:
        """The answer to ``what`` about ``id`` at ``step`` (-1: the newest); {} if there is nothing to tell.

        Values are plain ones, texts and bytes. What goes wrong is told as {"error": text}.
        """
        if not isinstance(what, str) or not _is_int(id) or not _is_int(step):
            return {}
        try:
            if what == "frame":
                return self.past.frame(step, self._known(), self._feed.run)
            if step >= 0:
                return self._at(what, id, self.past.mirror(step, self._known()))
            with self._feed.lock:
                self._feed.fold()
                mirror = self._feed.mirror
                return {} if mirror is None else self._at(what, id, mirror)
        except Exception as error:
            logger.debug("no answer to %s about %s at step %s", what, id, step, exc_info=True)
            return {"error": str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"}

    def reply(self, content: Answer) -> tuple[Answer, list[bytes]]:
        """The message that answers a page's question, and its binary parts; it tells what it cost, in ms."""
        began = time.perf_counter()
        told = self.answer(content.get("what"), content.get("id"), content.get("step", -1))
        try:
            answer, places, buffers = packed(told)
        except TypeError as error:
            answer, places, buffers = {"error": str(error)}, [], []
        if answer:  # a page asks accordingly
            answer.setdefault("ms", round(1e3 * (time.perf_counter() - began), 1))
        where = {"buffers": places} if buffers else {}
        return {**answer, **where, "type": "answer", "ask": content.get("ask")}, buffers

    def _known(self) -> Known:
        with self._feed.lock:
            self._feed.fold()
            return Known() if self._feed.mirror is None else Known.of(self._feed.mirror)

    def _at(self, what: str, id: int, mirror: Mirror) -> Answer:
        own = {"block": self._block, "sequence": self._sequence}.get(what)
        ask = own or getattr(view_class(what), "answer", None)
        return {} if ask is None else ask(self._context(mirror), id)

    def _context(self, mirror: Mirror) -> Context:
        step, record = mirror.state.step - 1, None
        with contextlib.suppress(ValueError):  # not kept
            record = self.recorder.record_of(step)
        return Context(step, mirror.state, record, self.recorder, self._decode(), self._memory, mirror)

    def _block(self, context: Context, id: int) -> Answer:
        """A block's hash and text."""
        state = context.state
        if not 0 <= id < state.num_blocks:
            return {}
        hash_, token_ids = state.hash[id], self.past.block_tokens(id, context.mirror)
        text = None if token_ids is None else context.text(token_ids)[:MAX_TEXT]
        return {"hash": None if hash_ is None else f"{hash_:016x}", "text": text}

    def _sequence(self, context: Context, id: int) -> Answer:
        """A sequence's prompt, and what it has said."""
        seq = context.mirror.find(id)
        if seq is None:
            return {}
        n = seq.num_prompt_tokens
        prompt, output = (context.text(ids)[-MAX_TEXT:] for ids in (seq.token_ids[:n], seq.token_ids[n:]))
        return {"prompt": prompt, "text": output}


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


Place = list[str | int]


def packed(value: Any) -> tuple[Any, list[Place], list[bytes]]:
    """``value`` as it can be sent: plain, the places of its bytes, and these. TypeError for what can't be sent."""
    places: list[Place] = []
    buffers: list[bytes] = []

    def plain(value: Any, place: Place) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return sendable(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            places.append(place)
            buffers.append(bytes(value))
            return None
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            number = float(value)
            return number if abs(number) < float("inf") else None  # JSON has neither infinity nor NaN
        if isinstance(value, dict):
            return {str(name): plain(item, [*place, str(name)]) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item, [*place, i]) for i, item in enumerate(value)]
        raise TypeError(f"a {type(value).__name__} at {'.'.join(map(str, place)) or 'the top'} can't be sent to a page")

    return plain(value, []), places, buffers
