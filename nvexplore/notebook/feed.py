"""Paces what a browser is told: an engine makes thousands of steps a second, a browser bears some thirty messages.

Nothing is lost by that: a message tells the state at its end and every step's column since the last one. Knows no
Jupyter: ``send`` takes a message, ``later`` calls back once after some seconds, and a test supplies both.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import FoldError
from nvexplore.notebook.messages import Message, Writer, nothing
from nvexplore.notebook.mirror import Mirror

MAX_PENDING = 4
"""Records kept back unread at most: a GPU that computes the next step covers the reading of a few, not of many."""
REST_S = 0.3
"""An engine that made no step for so long is at rest: its state is sent as a frame, which a saved notebook keeps."""
FRAME_BYTES_PER_S = 1_000_000
"""A frame larger than this is sent less often than each second, so that repeating it takes no more than this rate."""
ANSWERS = 10
"""Of a second's messages so many are left to others: answers (a page asks for no more while a run goes on), traits."""
SPARE = 4
"""And of these so many to traits: the answers wait."""
COST_SHARE = 0.02
"""Of the time so much is for messages: the longer one took, the later comes the next. While one is made no step is
launched, and a device that needs a millisecond for a step has nothing to do."""
MAX_WAIT_S = 0.25
"""But so long at most does one wait because the one before was dear: views are to move."""
TIMER_S = 0.001
"""A timer may be early by so much."""


class Feed:
    """Takes the snapshot and the records an engine delivers, and sends frames and deltas.

    send:       gets each message, on the thread that pushed or flushed.
    later:      ``later(seconds)`` must call ``tick()`` once after that time and return True, or return False where it
                can't. With it the newest step is shown even if nobody flushes.
    max_hz:     messages in any second at most, ten of them for others than the feed; ``hz`` is the steady pace,
                slower where messages are dear.
    frame_s:    seconds after which a frame is sent in place of a delta: a saved notebook keeps only frames.
    max_steps, max_entries, max_finished: how much of the past a frame holds: steps, entries in them (a sequence in a
                step is one), and sequences that have ended.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        *,
        later: Callable[[float], bool] = lambda seconds: False,
        clock: Callable[[], float] = time.monotonic,
        hz: float = 20.0,
        max_hz: int = 30,
        frame_s: float = 1.0,
        max_steps: int = 512,
        max_entries: int = 20_000,
        max_finished: int = 256,
    ) -> None:
        self._send, self._later, self._clock = send, later, clock
        self._interval, self._frame_s = 1.0 / hz, frame_s
        self.limits = {"max_steps": max_steps, "max_entries": max_entries, "max_finished": max_finished}
        self._writer: Writer | None = None
        self.lock = threading.RLock()
        self.seq = 0
        self.is_active = False
        self.run = 0  # how many engines there were; a message names the one it tells of
        self._lost: FoldError | None = None
        self._pending: list[Snapshot | StepRecord] = []
        self._due = self._frame_due = 0.0
        self._sent: deque[float] = deque(maxlen=max_hz)  # when the last messages went out, all of them
        self._own: deque[float] = deque(maxlen=max(1, max_hz - ANSWERS))  # and those of the feed
        self._needs_frame = self._is_armed = False
        self._tells_all = True  # the browsers' last message was a frame, and nothing happened since

    def push(self, item: Snapshot | StepRecord) -> None:
        """Take what an engine delivers. Cheap unless a message is due.

        Raises FoldError (a SnapshotNeeded) if a record is missing or was lost to an interrupt; a snapshot mends it.
        """
        with self.lock:
            if self._lost is not None and isinstance(item, StepRecord):
                raise self._lost
            self._pending.append(item)
            if self.is_active:
                if (wait := self._due - self._clock()) <= 0:
                    self._try_send()
                else:
                    self._arm(wait)
            if len(self._pending) >= MAX_PENDING or isinstance(item, Snapshot):
                self.fold()
            if self._lost is not None:
                raise self._lost

    def start(self) -> None:
        """Somebody looks: send a frame now, and news from now on."""
        with self.lock:
            self.is_active = self._needs_frame = True
            self._try_send()

    def stop(self) -> None:
        """Nobody looks any more: send nothing, go on following the engine."""
        with self.lock:
            self.is_active = False

    @property
    def mirror(self) -> Mirror | None:
        """What is known of the engine, up to the last ``fold``; None before the first snapshot."""
        return None if self._writer is None else self._writer.mirror

    def flush(self) -> None:
        """Show the newest step now (in a moment, if too many messages went out in the last second)."""
        with self.lock:
            self.fold()
            if self.is_active and (self._needs_frame or (self._writer and self._writer.has_news)):
                self._try_send()

    def keyframe(self) -> None:
        """The run pauses or ends: send all there is, so that it can be saved, before the cell has ended."""
        with self.lock:
            self.fold()
            if self.is_active and not self._tells_all:
                self._needs_frame = True
                self._try_send(may_use_all=True)

    def resync(self) -> None:
        """A browser has missed something: send all there is."""
        with self.lock:
            self._needs_frame = True
            if self.is_active:
                self._try_send()

    def tick(self) -> None:
        """The time asked of ``later`` is over: send what is left; a frame when things have come to rest."""
        with self.lock:
            self._is_armed = False
            if not self.is_active:
                return
            if (wait := self._due - self._clock()) > TIMER_S:  # a message went out since the timer was set
                self._arm(wait)
                return
            self.fold()
            if self._needs_frame or (self._writer and self._writer.has_news):
                self._try_send()
            elif not self._tells_all and self._clock() >= max(self._due + REST_S, self._frame_due):
                self.keyframe()
            if not self._tells_all:
                self._arm(self._interval)

    def frame(self) -> Message:
        """Everything, for one who asks out of turn (a page that is reloaded, a notebook that is saved)."""
        with self.lock:
            self.fold()
            if self._writer is None:
                return nothing(self.seq)
            if self._writer.has_news:
                # The one who asked is ahead of the others now; a delta would not fit both.
                self._needs_frame = True
            return self._writer.frame(self.seq)

    def fold(self) -> None:
        """Bring the mirror up to date with what was pushed."""
        pending, self._pending = self._pending, []
        for item in pending:
            if isinstance(item, Snapshot):
                self._take_snapshot(item)
            elif self._writer is not None and self._lost is None:
                self._tells_all = False
                try:
                    self._writer.mirror.apply(item)
                except FoldError as error:
                    self._lost = error

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        self._lost = None
        if self.mirror is not None and self.mirror.is_at(snapshot):
            return
        self._tells_all, self._needs_frame = False, True
        if self._writer is not None and self._writer.mirror.rebase(snapshot):
            self._writer.count_words()
        else:
            self.run += 1
            self._writer = Writer(Mirror(snapshot, **self.limits), self.run)

    def seconds_until_free(self) -> float:
        """Until another answer may go out; some of a second's messages are left to the engine's news and to traits."""
        with self.lock:
            now, most = self._clock(), max(1, (self._sent.maxlen or 0) - SPARE)
            recent = [sent for sent in self._sent if sent > now - 1.0]
            return 0.0 if len(recent) < most else recent[-most] + 1.0 - now

    def note_message(self) -> None:
        """Somebody else sent the browsers something: it counts among those that they get in a second."""
        with self.lock:
            self._sent.append(self._clock())

    def _wait(self, now: float, may_use_all: bool) -> float:
        """Seconds until another message may go out; may_use_all: what is left to others counts too."""
        counts = (self._sent,) if may_use_all else (self._sent, self._own)
        full = [sent[0] for sent in counts if len(sent) == sent.maxlen]
        return max(full, default=now - 1.0) + 1.0 - now

    def _try_send(self, *, may_use_all: bool = False) -> None:
        now = self._clock()
        wait = self._wait(now, may_use_all)
        if wait > 0:
            self._due = now + wait
            if self._arm(wait):
                return
        self.fold()
        self.seq += 1
        if self._writer is None:
            message = nothing(self.seq)
        elif self._needs_frame or now >= self._frame_due:
            message = self._writer.frame(self.seq, settle=True)
            size = sum(len(part) for part in message.values() if isinstance(part, bytes))
            self._frame_due = now + max(self._frame_s, size / FRAME_BYTES_PER_S)
        else:
            message = self._writer.delta(self.seq)
        self._needs_frame = False
        self._tells_all = bool(message["full"])
        self._due = now + self._interval
        self._sent.append(now)
        self._own.append(now)
        self._send(message)
        sent = self._clock()
        self._due = max(self._due, sent + min((sent - now) / COST_SHARE, MAX_WAIT_S))
        if not self._tells_all:
            self._arm(self._due - sent)

    def _arm(self, seconds: float) -> bool:
        """Have ``tick`` called; True if it will be."""
        if not self._is_armed:
            self._is_armed = self._later(seconds)
        return self._is_armed
