"""One step's work as flat tensors, built from what the scheduler decided. Knows no model and no device.

All of them are views of one int32 buffer, so that a device needs one copy a step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers.controls import Controls

# Types other than int32 are bit patterns in the int32 buffer; 64-bit ones come first, where they are aligned.
_KEYS: Final = "sample_keys"
_DTYPES: Final = {_KEYS: torch.int64, "temperatures": torch.float32}


@dataclass(slots=True)
class ForwardBatch:
    """One step's rows and tokens. Row i is a sequence; its tokens lie one after another in the flat tensors.

    T tokens, N rows, R rows that are sampled; int32 where not said otherwise.
    packed:        the buffer that holds all of the following.
    input_ids:     [T] token ids.
    positions:     [T] absolute positions in their sequences, from 0.
    slot_mapping:  [T] slot of the pool that a token's key and value go to; -1: they are not stored.
    cu_seqlens_q:  [N + 1] first token of each row, then T.
    cu_seqlens_k:  [N + 1] the same over the rows' contexts.
    context_lens:  [N] tokens a row may look at: all up to its last one in this step, cached ones included,
                   but no later chunk of its prompt.
    block_tables:  [N, widest] physical blocks that hold the context, padded with -1.
    logits_rows:   [R] the tokens whose logits are wanted: the last one of each row that samples.
    sample_keys:   [R] int64, random bits of each sampled token (``sample_key``).
    temperatures:  [R] float32.
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
    block_tables: Tensor
    logits_rows: Tensor
    sample_keys: Tensor
    temperatures: Tensor
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
        shapes = {name: tuple(getattr(self, name).shape) for name in _ORDER}
        views: dict[str, Any] = dict(_views(packed, shapes))
        controls = None if self.controls is None else self.controls.to(device)
        return replace(self, packed=packed, controls=controls, **views)


_ORDER: Final = (
    _KEYS, "input_ids", "positions", "slot_mapping", "cu_seqlens_q", "cu_seqlens_k", "context_lens",
    "block_tables", "logits_rows", "temperatures",
)  # fmt: skip


def sample_key(seed: int, seq_id: int, position: int) -> int:
    """Return 64 random bits, as a signed integer, for the token at ``position`` of sequence ``seq_id``.

    A hash and not a stream: a step done again, or among other rows, draws the same.
    """
    mask = 0xFFFF_FFFF_FFFF_FFFF
    digest = xxhash.xxh3_64_digest(struct.pack("<3Q", seed & mask, seq_id & mask, position & mask))
    return int.from_bytes(digest, "big", signed=True)


def key_of(seq: Sequence, position: int, engine_seed: int) -> int:
    """Return the random bits for the token of ``seq`` at ``position``: from the request's own seed where it has one."""
    seed = seq.sampling_params.seed
    if seed is None:
        return sample_key(engine_seed, seq.seq_id, position)
    # Samples count down from -1, where no seq_id is.
    return sample_key(seed, -1 - seq.sample_index, position)


def build_forward_batch(
    batch: ScheduledBatch, block_size: int, *, seed: int = 0, num_padding: int = 0, controls: Controls | None = None
) -> ForwardBatch:
    """Lay ``batch`` out as tensors on the CPU; reads sequences and changes nothing.

    num_padding: rows to add for a graph of fixed size; they are sampled too, so that sizes decide all shapes.
    ValueError where a block table does not reach the end of its row.
    """
    tables = [
        seq.block_table[: -(-(start + count) // block_size)]
        for seq, start, count in zip(batch.seqs, batch.starts, batch.counts, strict=True)
    ]
    for seq, table, start, count in zip(batch.seqs, tables, batch.starts, batch.counts, strict=True):
        if len(table) * block_size < start + count:
            raise ValueError(
                f"request {seq.request_id!r}: {len(table)} blocks of {block_size} do not hold the "
                f"{start + count} tokens of this step"
            )
    pad = [1] * num_padding
    counts = np.array([*batch.counts, *pad], np.int32)
    starts = np.array([*batch.starts, *(0 for _ in pad)], np.int32)
    contexts = starts + counts
    contexts[len(tables) :] = 0
    ends = np.fromiter(accumulate(counts.tolist(), initial=0), np.int32)
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    positions = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends[:-1] - starts, counts)

    block_tables = np.full((len(counts), max(map(len, tables), default=0) or 1), -1, np.int32)
    used = np.arange(block_tables.shape[1]) < np.array([*map(len, tables), *(0 for _ in pad)])[:, None]
    block_tables[used] = list(chain.from_iterable(tables))
    blocks = block_tables[rows, positions // block_size]
    slots = np.where(blocks < 0, -1, blocks * block_size + positions % block_size)

    sampled = [row for row, samples in enumerate(batch.samples) if samples]
    keys = [key_of(batch.seqs[r], batch.starts[r] + batch.counts[r], seed) for r in sampled]
    temperatures = [batch.seqs[r].sampling_params.temperature for r in sampled]
    sampled += range(len(tables), len(counts))
    arrays: dict[str, npt.NDArray[Any]] = {
        _KEYS: np.array([*keys, *(0 for _ in pad)], np.int64),
        "input_ids": np.array([*_scheduled_ids(batch), *(0 for _ in pad)], np.int32),
        "positions": positions,
        "slot_mapping": slots,
        "cu_seqlens_q": ends,
        "cu_seqlens_k": np.fromiter(accumulate(contexts.tolist(), initial=0), np.int32),
        "context_lens": contexts,
        "block_tables": block_tables,
        "logits_rows": ends[1:][sampled] - 1,
        "temperatures": np.array([*temperatures, *(0.0 for _ in pad)], np.float32),
    }
    flat = [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.int32) for name in _ORDER]
    packed = torch.from_numpy(np.concatenate(flat))
    return ForwardBatch(
        packed=packed,
        **dict(_views(packed, {name: arrays[name].shape for name in _ORDER})),
        block_size=block_size,
        num_prefill=sum(batch.is_prefill),
        num_decode=len(batch.is_prefill) - sum(batch.is_prefill),
        num_padding=num_padding,
        max_seqlen_q=int(counts.max(initial=0)),
        max_seqlen_k=int(contexts.max(initial=0)),
        controls=controls,
    )


def _scheduled_ids(batch: ScheduledBatch) -> Iterator[int]:
    for seq, start, count in zip(batch.seqs, batch.starts, batch.counts, strict=True):
        yield from seq.token_ids[start : start + count]


def _views(packed: Tensor, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensor]]:
    offset = 0
    for name in _ORDER:
        dtype = _DTYPES.get(name, torch.int32)
        size = int(np.prod(shapes[name])) * (dtype.itemsize // 4)
        yield name, packed[offset : offset + size].view(dtype).view(shapes[name])
        offset += size
