"""The frame of physical blocks after one step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nvexplore.explore.frames._table import Column, Table
from nvexplore.explore.frames._walk import Source, as_recorder, checked_step
from nvexplore.explore.state import State

BLOCK_STATE = pd.CategoricalDtype(["free", "cached", "used", "shared"])

BLOCKS = Table(
    block_id=Column("int64", "physical block"),
    state=Column(
        BLOCK_STATE,
        "free (holds nothing that can be found), cached (held by nobody, but can be hit), used (one owner), "
        "shared (several)",
    ),
    ref_count=Column("int64", "sequences that hold it"),
    owners=Column("object", "their seq_ids, a tuple in the order they got it"),
    num_tokens=Column("int64", "tokens whose KV it holds and somebody may read"),
    hash=Column("string", "hash of its content and all before it, hexadecimal; missing if it cannot be hit"),
    logical_index=Column("Int64", "its place in the block table of its owners; missing if there are none"),
    is_written=Column("bool", "the step wrote into it"),
)


@BLOCKS.describes
def blocks(source: Source, step: int | None = None) -> pd.DataFrame:
    """A row a physical block, as it was after ``step`` (None: after the newest).

    source: a Recorder, or a Snapshot followed by StepRecords. Raises ValueError, naming the steps that are kept, for
    a step that is not.
    """
    recorder = as_recorder(source)
    with recorder.lock:
        step = checked_step(recorder, step)
        if step is not None:
            state, written = recorder.state_at(step), recorder.record_of(step).planned.spans.block_id
        elif recorder.has_state:
            state, written = recorder.state, []
        else:
            return BLOCKS.frame({})
    return block_frame(state, written)


def block_frame(state: State, written: list[int]) -> pd.DataFrame:
    """The frame of ``blocks`` for any state; ``written``: ids of the blocks the last step wrote."""
    ref_count = np.array(state.ref_count, dtype=np.int64)
    can_be_hit = np.array([hash_ is not None for hash_ in state.hash], dtype=bool)
    num_tokens = np.where(can_be_hit, state.block_size, 0)
    logical_index = np.full(state.num_blocks, -1)
    for seq in state.sequences.values():
        table = np.array(seq.block_table, dtype=np.int64)
        index = np.arange(len(table))
        # A shared block is full; only its last block holds less than a block's worth for a sequence.
        fill = np.clip(seq.num_computed_tokens - index * state.block_size, 0, state.block_size)
        num_tokens[table] = np.maximum(num_tokens[table], fill)
        logical_index[table] = index
    is_written = np.zeros(state.num_blocks, dtype=bool)
    is_written[written] = True
    codes = np.where(ref_count == 0, can_be_hit.astype(np.int8), np.where(ref_count == 1, 2, 3))
    return BLOCKS.frame(
        {
            "block_id": np.arange(state.num_blocks),
            "state": pd.Categorical.from_codes(codes, dtype=BLOCK_STATE),
            "ref_count": ref_count,
            "owners": [tuple(state.owners.get(block, ())) for block in range(state.num_blocks)],
            "num_tokens": num_tokens,
            "hash": [None if hash_ is None else f"{hash_:016x}" for hash_ in state.hash],
            "logical_index": pd.arrays.IntegerArray(logical_index, logical_index < 0),
            "is_written": is_written,
        }
    )
