"""Keeps the last records of an engine, bounded, so that any kept step can be looked at again.

A subscriber like any other: it knows neither the engine nor who reads from it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

from nvexplore.checks import check_int
from nvexplore.engine.events import RECORD_VERSION, Snapshot, StepRecord
from nvexplore.explore.chunk import Chunk, Segment, folded, segments_of, snapshot_of
from nvexplore.explore.lifecycle import Beginning, Directory, RequestInfo
from nvexplore.explore.state import FoldError, State


class Recorder:
    """Records the steps it is given: ``with engine.subscribe(recorder): ...``

    max_steps:      at most this many records are kept; the oldest go first, ``snapshot_every`` at a time.
    snapshot_every: a Snapshot stands before every so many records (fewer where ``max_steps`` is small).

    Pushing is cheap because folding is left to whoever asks: the snapshots between are made when a state is
    asked for or the records before them are dropped. May be read from any thread (hold ``lock`` to read several
    things of one moment); what it hands out is the reader's own, but records are shared and not to be changed.
    """

    def __init__(self, max_steps: int = 10_000, *, snapshot_every: int = 256) -> None:
        self.max_steps = check_int("max_steps", max_steps, minimum=1)
        every = check_int("snapshot_every", snapshot_every, minimum=1)
        self.snapshot_every = min(every, max(1, self.max_steps // 4))
        self.lock = threading.RLock()
        # Never empty once a snapshot has come; the first chunk always has its snapshot.
        self._chunks: list[Chunk] = []
        self._directory = Directory()
        self._running: State | None = None
        self._first_event = 0

    def push(self, item: Snapshot | StepRecord) -> None:
        """Take a Snapshot (first, and where records were lost) or the next StepRecord; one that is here is passed over.

        Raises, and keeps what it has: FoldError for a record that does not follow the last one or that comes
        before any snapshot; ValueError for a snapshot of an earlier step, which is another engine's.
        """
        with self.lock:
            if isinstance(item, StepRecord):
                self._push_record(item)
            elif isinstance(item, Snapshot):
                self._push_snapshot(item)
            else:
                raise TypeError(f"a recorder takes a Snapshot or a StepRecord, not {type(item).__name__}")

    __call__ = push

    def clear(self) -> None:
        """Forget all records and go on: the state after the last one is the snapshot to start from."""
        with self.lock:
            if self._chunks:
                snapshot = self._caught_up().snapshot()
                self._start(snapshot, self._directory.begun_before(snapshot.step))

    def _push_record(self, record: StepRecord) -> None:
        if record.version != RECORD_VERSION:
            raise FoldError(f"record version {record.version}: this nvexplore reads version {RECORD_VERSION}")
        if not self._chunks:
            raise FoldError(f"record of step {record.step} came before any snapshot")
        expected = self._chunks[-1].next_step
        if record.step < expected:
            return
        if record.step > expected:
            raise FoldError(
                f"record of step {record.step} does not follow: the recorder waits for step {expected}, "
                "or for a snapshot after which to go on"
            )
        if len(self._chunks[-1].records) >= self.snapshot_every:
            self._open_chunk()
        # An interrupt before the append leaves the record out, and the directory may be told twice.
        self._directory.see(record, self._first_event)
        self._chunks[-1].records.append(record)

    def _push_snapshot(self, snapshot: Snapshot) -> None:
        if snapshot.version != RECORD_VERSION:
            raise FoldError(f"snapshot version {snapshot.version}: this nvexplore reads version {RECORD_VERSION}")
        if not len(self):
            self._start(snapshot)
            return
        last = self._chunks[-1]
        if snapshot.step < last.next_step:
            raise ValueError(
                f"snapshot before step {snapshot.step}: another engine's, this recorder is at step "
                f"{last.next_step}; clear() it, or use a new Recorder"
            )
        if snapshot.step == last.next_step and last.records and snapshot.told <= last.records[-1].event:
            return  # nothing was missed, and the records tell the rest; a failed landing leaves events in no record
        self._running = None
        self._directory.start(snapshot)
        chunk = Chunk(snapshot.step, snapshot)
        if last.records:
            self._chunks.append(chunk)
            self._make_room()
        else:
            self._chunks[-1] = chunk
        self._first_event = snapshot.event

    def _start(self, snapshot: Snapshot, begun: Iterable[Beginning] = ()) -> None:
        directory = Directory()
        directory.start(snapshot)
        directory.recall(begun)
        self._running = None
        self._first_event = snapshot.event
        self._directory = directory
        self._chunks = [Chunk(snapshot.step, snapshot)]

    def _open_chunk(self) -> None:
        last = self._chunks[-1]
        chunk = Chunk(last.next_step, None, follows=True)
        if self._running is not None and self._running.step >= last.first_step:
            # Somebody follows the state, so there is little left to fold.
            chunk.snapshot = self._caught_up().snapshot()
        self._chunks.append(chunk)
        self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest chunks until a whole chunk more cannot exceed ``max_steps``."""
        while len(self._chunks) > 1 and len(self) > self.max_steps - self.snapshot_every:
            snapshot_of(self._chunks, 1)
            del self._chunks[0]
            self._directory.forget_before(self._chunks[0].first_step)

    def __len__(self) -> int:
        return sum(len(chunk.records) for chunk in self._chunks)

    def __bool__(self) -> bool:
        """True even when empty: ``if recorder`` asks whether there is one."""
        return True

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.records)

    @property
    def records(self) -> list[StepRecord]:
        """The kept records, oldest first."""
        with self.lock:
            return [record for chunk in self._chunks for record in chunk.records]

    @property
    def first_step(self) -> int | None:
        """The oldest kept step, or None."""
        return next((c.first_step for c in self._chunks if c.records), None)

    @property
    def last_step(self) -> int | None:
        """The newest step, or None."""
        return next((c.next_step - 1 for c in reversed(self._chunks) if c.records), None)

    @property
    def has_state(self) -> bool:
        """A snapshot has come, perhaps without records yet."""
        return bool(self._chunks)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """(first, last) missing step of each stretch that ran while nobody recorded."""
        with self.lock:
            pairs = pairwise(self._chunks)
            return [(a.next_step, b.first_step - 1) for a, b in pairs if a.next_step < b.first_step]

    @property
    def requests(self) -> dict[int, RequestInfo]:
        """seq_id -> RequestInfo of the live requests and of those that left during the kept steps."""
        with self.lock:
            return dict(self._directory)

    @property
    def begun(self) -> list[Beginning]:
        """What no kept record tells: first admissions and first tokens from before the first of them, where known."""
        with self.lock:
            return self._directory.begun_before(self._chunks[0].first_step) if self._chunks else []

    def recall(self, begun: Iterable[Beginning]) -> None:
        """Note what another recorder's ``begun`` told of the same requests; for one that got the same items."""
        with self.lock:
            self._directory.recall(begun)

    @property
    def segments(self) -> list[Segment]:
        """(snapshot, the records that continue it), oldest first: several where there are gaps or a landing failed."""
        with self.lock:
            return segments_of(self._chunks)

    def stretch_of(self, step: int) -> list[StepRecord]:
        """The records with ``step`` among them of which each continues the one before; none if it is not kept."""
        return next((records for start, records in self.segments if 0 <= step - start.step < len(records)), [])

    def record_of(self, step: int) -> StepRecord:
        """The record of ``step``. Raises ValueError, naming what is kept, if it is not here."""
        with self.lock:
            chunk = self._chunk_of(step)
            return chunk.records[step - chunk.first_step]

    def state_at(self, step: int) -> State:
        """The state after ``step``. Raises ValueError, naming what is kept, if it is not here."""
        return self._state(step, 1)

    def state_before(self, step: int) -> State:
        """The state in which ``step`` began, without what happened since the step before it."""
        return self._state(step, 0)

    @property
    def state(self) -> State:
        """The state after the last record; ValueError before the first snapshot.

        For readers who follow along: it is not a copy, not to be changed, and moves on when asked for again.
        """
        with self.lock:
            if not self._chunks:
                raise ValueError("nothing is recorded yet: there is no state")
            return self._caught_up()

    def _state(self, step: int, num_more: int) -> State:
        with self.lock:
            chunk = self._chunk_of(step)
            state = State(snapshot_of(self._chunks, self._chunks.index(chunk)))
            return folded(state, chunk.records[: step - chunk.first_step + num_more])

    def _chunk_of(self, step: int) -> Chunk:
        check_int("step", step)
        index = bisect_right([chunk.first_step for chunk in self._chunks], step) - 1
        if index >= 0 and step < self._chunks[index].next_step:
            return self._chunks[index]
        if self.first_step is None:
            raise ValueError(f"step {step} is not recorded: nothing is")
        kept = f"steps {self.first_step} to {self.last_step}"
        kept += "".join(f", without {first} to {last}" for first, last in self.gaps)
        raise ValueError(f"step {step} is not recorded: kept are {kept}")

    def _caught_up(self) -> State:
        # Taken away while it is folded: an interrupt must not leave a half-applied record in it.
        state, self._running = self._running, None
        last = self._chunks[-1]
        if state is None or state.step < last.first_step:
            state = State(snapshot_of(self._chunks, len(self._chunks) - 1))
        self._running = folded(state, last.records[state.step - last.first_step :])
        return self._running
