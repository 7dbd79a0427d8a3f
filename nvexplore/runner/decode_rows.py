"""Decode steps for a CUDA graph, laid out from what is remembered of each row instead of from scratch.

From one decode step to the next a row changes in its newest token, its position and, every ``block_size`` steps, one
block. What else a step needs is kept in arrays with a line for each sequence, and gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from torch import Tensor

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers.controls import Controls
from nvexplore.runner.forward_batch import longest_first
from nvexplore.runner.launched import LaunchedBatch, decode_ids
from nvexplore.runner.packing import decode_shapes, offsets, packed_size
from nvexplore.runner.sample_keys import sample_keys, stream_of

_LEAST_LINES: Final = 1024


@lru_cache(maxsize=4096)
def _layout(size: int, width: int) -> tuple[int, dict[str, int]]:
    shapes = decode_shapes(size, width)
    return packed_size(shapes), offsets(shapes)


@dataclass(slots=True)
class DecodeBatch:
    """A step whose rows have one token each, in one buffer as ``packing`` lays it out, padded to ``size`` rows."""

    packed: Tensor
    size: int
    num_rows: int
    controls: Controls | None


class DecodeRows:
    """Remembers the rows of one engine's decode steps. max_rows: of a step; max_blocks: of a sequence."""

    def __init__(self, *, block_size: int, seed: int, max_rows: int, max_blocks: int) -> None:
        self._block_size = block_size
        self._seed = seed
        self._max_blocks = max_blocks
        # seq_id -> its line and its block table as it was last time. A line is forgotten with all others, when there
        # are no more: those of finished sequences are among them.
        self._known: dict[int, tuple[int, list[int]]] = {}
        self._make_lines(_LEAST_LINES)
        self._counting = np.arange(max_rows + 1, dtype=np.int32)

    def build(
        self,
        batch: ScheduledBatch,
        size: int,
        buffer: Callable[[int], Tensor],
        controls: Controls | None = None,
        previous: LaunchedBatch | None = None,
    ) -> DecodeBatch:
        """Lay out a batch of decode rows, padded to ``size``, in what ``buffer`` gives for a number of int32.

        previous: the batch that is being computed and may yield ids that this one begins with.
        """
        seqs, count = batch.seqs, len(batch.seqs)
        if len(self._known) + count > self._lines:
            self._known.clear()
            if 2 * count > self._lines:  # not before so many rows come: max_rows may be far more than ever do
                self._make_lines(2 * count)
        lines = np.array([self._line(seq) for seq in seqs], np.intp)
        starts = np.array(batch.starts, np.int32)
        logical = starts // self._block_size
        blocks = self._tables[lines, logical]
        if (blocks < 0).any():
            seq = seqs[int(np.argmax(blocks < 0))]
            raise ValueError(f"request {seq.request_id!r}: its blocks do not hold the token of this step")
        width = int(logical.max()) + 1
        length, at = _layout(size, width)
        packed = buffer(length)
        words = packed.numpy()

        def put(name: str, values: object, rest: object = 0) -> None:
            part = words[at[name] :][:size]
            part[:count] = values
            part[count:] = rest

        keys = words[: 2 * size].view(np.int64)
        temperatures = self._temperatures[lines]
        keys[:count] = np.where(temperatures > 0, sample_keys(self._streams[lines], starts + 1), 0)
        keys[count:] = 0
        put("input_ids", decode_ids(batch, previous))
        put("positions", starts)
        put("slot_mapping", blocks * self._block_size + starts % self._block_size, -1)
        put("context_lens", starts + 1)
        put("order", longest_first(starts), self._counting[count:size])
        words[at["cu_seqlens_q"] :][: size + 1] = self._counting[: size + 1]
        words[at["logits_rows"] :][:size] = self._counting[:size]
        ends = words[at["cu_seqlens_k"] :][: size + 1]
        ends[0] = 0
        np.cumsum(words[at["context_lens"] :][:size], out=ends[1:])
        put("temperatures", temperatures.view(np.int32))
        words[at["table_width"]] = width
        tables = words[at["block_tables"] :].reshape(size, width)
        tables[:count] = self._tables[lines, :width]
        tables[count:] = -1
        return DecodeBatch(packed, size, count, controls)

    def _make_lines(self, count: int) -> None:
        self._lines = count
        self._tables = np.full((count, self._max_blocks), -1, np.int32)
        self._streams = np.zeros(count, np.uint64)
        self._temperatures = np.zeros(count, np.float32)

    def _line(self, seq: Sequence) -> int:
        known, table = self._known.get(seq.seq_id), seq.block_table
        if known is None:
            line = len(self._known)
            params = seq.sampling_params
            self._streams[line] = stream_of(seq, self._seed) if params.temperature else 0
            self._temperatures[line] = params.temperature
            before: list[int] = []
        else:
            line, before = known
            # Compared with the table itself, so it does not matter who changed it and why.
            if before == table:
                return line
        if before == table[:-1]:
            self._tables[line, len(before)] = table[-1]
        else:
            self._tables[line, : len(table)] = table
        self._tables[line, len(table) :] = -1
        self._known[seq.seq_id] = line, list(table)
        return line
