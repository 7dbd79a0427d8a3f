"""The engine's state as a fold of its records: start from a Snapshot, apply StepRecords, get the next state.

Reads records only; it never sees the engine. After each record it equals ``engine.snapshot()`` exactly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nvexplore.engine.events import (
    RECORD_VERSION,
    BlockEvents,
    Preempted,
    Snapshot,
    StepRecord,
)
from nvexplore.engine.snapshot import sequence_columns
from nvexplore.engine.subscription import SnapshotNeeded


class FoldError(SnapshotNeeded):
    """A record does not continue this state: one is missing, an interrupt tore it, or it is of another version."""


@dataclass(slots=True)
class SequenceState:
    """A live sequence; the fields are Sequence's. status: "waiting", "prefill" or "decode"."""

    seq_id: int
    request_id: str
    arrival: float
    priority: int
    status: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    token_ids: list[int]
    block_table: list[int]


@dataclass(slots=True)
class Changes:
    """What one ``apply`` touched: block ids, seq_ids, and the blocks written in that step."""

    blocks: set[int] = field(default_factory=set)
    sequences: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


Step = tuple[int, Callable[..., None], tuple[Any, ...]]


class State:
    """Queues, sequences, block tables, blocks with owners, ref count and hash, free-list order.

    owners[b]: seq_ids that hold block b, in the order they got it; only held blocks have an entry.
    free:      block ids, next to be allocated first.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        if snapshot.version != RECORD_VERSION:
            raise FoldError(f"snapshot version {snapshot.version}: this nvexplore reads version {RECORD_VERSION}")
        self.step = snapshot.step
        self.event, self.num_untold = snapshot.event, snapshot.num_untold
        self.time = snapshot.time
        self.block_size = snapshot.block_size
        self.num_blocks = snapshot.num_blocks
        self.max_num_seqs = snapshot.max_num_seqs
        self.max_num_batched_tokens = snapshot.max_num_batched_tokens
        self.waiting = list(snapshot.waiting)
        self.running = list(snapshot.running)
        columns = snapshot.sequences
        self.sequences: dict[int, SequenceState] = {}
        for row, seq_id in enumerate(columns.seq_id):
            self.sequences[seq_id] = SequenceState(
                seq_id,
                columns.request_id[row],
                columns.arrival[row],
                columns.priority[row],
                columns.status[row],
                columns.num_prompt_tokens[row],
                columns.num_cached_tokens[row],
                columns.num_computed_tokens[row],
                columns.num_preemptions[row],
                list(columns.token_ids[row]),
                list(columns.block_table[row]),
            )
        self.ref_count = list(snapshot.ref_count)
        self.hash = list(snapshot.hash)
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(snapshot.free)
        # A dict, since a list a block of a pool of a million takes seconds to make.
        self.owners: dict[int, list[int]] = {}
        for seq_id in (*self.running, *self.waiting):
            for block in self.sequences[seq_id].block_table:
                self.owners.setdefault(block, []).append(seq_id)
        self._changes = Changes()
        self._is_torn = False

    def apply(self, record: StepRecord) -> Changes:
        """Advance by one record. Events this state already holds are passed over. Raises FoldError on a gap."""
        if record.version != RECORD_VERSION:
            raise FoldError(f"record version {record.version}: this nvexplore reads version {RECORD_VERSION}")
        if record.step < self.step:
            return Changes()
        if record.step > self.step:
            raise FoldError(f"record of step {record.step} does not follow: the state waits for step {self.step}")
        if self._is_torn:
            raise FoldError(f"an interrupt tore this state in step {self.step}: start again from a snapshot")
        self._changes = changes = Changes()
        steps = [s for s in _in_order(self, record) if s[0] >= self.event]
        self._is_torn = True
        for _, change, arguments in steps:
            change(*arguments)
        changes.written.update(record.planned.spans.block_id)
        changes.blocks |= changes.written
        self.event, self.num_untold, self.time, self.step = record.event, 0, record.time, record.step + 1
        self._is_torn = False
        return changes

    def snapshot(self) -> Snapshot:
        """This state as a Snapshot, equal to the engine's at the same step."""
        seqs = [self.sequences[i] for i in sorted(self.sequences)]
        return Snapshot(
            step=self.step,
            event=self.event,
            num_untold=self.num_untold,
            time=self.time,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            waiting=list(self.waiting),
            running=list(self.running),
            sequences=sequence_columns(seqs),
            ref_count=list(self.ref_count),
            hash=list(self.hash),
            free=list(self.free),
        )

    # One method an event; each is exactly what the engine did, told in terms of this state.

    def added(
        self, seq_id: int, request_id: str, arrival: float, priority: int, token_ids: list[int], position: int
    ) -> None:
        self.sequences[seq_id] = SequenceState(
            seq_id, request_id, arrival, priority, "waiting", len(token_ids), 0, 0, 0, list(token_ids), []
        )
        self.waiting.insert(position, seq_id)
        self._changes.sequences.add(seq_id)

    def left(self, seq_id: int) -> None:
        """Aborted or finished: gone from its queue and from the live sequences."""
        queue = self.waiting if self.sequences[seq_id].status == "waiting" else self.running
        queue.remove(seq_id)
        del self.sequences[seq_id]
        self._changes.sequences.add(seq_id)

    def cache_reset(self) -> None:
        for block, hash_ in enumerate(self.hash):
            if hash_ is not None:
                self.hash[block] = None
                self._changes.blocks.add(block)

    def block_event(self, kind: str, block: int, seq_id: int, hash_: int | None) -> None:
        self._changes.blocks.add(block)
        if kind == "allocated" or kind == "hit":
            if self.ref_count[block] == 0:
                del self.free[block]
            self.ref_count[block] += 1
            self.owners.setdefault(block, []).append(seq_id)
            self.sequences[seq_id].block_table.append(block)
        elif kind == "freed":
            self.sequences[seq_id].block_table.pop()
            self.owners[block].remove(seq_id)
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                del self.owners[block]
                self.free[block] = None
        else:
            self.hash[block] = hash_  # "hashed", or "evicted" with None

    def admitted(self, seq_id: int, num_cached_tokens: int) -> None:
        seq = self.sequences[seq_id]
        self.waiting.remove(seq_id)
        self.running.append(seq_id)
        seq.status = "prefill"
        seq.num_cached_tokens = seq.num_computed_tokens = num_cached_tokens
        self._changes.sequences.add(seq_id)

    def preempted(self, seq_id: int, position: int) -> None:
        seq = self.sequences[seq_id]
        self.running.remove(seq_id)
        self.waiting.insert(position, seq_id)
        seq.status = "waiting"
        seq.num_cached_tokens = seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        self._changes.sequences.add(seq_id)

    def committed(self, record: StepRecord) -> None:
        planned = record.planned
        for seq_id, context_len in zip(planned.seq_id, planned.context_len, strict=True):
            self.sequences[seq_id].num_computed_tokens = context_len
            self._changes.sequences.add(seq_id)
        for seq_id, token_id in zip(record.committed.seq_id, record.committed.token_id, strict=True):
            seq = self.sequences[seq_id]
            seq.token_ids.append(token_id)
            seq.status = "decode"


def _in_order(state: State, record: StepRecord) -> list[Step]:
    """The record's events as calls on ``state``, by number."""
    before, planned, committed = record.before, record.planned, record.committed
    added = before.added
    columns = zip(
        added.number, added.seq_id, added.request_id, added.arrival, added.priority, added.token_ids, added.position,
        strict=True,
    )  # fmt: skip
    steps: list[Step] = [(number, state.added, row) for number, *row in columns]  # type: ignore[misc]
    steps += [(n, state.left, (s,)) for n, s in zip(before.aborted_number, before.aborted_seq_id, strict=True)]
    steps += [(n, state.cache_reset, ()) for n in before.cache_reset_number]
    admitted = planned.admitted
    steps += [
        (n, state.admitted, (s, c))
        for n, s, c in zip(admitted.number, admitted.seq_id, admitted.num_cached_tokens, strict=True)
    ]
    if committed.number is not None:
        steps.append((committed.number, state.committed, (record,)))
    steps += [(n, state.left, (s,)) for n, s in zip(committed.finished_number, committed.finished_seq_id, strict=True)]
    for events in (before.blocks, planned.blocks, committed.blocks):
        steps += _block_steps(state, events)
    steps += _preempted_steps(state, before.preempted)
    steps += _preempted_steps(state, planned.preempted)
    steps.sort(key=lambda step: step[0])
    return steps


def _block_steps(state: State, events: BlockEvents) -> Iterator[Step]:
    columns = zip(events.number, events.kind, events.block_id, events.seq_id, events.hash, strict=True)
    return ((number, state.block_event, row) for number, *row in columns)  # type: ignore[misc]


def _preempted_steps(state: State, events: Preempted) -> Iterator[Step]:
    columns = zip(events.number, events.seq_id, events.position, strict=True)
    return ((number, state.preempted, (seq_id, position)) for number, seq_id, position in columns)
