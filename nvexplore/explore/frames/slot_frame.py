"""The frame of scheduled tokens of one step: from token to position, block and slot."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nvexplore.explore.frames._table import Column, Table
from nvexplore.explore.frames._walk import Source, as_recorder, checked_step

SLOTS = Table(
    row=Column("int64", "row of the batch"),
    seq_id=Column("int64", "sequence"),
    request_id=Column("string", "its request"),
    token_id=Column("Int64", "the token that runs; missing if the host did not know it yet"),
    position=Column("int64", "its position in the sequence, from 0"),
    logical_block=Column("int64", "position // block_size: index into the sequence's block table"),
    block_id=Column("int64", "the physical block there"),
    offset=Column("int64", "position % block_size: place in the block"),
    slot=Column("int64", "block_id * block_size + offset: where its KV is written"),
    is_prefill=Column("bool", "part of a prefill chunk; otherwise a decode"),
)


@SLOTS.describes
def slots(source: Source, step: int | None = None) -> pd.DataFrame:
    """A row a token that ``step`` ran (None: the newest step), in slot_mapping order.

    source: a Recorder, or a Snapshot followed by StepRecords. Raises ValueError, naming the steps that are kept, for
    a step that is not.
    """
    recorder = as_recorder(source)
    with recorder.lock:
        step = checked_step(recorder, step)
        if step is None:
            return SLOTS.frame({})
        state, record = recorder.state_before(step), recorder.record_of(step)
    planned, spans, added = record.planned, record.planned.spans, record.before.added
    token_ids = {seq.seq_id: seq.token_ids for seq in state.sequences.values()}
    token_ids.update(zip(added.seq_id, added.token_ids, strict=True))
    request_ids = {seq.seq_id: seq.request_id for seq in state.sequences.values()}
    request_ids.update(zip(added.seq_id, added.request_id, strict=True))
    tokens: list[int | None] = []
    for seq_id, start, end in zip(planned.seq_id, planned.start, planned.context_len, strict=True):
        known = token_ids[seq_id][start:end]
        tokens += known
        tokens += [None] * (end - start - len(known))
    count = np.array(planned.count, dtype=np.int64)
    position = np.repeat(np.array(planned.start, dtype=np.int64), count) + _ranges(count)
    length = np.array(spans.length, dtype=np.int64)
    block_id = np.repeat(np.array(spans.block_id, dtype=np.int64), length)
    offset = np.repeat(np.array(spans.offset, dtype=np.int64), length) + _ranges(length)
    return SLOTS.frame(
        {
            "row": np.repeat(np.arange(len(count)), count),
            "seq_id": np.repeat(np.array(planned.seq_id, dtype=np.int64), count),
            "request_id": np.repeat(np.array([request_ids[i] for i in planned.seq_id], dtype=object), count),
            "token_id": tokens,
            "position": position,
            "logical_block": position // state.block_size,
            "block_id": block_id,
            "offset": offset,
            "slot": block_id * state.block_size + offset,
            "is_prefill": np.repeat(np.array(planned.is_prefill, dtype=bool), count),
        }
    )


def _ranges(lengths: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.int64]:
    """0 .. length - 1 for each length, end to end."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
