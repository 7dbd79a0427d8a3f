"""The frame of steps: what each step ran, what it took, and what memory looked like meanwhile."""

from __future__ import annotations

from typing import Any

import pandas as pd

from nvexplore.engine.events import StepRecord
from nvexplore.explore.frames._ledger import BlockLedger
from nvexplore.explore.frames._table import Column, Table
from nvexplore.explore.frames._walk import Lengths, Source, as_recorder
from nvexplore.explore.lifecycle import turns
from nvexplore.explore.step_times import own

STEPS = Table(
    step=Column("int64", "number of the step"),
    time_s=Column("float64", "when it was committed, seconds since the engine started"),
    num_seqs=Column("int64", "sequences scheduled"),
    num_prefill_tokens=Column("int64", "prompt tokens run (recomputed ones included)"),
    num_decode_tokens=Column("int64", "tokens run by decoding sequences, one each"),
    num_recompute_tokens=Column("int64", "of num_prefill_tokens: those whose KV was lost in a preemption"),
    budget=Column("int64", "tokens the step could have run (max_num_batched_tokens)"),
    budget_used=Column("int64", "tokens it ran: prefill and decode"),
    num_sampled_tokens=Column("int64", "tokens sampled"),
    num_waiting=Column("int64", "sequences in the waiting queue while it ran"),
    num_running=Column("int64", "resident sequences while it ran, scheduled or not"),
    num_used_blocks=Column("int64", "blocks held by sequences while it ran"),
    num_shared_blocks=Column("int64", "of num_used_blocks: held by two sequences or more"),
    num_free_blocks=Column("int64", "blocks held by no sequence while it ran"),
    num_cached_blocks=Column("int64", "of num_free_blocks: those whose content can still be hit"),
    num_allocated=Column("int64", "blocks taken from the free list"),
    num_hit_blocks=Column("int64", "blocks taken from the prefix cache"),
    num_evicted=Column("int64", "blocks whose cached content was forgotten (a reset of the cache not counted)"),
    num_added=Column("int64", "requests that arrived since the step before"),
    num_admitted=Column("int64", "sequences that left the waiting queue"),
    num_preempted=Column("int64", "sequences sent back to the waiting queue"),
    num_finished=Column("int64", "sequences that finished"),
    num_aborted=Column("int64", "requests aborted since the step before"),
    plan_us=Column("float64", "host time of scheduling, microseconds"),
    run_us=Column("float64", "from plan to tokens, microseconds, device time included; overlapping steps share it"),
    commit_us=Column("float64", "host time of the bookkeeping after the run, microseconds"),
    work_us=Column("float64", "of plan_us + run_us + commit_us what came after the end of the step before: it adds up"),
    graph_size=Column("Int64", "rows of the CUDA graph that ran; missing if none did"),
    padding=Column("Int64", "of these, rows without a sequence"),
    eager_reason=Column("string", "why no CUDA graph ran"),
    prefill_backend=Column("string", "attention backend of the prefill rows"),
    decode_backend=Column("string", "attention backend of the decode rows"),
    waiting_reason=Column("string", "what the head of the queue waits for: token_budget, max_num_seqs, free_blocks"),
)


@STEPS.describes
def steps(source: Source) -> pd.DataFrame:
    """A row a kept step.

    source: a Recorder, or a Snapshot followed by StepRecords.
    """
    rows: list[tuple[Any, ...]] = []
    for snapshot, records in as_recorder(source).segments:
        ledger, lengths, first_event = BlockLedger(snapshot), Lengths(snapshot), snapshot.event
        before = snapshot.time  # of a recording whose first steps were dropped: when the last of them ended
        for record in records:
            ledger.plan(record, first_event)
            lengths.see(turns(record, first_event))
            first_event = 0  # only the first record can hold events that the snapshot knows
            num_recomputed = sum(again for _, _, again in lengths.recomputed(record))
            rows.append(_row(record, ledger, num_recomputed, own(record, before)))
            ledger.commit(record)
            before = record.time
    return STEPS.frame(dict(zip(STEPS, zip(*rows, strict=True), strict=True)) if rows else {})


def _row(record: StepRecord, ledger: BlockLedger, num_recompute_tokens: int, work: float) -> tuple[Any, ...]:
    before, planned, committed = record.before, record.planned, record.committed
    num_tokens = sum(planned.count)
    num_decode = planned.is_prefill.count(False)
    if num_decode and num_tokens != len(planned.count):
        num_decode = sum(c for c, p in zip(planned.count, planned.is_prefill, strict=True) if not p)
    kinds = (*before.blocks.kind, *planned.blocks.kind, *committed.blocks.kind)
    return (
        record.step,
        record.time,
        len(planned.seq_id),
        num_tokens - num_decode,
        num_decode,
        num_recompute_tokens,
        planned.max_num_batched_tokens,
        num_tokens,
        len(committed.token_id),
        planned.num_waiting,
        planned.num_running,
        ledger.num_used,
        ledger.num_shared,
        ledger.num_free,
        ledger.num_cached,
        kinds.count("allocated"),
        kinds.count("hit"),
        kinds.count("evicted"),
        len(before.added.number),
        len(planned.admitted.number),
        len(before.preempted.number) + len(planned.preempted.number),
        len(committed.finished_number),
        len(before.aborted_number),
        committed.plan_ns / 1e3,
        committed.run_ns / 1e3,
        committed.commit_ns / 1e3,
        work * 1e6,
        planned.graph_size,
        planned.padding,
        planned.eager_reason,
        planned.prefill_backend,
        planned.decode_backend,
        planned.waiting.reason[0] if planned.waiting.reason else None,
    )
