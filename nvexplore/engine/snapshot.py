"""Copies the engine's whole state into a Snapshot. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvexplore.engine.events import SequenceColumns, Snapshot

if TYPE_CHECKING:
    from nvexplore.engine.engine import Engine
    from nvexplore.engine.event_log import EventLog


def take_snapshot(engine: Engine, log: EventLog, now: float) -> Snapshot:
    """The state between two steps. log: of its events; now: seconds since the engine started."""
    limits, blocks, scheduler = engine.limits, engine.blocks, engine.scheduler
    seqs = sorted(engine.live.values(), key=lambda seq: seq.seq_id)
    return Snapshot(
        step=engine.next_step,
        event=log.next_number,
        num_untold=len(log.events),
        time=now,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        waiting=[seq.seq_id for seq in scheduler.queues.waiting],
        running=[seq.seq_id for seq in scheduler.queues.running],
        sequences=sequence_columns(seqs),
        ref_count=list(blocks.ref_count),
        hash=[blocks.hash_of(block) for block in range(limits.num_blocks)],
        free=list(blocks.free),
    )


def sequence_columns(seqs: list[Any]) -> SequenceColumns:
    """Sequences (or their folded states, which have the same fields) as columns, in the order given."""
    return SequenceColumns(
        seq_id=[s.seq_id for s in seqs],
        request_id=[s.request_id for s in seqs],
        arrival=[s.arrival for s in seqs],
        priority=[s.priority for s in seqs],
        status=[str(s.status) for s in seqs],
        num_prompt_tokens=[s.num_prompt_tokens for s in seqs],
        num_cached_tokens=[s.num_cached_tokens for s in seqs],
        num_computed_tokens=[s.num_computed_tokens for s in seqs],
        num_preemptions=[s.num_preemptions for s in seqs],
        token_ids=[list(s.token_ids) for s in seqs],
        block_table=[list(s.block_table) for s in seqs],
    )
