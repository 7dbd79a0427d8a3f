"""Paged attention in plain torch: gather a row's keys and values by slot, then scaled dot-product attention.

The specification the kernels are compared with. Knows no model, and keeps nothing of a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nvexplore.runner.forward_batch import ForwardBatch


class _Group(NamedTuple):
    """B rows with one token each, attended to together; S is their longest context.

    tokens: where the rows are in the batch, [B] int64 or a slice.
    slots:  [B * S] the slot of every position of every context.
    mask:   [B, 1, 1, S], 0 or, beyond a row's context, -inf.
    """

    tokens: Tensor | slice
    slots: Tensor
    mask: Tensor


class _Chunk(NamedTuple):
    """One row with n tokens and a context of S.

    tokens: where they are in the batch; slots: [S] of the context; mask: [n, S], 0 or, after a token, -inf.
    """

    tokens: slice
    slots: Tensor
    mask: Tensor


class TorchPagedAttention:
    """``PagedAttention`` on the CPU for any block size, head size and mix of rows."""

    name = "torch"

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        # One for keys, one for values, kept: fresh memory of this size costs more than the gather itself.
        self._buffers: list[Tensor] = []

    def plan(self, batch: ForwardBatch) -> list[_Group | _Chunk]:
        starts = batch.cu_seqlens_q.tolist()
        contexts = batch.context_lens.tolist()
        chunks: list[_Group | _Chunk] = []
        single = []
        for row, context in enumerate(contexts):
            start, stop = starts[row], starts[row + 1]
            if stop - start == 1 and context > 0:
                single.append(row)
            elif context > 0:
                positions = torch.arange(context)
                slots = _slots(batch.block_tables[row], positions, batch.block_size)
                mask = self._mask(positions > batch.positions[start:stop, None])
                chunks.append(_Chunk(slice(start, stop), slots, mask))
        groups = [self._group(batch, rows) for rows in _similar_lengths(single, contexts)]
        return [*groups, *chunks]

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: list[_Group | _Chunk]) -> Tensor:
        # Rows of padding are in no group and keep their zeros.
        out = torch.zeros_like(q)
        for part in plan:
            keys, values = self._gather(k_cache, 0, part.slots), self._gather(v_cache, 1, part.slots)
            attend = _attend_chunk if isinstance(part, _Chunk) else _attend_group
            out[part.tokens] = attend(q[part.tokens], keys, values, part.mask, scale)
        return out

    def close(self) -> None:
        self._buffers.clear()

    def _group(self, batch: ForwardBatch, rows: list[int]) -> _Group:
        index = torch.tensor(rows)
        contexts = batch.context_lens[index].long()
        positions = torch.arange(int(contexts.max()))
        beyond = positions >= contexts[:, None]
        # Beyond its context a row reads its own position 0 again: a slot that nobody wrote may hold NaN,
        # which spoils a sum even with weight zero.
        positions = torch.where(beyond, 0, positions)
        blocks = batch.block_tables[index].gather(1, positions // batch.block_size)
        slots = blocks.long() * batch.block_size + positions % batch.block_size
        tokens = batch.cu_seqlens_q[index].long() if len(rows) < batch.num_tokens else slice(None)
        return _Group(tokens, slots.flatten(), self._mask(beyond)[:, None, None])

    def _mask(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)

    def _gather(self, cache: Tensor, which: int, slots: Tensor) -> Tensor:
        """Return [slots, num_kv_heads, head_dim] in buffer ``which``, until the next gather into it."""
        rows = cache.flatten(0, 1).flatten(1)
        size = slots.shape[0] * rows.shape[1]
        while len(self._buffers) <= which:
            self._buffers.append(rows.new_empty(0))
        if self._buffers[which].numel() < size:
            self._buffers[which] = rows.new_empty(size)
        out = self._buffers[which][:size].view(slots.shape[0], -1)
        torch.index_select(rows, 0, slots, out=out)
        return out.view(slots.shape[0], *cache.shape[2:])


def _slots(table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    return table[positions // block_size].long() * block_size + positions % block_size


def _similar_lengths(rows: list[int], contexts: list[int]) -> list[list[int]]:
    """Split rows into groups whose contexts differ by less than a factor of two: less padding than work."""
    groups: list[list[int]] = []
    for row in sorted(rows, key=lambda row: -contexts[row]):
        if groups and 2 * contexts[row] > contexts[groups[-1][0]]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [sorted(group) for group in groups]


def _attend_group(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    # The query heads that share a KV head stand where a sequence of queries would: no key is repeated.
    batch, length = q.shape[0], mask.shape[-1]
    kv_heads, head_dim = keys.shape[1:]
    out = scaled_dot_product_attention(
        q.view(batch, kv_heads, -1, head_dim),
        keys.view(batch, length, kv_heads, head_dim).transpose(1, 2),
        values.view(batch, length, kv_heads, head_dim).transpose(1, 2),
        attn_mask=mask,
        scale=scale,
    )
    return out.reshape(q.shape)


def _attend_chunk(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
