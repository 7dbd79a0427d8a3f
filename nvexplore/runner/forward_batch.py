"""One step's work as flat tensors, built from what the scheduler decided. Knows no model and no device.

All of them are views of one int32 buffer, so that a device needs one copy a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.layers.controls import Controls
from nvexplore.runner.block_tables import BlockTables
from nvexplore.runner.launched import LaunchedBatch, next_id
from nvexplore.runner.packing import FIELDS, decode_shapes, offsets, packed_size, unpack
from nvexplore.runner.sample_keys import sample_keys, stream_of


@dataclass(slots=True)
class ForwardBatch:
    """One step's rows and tokens. Row i is a sequence; its tokens lie one after another in the flat tensors.

    T tokens, N rows, R rows that are sampled; int32 where not said otherwise.
    packed:        the buffer that holds all of the following.
    input_ids:     [T] token ids; -1 - i stands for the id that row i of the sampled ones before is about to get.
    positions:     [T] absolute positions in their sequences, from 0.
    slot_mapping:  [T] slot of the pool that a token's key and value go to; -1: they are not stored.
    cu_seqlens_q:  [N + 1] first token of each row, then T.
    cu_seqlens_k:  [N + 1] the same over the rows' contexts.
    context_lens:  [N] tokens a row may look at: all up to its last one in this step, cached ones included,
                   but no later chunk of its prompt.
    order:         [N] the rows by context, longest first: long work that starts late is waited for. Empty in a step
                   with a row of several tokens.
    block_tables:  [N, widest] physical blocks that hold the context, padded with -1.
    table_width:   [1] widest, for a kernel that is not told the shape.
    logits_rows:   [R] the tokens whose logits are wanted: the last one of each row that samples.
    sample_keys:   [R] int64, random bits of each sampled token (``sample_keys``); 0 where the temperature is.
    temperatures:  [R] float32.
    tiles:         [2, n] rows and first tokens of the tiles of a step that runs in a graph; otherwise n is 0.
    num_prefill, num_decode: rows of each kind, padding excluded.
    num_padding:   rows at the end that stand for nothing: token 0, position 0, slot -1, context 0, no block.
    max_seqlen_q, max_seqlen_k: longest row of tokens, longest context.
    controls:      what sampled rows ask for beyond their temperature, or None; not in ``packed``.
    plan:          what a backend works out once a step and keeps for all layers; nobody else looks at it.
    """

    packed: Tensor
    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    context_lens: Tensor
    order: Tensor
    block_tables: Tensor
    table_width: Tensor
    logits_rows: Tensor
    sample_keys: Tensor
    temperatures: Tensor
    tiles: Tensor
    block_size: int
    num_prefill: int
    num_decode: int
    num_padding: int
    max_seqlen_q: int
    max_seqlen_k: int
    controls: Controls | None = None
    plan: Any = None

    @property
    def num_seqs(self) -> int:
        return self.context_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_samples(self) -> int:
        return self.logits_rows.shape[0]

    def to(self, device: torch.device) -> ForwardBatch:
        """Return the batch on ``device``: one copy, which does not block where the buffer is pinned."""
        packed = self.packed.to(device, non_blocking=True)
        shapes = {name: tuple(getattr(self, name).shape) for name in FIELDS}
        views: dict[str, Any] = dict(unpack(packed, shapes))
        controls = None if self.controls is None else self.controls.to(device)
        return replace(self, packed=packed, controls=controls, **views)


def build_forward_batch(
    batch: ScheduledBatch,
    block_size: int,
    *,
    seed: int = 0,
    num_padding: int = 0,
    controls: Controls | None = None,
    tables: BlockTables | None = None,
    buffer: Callable[[int], Tensor] | None = None,
    previous: LaunchedBatch | None = None,
) -> ForwardBatch:
    """Lay ``batch`` out as tensors on the CPU; reads sequences and changes nothing.

    num_padding: rows to add for a graph of fixed size; they are sampled too, so that sizes decide all shapes.
    tables: kept by whoever builds a batch every step, for speed alone.
    buffer: gives the int32 tensor of a size to build the batch in.
    previous: the batch that is being computed and may yield ids that this one begins with.
    ValueError where a block table does not reach the end of its row.
    """
    used: list[list[int]] = []  # the blocks of each row's context
    ids: list[int] = []
    for seq, start, count in zip(batch.seqs, batch.starts, batch.counts, strict=True):
        num_blocks, table = -(-(start + count) // block_size), seq.block_table
        if len(table) < num_blocks:
            raise ValueError(
                f"request {seq.request_id!r}: {len(table)} blocks of {block_size} do not hold the "
                f"{start + count} tokens of this step"
            )
        used.append(table if len(table) == num_blocks else table[:num_blocks])
        if count == 1:
            ids.append(next_id(seq, start, previous))
        else:
            ids += seq.token_ids[start : start + count]
    num_rows = len(used)
    counts = np.array(batch.counts + [1] * num_padding, np.int32)
    starts = np.array(batch.starts + [0] * num_padding, np.int32)
    contexts = starts + counts
    contexts[num_rows:] = 0
    ends, context_ends = np.zeros((2, len(counts) + 1), np.int32)
    np.cumsum(counts, out=ends[1:])
    np.cumsum(contexts, out=context_ends[1:])
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    positions = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends[:-1] - starts, counts)

    seq_ids = [seq.seq_id for seq in batch.seqs]
    block_tables = (tables or BlockTables()).rows(seq_ids, used, num_padding)
    blocks = block_tables[rows, positions // block_size]
    slots = np.where(blocks < 0, -1, blocks * block_size + positions % block_size)

    sampled, temperatures, streams = [], [], []
    for row, (seq, samples) in enumerate(zip(batch.seqs, batch.samples, strict=True)):
        if samples:
            sampled.append(row)
            temperatures.append(temperature := seq.sampling_params.temperature)
            streams.append(stream_of(seq, seed) if temperature else 0)
    keys = np.zeros(len(sampled) + num_padding, np.int64)
    keys[: len(sampled)] = sample_keys(np.array(streams, np.uint64), contexts[sampled])
    keys[: len(sampled)][np.array(temperatures) == 0] = 0
    sampled += range(num_rows, num_rows + num_padding)
    arrays: dict[str, npt.NDArray[Any]] = {
        "sample_keys": keys,
        "input_ids": np.array(ids + [0] * num_padding, np.int32),
        "positions": positions,
        "slot_mapping": slots,
        "cu_seqlens_q": ends,
        "cu_seqlens_k": context_ends,
        "context_lens": contexts,
        "order": longest_first(contexts) if len(counts) == ends[-1] else np.empty(0, np.int32),
        "logits_rows": ends[1:][sampled] - 1,
        "temperatures": np.array(temperatures + [0.0] * num_padding, np.float32),
        "tiles": np.empty((2, 0), np.int32),
        "table_width": np.array([block_tables.shape[1]], np.int32),
        "block_tables": block_tables,
    }
    shapes = {name: arrays[name].shape for name in FIELDS}
    size = packed_size(shapes)
    packed = torch.empty(size, dtype=torch.int32, device="cpu") if buffer is None else buffer(size)
    words = packed.numpy()
    for name, begin in offsets(shapes).items():
        words[begin : begin + arrays[name].size * arrays[name].itemsize // 4] = arrays[name].reshape(-1).view(np.int32)
    num_prefill = sum(batch.is_prefill)
    return ForwardBatch(
        packed=packed,
        **unpack(packed, shapes),
        block_size=block_size,
        num_prefill=num_prefill,
        num_decode=num_rows - num_prefill,
        num_padding=num_padding,
        max_seqlen_q=int(counts.max(initial=0)),
        max_seqlen_k=int(contexts.max(initial=0)),
        controls=controls,
    )


def longest_first(contexts: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The rows' numbers by context; of equal ones the first comes first."""
    return np.argsort(-contexts, kind="stable").astype(np.int32)


def decode_batch_of(packed: Tensor, num_rows: int, block_tables: Tensor, block_size: int) -> ForwardBatch:
    """The batch of ``num_rows`` rows with one token each that lies in ``packed``; its tables are ``block_tables``."""
    fields: dict[str, Any] = unpack(packed, decode_shapes(num_rows, 0))
    fields["block_tables"] = block_tables
    return ForwardBatch(
        packed=packed,
        **fields,
        block_size=block_size,
        num_prefill=0,
        num_decode=num_rows,
        num_padding=0,
        max_seqlen_q=1,
        max_seqlen_k=block_tables.shape[1] * block_size,
    )
