"""Collects a step's events as they happen and turns them into a record's columns. Decides nothing."""

from __future__ import annotations

from typing import Any

from nvexplore.engine.batch import Blocked, Dispatch, ScheduledBatch
from nvexplore.engine.events import (
    Added,
    Admitted,
    Before,
    BlockEvents,
    Committed,
    Planned,
    Preempted,
    SlotSpans,
    Waiting,
)

Event = tuple[Any, ...]


class EventLog:
    """Events since the last record; ``base`` is the number of the first.

    What happens between steps (adds, aborts) is always noted, since it is rare and the next record must tell it.
    What a step does is noted only while ``active``, that is, when somebody wants the record.
    """

    __slots__ = ("active", "base", "events")

    def __init__(self) -> None:
        self.active = True
        self.base = 0
        self.events: list[Event] = []

    @property
    def next_number(self) -> int:
        return self.base + len(self.events)

    def note(self, *event: Any) -> None:
        """Note an event: its kind, then what the kind needs."""
        if self.active:
            self.events.append(event)


class _Columns:
    """One phase's events, sorted into columns."""

    __slots__ = ("_blocks", "_rows", "mark")

    def __init__(self, events: list[Event], first: int) -> None:
        self.mark: int | None = None
        self._rows: dict[str, list[Event]] = {}
        self._blocks: list[Event] = []
        for number, event in enumerate(events, first):
            kind = event[0]
            if kind in _BLOCK_KINDS:
                self._blocks.append((number, *event))
            elif kind in _MARKS:
                self.mark = number
            else:
                self._rows.setdefault(kind, []).append((number, *event[1:]))

    def of(self, kind: str, width: int) -> list[list[Any]]:
        rows = self._rows.get(kind)
        return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]

    def blocks(self) -> BlockEvents:
        if not self._blocks:
            return NO_BLOCKS
        number, kind, block_id, seq_id, hash_ = map(list, zip(*self._blocks, strict=True))
        return BlockEvents(number=number, kind=kind, block_id=block_id, seq_id=seq_id, hash=hash_)

    def preempted(self) -> Preempted:
        if "preempted" not in self._rows:
            return NO_PREEMPTED
        number, seq_id, cause, num_lost = self.of("preempted", 4)
        return Preempted(number=number, seq_id=seq_id, cause=cause, num_lost=num_lost)

    def admitted(self) -> Admitted:
        if "admitted" not in self._rows:
            return NO_ADMITTED
        number, seq_id, num_cached = self.of("admitted", 3)
        return Admitted(number=number, seq_id=seq_id, num_cached_tokens=num_cached)


# Most steps have nothing to say under most headings; these are shared, never changed.
NO_BLOCKS, NO_PREEMPTED, NO_ADMITTED = BlockEvents(), Preempted(), Admitted()
NO_BEFORE = Before(added=Added(), blocks=NO_BLOCKS, preempted=NO_PREEMPTED)

_BLOCK_KINDS = frozenset({"allocated", "hit", "freed", "evicted", "hashed"})
_MARKS = frozenset({"scheduled", "committed"})


def build_before(events: list[Event], first: int) -> Before:
    """Columns of what happened between two steps."""
    if not events:
        return NO_BEFORE
    columns = _Columns(events, first)
    numbers, seqs = columns.of("added", 2)
    aborted_number, aborted_seq_id, _ = columns.of("aborted", 3)
    (reset_number,) = columns.of("cache_reset", 1)
    return Before(
        added=Added(
            number=numbers,
            seq_id=[seq.seq_id for seq in seqs],
            request_id=[seq.request_id for seq in seqs],
            arrival=[seq.arrival for seq in seqs],
            token_ids=[seq.prompt_token_ids for seq in seqs],
            sampling_params=[
                {
                    name: getattr(seq.sampling_params, name)
                    for name in seq.sampling_params.__dataclass_fields__
                }
                for seq in seqs
            ],
        ),
        aborted_number=aborted_number,
        aborted_seq_id=aborted_seq_id,
        cache_reset_number=reset_number,
        blocks=columns.blocks(),
        preempted=columns.preempted(),
    )


def build_planned(
    events: list[Event],
    first: int,
    batch: ScheduledBatch,
    dispatch: Dispatch,
    *,
    block_size: int,
    max_num_batched_tokens: int,
    num_free_blocks: int,
    num_running: int,
    num_waiting: int,
) -> Planned:
    """Columns of one plan; called before the runner and the commit change the sequences."""
    columns = _Columns(events, first)
    seqs, starts, counts = batch.seqs, batch.starts, batch.counts
    return Planned(
        number=columns.mark,
        seq_id=[seq.seq_id for seq in seqs],
        start=starts,
        count=counts,
        num_cached_tokens=[seq.num_cached_tokens for seq in seqs],
        is_prefill=batch.is_prefill,
        samples=batch.samples,
        context_len=[start + count for start, count in zip(starts, counts, strict=True)],
        spans=slot_spans(batch, block_size),
        blocks=columns.blocks(),
        admitted=columns.admitted(),
        preempted=columns.preempted(),
        waiting=_waiting(batch.blocked, num_waiting),
        max_num_batched_tokens=max_num_batched_tokens,
        num_free_blocks=num_free_blocks,
        num_running=num_running,
        num_waiting=num_waiting,
        graph_size=dispatch.graph_size,
        padding=dispatch.padding,
        eager_reason=dispatch.eager_reason,
        prefill_backend=dispatch.prefill_backend,
        decode_backend=dispatch.decode_backend,
    )


def _waiting(blocked: list[Blocked], num_waiting: int) -> Waiting:
    if not blocked:
        return Waiting(num_not_examined=num_waiting)
    seq_id, reason, needed, available = map(list, zip(*blocked, strict=True))
    return Waiting(
        seq_id=seq_id,
        reason=reason,
        needed=needed,
        available=available,
        num_not_examined=num_waiting - len(blocked),
    )


def slot_spans(batch: ScheduledBatch, block_size: int) -> SlotSpans:
    """The slots a batch writes, one span a block touched."""
    starts, counts = batch.starts, batch.counts
    if counts and max(counts) == 1:  # a decode batch: one slot a row
        return SlotSpans(
            row=list(range(len(counts))),
            block_id=[seq.block_table[p // block_size] for seq, p in zip(batch.seqs, starts, strict=True)],
            offset=[p % block_size for p in starts],
            length=counts,
        )
    spans: list[tuple[int, int, int, int]] = []
    for row, seq in enumerate(batch.seqs):
        position, end = starts[row], starts[row] + counts[row]
        while position < end:
            offset = position % block_size
            length = min(block_size - offset, end - position)
            spans.append((row, seq.block_table[position // block_size], offset, length))
            position += length
    if not spans:
        return SlotSpans()
    row_, block_id, offset_, length_ = zip(*spans, strict=True)
    return SlotSpans(row=list(row_), block_id=list(block_id), offset=list(offset_), length=list(length_))


def build_committed(
    events: list[Event], first: int, seq_id: list[int], token_id: list[int], times: tuple[int, int, int]
) -> Committed:
    """Columns of one commit; ``times``: plan, run, commit in ns."""
    columns = _Columns(events, first)
    finished_number, finished_seq_id, finish_reason = columns.of("finished", 3)
    return Committed(
        number=columns.mark,
        seq_id=seq_id,
        token_id=token_id,
        blocks=columns.blocks(),
        finished_number=finished_number,
        finished_seq_id=finished_seq_id,
        finish_reason=finish_reason,
        plan_ns=times[0],
        run_ns=times[1],
        commit_ns=times[2],
    )
