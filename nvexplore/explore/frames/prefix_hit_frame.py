"""The frame of admissions: what each took from the prefix cache, and why no more."""

from __future__ import annotations

from typing import Any

import pandas as pd

from nvexplore.engine.events import Admitted, StepRecord
from nvexplore.explore.frames._table import Column, Table
from nvexplore.explore.frames._walk import Lengths, Source, as_recorder
from nvexplore.explore.lifecycle import turns

PREFIX_HITS = Table(
    step=Column("int64", "step of the admission"),
    seq_id=Column("int64", "sequence admitted"),
    request_id=Column("string", "its request"),
    num_prompt_tokens=Column("int64", "tokens of its prompt"),
    num_tokens=Column("int64", "tokens it had at the admission: after a preemption the completion so far too"),
    num_possible_blocks=Column("int64", "whole blocks that could be hit: at least one token must run"),
    num_hit_blocks=Column("int64", "blocks that were hit"),
    num_hit_tokens=Column("int64", "tokens in them, which need not run"),
    hit_rate=Column("float64", "num_hit_blocks / num_possible_blocks; NaN where none was possible"),
    first_owner=Column("Int64", "seq_id that filled the first block hit; missing if none was or it is not recorded"),
    was_recompute=Column("bool", "it had been admitted before and was preempted"),
    miss_cause=Column(
        "string",
        "what ended the run of hits: partial (no whole block was left to hit), unseen, differs, evicted, in_flight (a "
        "resident request is about to fill that block), bypassed (for prompt_logprobs) or disabled; missing if not "
        "recorded",
    ),
    miss_position=Column("Int64", "differs: position of the first token that is another"),
    miss_block_id=Column("Int64", "differs: the cached block that begins alike; in_flight: the one that will hold it"),
    miss_step=Column("Int64", "evicted: the step in which the block was"),
)


@PREFIX_HITS.describes
def prefix_hits(source: Source) -> pd.DataFrame:
    """A row an admission during the kept steps, in order.

    source: a Recorder, or a Snapshot followed by StepRecords.
    """
    recorder = as_recorder(source)
    with recorder.lock:
        requests, segments = recorder.requests, recorder.segments
    rows: list[tuple[Any, ...]] = []
    for snapshot, records in segments:
        lengths, first_event, size = Lengths(snapshot), snapshot.event, snapshot.block_size
        filled_by: dict[int, int] = {}
        for record in records:
            lengths.see(turns(record, first_event))
            first_event = 0
            hits, admitted = _hits(record), record.planned.admitted
            for seq_id, num_cached, miss in zip(
                admitted.seq_id, admitted.num_cached_tokens, _misses(admitted), strict=True
            ):
                hit, info = hits.get(seq_id, []), requests[seq_id]
                num_tokens = lengths.num_tokens[seq_id]
                possible = (num_tokens - 1) // size
                rate = len(hit) / possible if possible else float("nan")
                owner = filled_by.get(hit[0]) if hit else None
                again = lengths.num_preemptions.get(seq_id, 0) > 0
                row = (record.step, seq_id, info.request_id, info.num_prompt_tokens, num_tokens)
                rows.append((*row, possible, len(hit), num_cached, rate, owner, again, *miss))
            for events in (record.planned.blocks, record.committed.blocks):
                filled = zip(events.kind, events.block_id, events.seq_id, strict=True)
                filled_by.update((block, seq_id) for kind, block, seq_id in filled if kind == "hashed")
    return PREFIX_HITS.frame(dict(zip(PREFIX_HITS, zip(*rows, strict=True), strict=True)) if rows else {})


def _misses(admitted: Admitted) -> list[tuple[Any, ...]]:
    """(cause, position, block_id, step) of each admission; None four times where a record says nothing of it."""
    columns = (admitted.miss_cause, admitted.miss_position, admitted.miss_block_id, admitted.miss_step)
    unknown = [None] * len(admitted.seq_id)
    return list(zip(*(column or unknown for column in columns), strict=True))


def _hits(record: StepRecord) -> dict[int, list[int]]:
    """seq_id -> the blocks its admission hit, in logical order."""
    found: dict[int, list[int]] = {}
    events = record.planned.blocks
    if "hit" in events.kind:
        for kind, block, seq_id in zip(events.kind, events.block_id, events.seq_id, strict=True):
            if kind == "hit":
                found.setdefault(seq_id, []).append(block)
    return found
