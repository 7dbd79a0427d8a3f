"""Turns a step's events and its batch into a StepRecord. Decides nothing, and keeps nothing."""

from __future__ import annotations

from typing import NamedTuple

from nvexplore.engine.batch import Blocked, Dispatch, ScheduledBatch
from nvexplore.engine.event_log import NO_BLOCKS, NO_PREEMPTED, Columns, Event
from nvexplore.engine.events import Added, Before, Committed, Planned, SlotSpans, Waiting
from nvexplore.engine.limits import EngineLimits

NO_BEFORE = Before(added=Added(), blocks=NO_BLOCKS, preempted=NO_PREEMPTED)


class QueueSizes(NamedTuple):
    """What is left after a plan."""

    num_free_blocks: int
    num_running: int
    num_waiting: int


def build_before(events: list[Event], first: int) -> Before:
    """Columns of what happened between two steps."""
    if not events:
        return NO_BEFORE
    columns = Columns(events, first)
    numbers, seqs, positions = columns.of("added", 3)
    aborted_number, aborted_seq_id, _ = columns.of("aborted", 3)
    (reset_number,) = columns.of("cache_reset", 1)
    return Before(
        added=Added(
            number=numbers,
            seq_id=[seq.seq_id for seq in seqs],
            request_id=[seq.request_id for seq in seqs],
            arrival=[seq.arrival for seq in seqs],
            token_ids=[seq.prompt_token_ids for seq in seqs],
            priority=[seq.priority for seq in seqs],
            position=positions,
            sampling_params=[seq.sampling_params.to_dict() for seq in seqs],
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
    limits: EngineLimits,
    sizes: QueueSizes,
) -> Planned:
    """Columns of one plan; called before the runner and the commit change the sequences."""
    columns = Columns(events, first)
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
        spans=slot_spans(batch, limits.block_size),
        blocks=columns.blocks(),
        admitted=columns.admitted(),
        preempted=columns.preempted(),
        waiting=_waiting(batch.blocked, sizes.num_waiting),
        max_num_batched_tokens=limits.max_num_batched_tokens,
        num_free_blocks=sizes.num_free_blocks,
        num_running=sizes.num_running,
        num_waiting=sizes.num_waiting,
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
    columns = Columns(events, first)
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
