"""The frame of admissions: what each took from the prefix cache, and why no more."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from nvexplore.engine.events import Admitted, BlockEvents
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
        "what ended the run of hits: partial (no whole block was left to hit), unseen, differs, evicted, orphaned "
        "(cached behind a block that was evicted), in_flight (a resident request is about to fill that block), "
        "bypassed (for prompt_logprobs) or disabled; missing if not recorded",
    ),
    miss_position=Column("Int64", "differs: position of the first token that is another"),
    miss_block_id=Column(
        "Int64",
        "differs: the cached block that begins alike; orphaned: the one that holds the same tokens; in_flight: the one "
        "that will hold them",
    ),
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
            admitted = record.planned.admitted
            hits, owners = _follow(record.planned.blocks, filled_by)
            _follow(record.committed.blocks, filled_by)
            for seq_id, num_cached, miss in zip(
                admitted.seq_id, admitted.num_cached_tokens, _misses(admitted), strict=True
            ):
                num_hit, info = hits[seq_id], requests[seq_id]
                num_tokens = lengths.num_tokens[seq_id]
                possible = (num_tokens - 1) // size
                rate = num_hit / possible if possible else float("nan")
                again = lengths.num_preemptions.get(seq_id, 0) > 0
                row = (record.step, seq_id, info.request_id, info.num_prompt_tokens, num_tokens)
                rows.append((*row, possible, num_hit, num_cached, rate, owners.get(seq_id), again, *miss))
    return PREFIX_HITS.frame(dict(zip(PREFIX_HITS, zip(*rows, strict=True), strict=True)) if rows else {})


def _misses(admitted: Admitted) -> list[tuple[Any, ...]]:
    """(cause, position, block_id, step) of each admission; None four times where a record says nothing of it."""
    columns = (admitted.miss_cause, admitted.miss_position, admitted.miss_block_id, admitted.miss_step)
    unknown = [None] * len(admitted.seq_id)
    return list(zip(*(column or unknown for column in columns), strict=True))


def _follow(events: BlockEvents, filled_by: dict[int, int]) -> tuple[Counter[int], dict[int, int | None]]:
    """seq_id -> how many blocks it hit, and who had filled the first of them. Keeps ``filled_by`` up to date.

    In the order of the events: a plan may evict a block, fill it anew and have another request hit it.
    """
    num_hits, owners = Counter[int](), dict[int, int | None]()
    if "hashed" in events.kind or "hit" in events.kind:
        for kind, block, seq_id in zip(events.kind, events.block_id, events.seq_id, strict=True):
            if kind == "hashed":
                filled_by[block] = seq_id
            elif kind == "hit":
                num_hits[seq_id] += 1
                owners.setdefault(seq_id, filled_by.get(block))
    return num_hits, owners
