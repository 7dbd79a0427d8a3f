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

    tokens: where the rows are in the batch, [B] int64, or None: they are the batch, in order.
    slots:  [B * S] the slot of every position of every context, or a slice where they follow one another.
    mask:   [B, 1, 1, S], 0 or, beyond a row's context, -inf; None where all contexts are S long.
    """

    tokens: Tensor | None
    slots: Tensor | slice
    mask: Tensor | None


class _Chunk(NamedTuple):
    """One row with n tokens and a context of S.

    tokens: where they are in the batch; slots: [S] of the context; mask: [n, S], 0 or, after a token, -inf.
    """

    tokens: slice
    slots: Tensor | slice
    mask: Tensor


class TorchPagedAttention:
    """``PagedAttention`` on the CPU for any block size, head size and mix of rows.

    dtype: of the queries, and what keys and values are computed with whatever the pool's format is.
    """

    name = "torch"

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        # One for keys, one for values, kept: fresh memory of this size costs more than the gather itself.
        self._buffers: list[Tensor] = []

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> list[_Group | _Chunk]:
        batch = host if batch is None else batch
        starts = batch.cu_seqlens_q.tolist()
        contexts = batch.context_lens.tolist()
        chunks: list[_Group | _Chunk] = []
        single = []
        for row, context in enumerate(contexts):
            start, stop = starts[row], starts[row + 1]
            if stop - start == 1 and context > 0:
                single.append(row)
            elif context > 0:
                mask = self._mask(torch.arange(context, device="cpu") > batch.positions[start:stop, None])
                chunks.append(_Chunk(slice(start, stop), _slots(batch, row, context), mask))
        groups = [self._group(batch, rows, contexts) for rows in _similar_lengths(single, contexts)]
        return [*groups, *chunks]

    def offer(self, qkv: Tensor, k_cache: Tensor, plan: list[_Group | _Chunk]) -> bool:
        return False

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: list[_Group | _Chunk]) -> Tensor:
        if len(plan) == 1 and isinstance(plan[0], _Group) and plan[0].tokens is None:
            keys, values = self._gather(k_cache, 0, plan[0].slots), self._gather(v_cache, 1, plan[0].slots)
            return _attend_group(q, keys, values, plan[0].mask, scale)
        # Rows of padding are in no group and keep their zeros.
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        for part in plan:
            keys, values = self._gather(k_cache, 0, part.slots), self._gather(v_cache, 1, part.slots)
            if isinstance(part, _Chunk):
                out[part.tokens] = _attend_chunk(q[part.tokens], keys, values, part.mask, scale)
            else:
                assert part.tokens is not None  # it is None only where the group is alone
                out[part.tokens] = _attend_group(q[part.tokens], keys, values, part.mask, scale)
        return out

    def close(self) -> None:
        self._buffers.clear()

    def _group(self, batch: ForwardBatch, rows: list[int], contexts: list[int]) -> _Group:
        index = torch.tensor(rows, device="cpu")
        longest = max(contexts[row] for row in rows)
        tokens = batch.cu_seqlens_q[index].long() if len(rows) < batch.num_tokens else None
        if len(rows) == 1:
            return _Group(tokens, _slots(batch, rows[0], longest), None)
        positions = torch.arange(longest, device="cpu")
        beyond = positions >= batch.context_lens[index, None]
        is_ragged = any(contexts[row] < longest for row in rows)
        # Beyond its context a row reads its own position 0 again: a slot that nobody wrote may hold NaN,
        # which spoils a sum even with weight zero.
        positions = positions.expand(beyond.shape).masked_fill(beyond, 0)
        blocks = batch.block_tables[index].gather(1, positions // batch.block_size)
        slots = blocks.long() * batch.block_size + positions % batch.block_size
        return _Group(tokens, slots.flatten(), self._mask(beyond)[:, None, None] if is_ragged else None)

    def _mask(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)

    def _gather(self, cache: Tensor, which: int, slots: Tensor | slice) -> Tensor:
        """Return [slots, num_kv_heads, head_dim]: a view of a slice, else buffer ``which``, until it is next used.

        Where the pool has a format of its own it is a new tensor in that of the queries.
        """
        per_slot = cache.view(-1, *cache.shape[2:])
        if isinstance(slots, slice):
            return per_slot[slots].to(self._dtype)
        rows = cache.view(per_slot.shape[0], -1)
        size = slots.shape[0] * rows.shape[1]
        while len(self._buffers) <= which:
            self._buffers.append(rows.new_empty(0))
        if self._buffers[which].numel() < size:
            self._buffers[which] = rows.new_empty(size)
        out = self._buffers[which][:size].view(slots.shape[0], -1)
        torch.index_select(rows, 0, slots, out=out)
        return out.view(slots.shape[0], *cache.shape[2:]).to(self._dtype)


def _slots(batch: ForwardBatch, row: int, context: int) -> Tensor | slice:
    """Return the slots of one row's positions below ``context``, as a slice where its blocks lie side by side."""
    size = batch.block_size
    table = batch.block_tables[row].tolist()[: -(-context // size)]
    if table == list(range(table[0], table[0] + len(table))):
        return slice(table[0] * size, table[0] * size + context)
    positions = torch.arange(context, device="cpu")
    return batch.block_tables[row][positions // size].long() * size + positions % size


def _similar_lengths(rows: list[int], contexts: list[int]) -> list[list[int]]:
    """Split rows into groups whose contexts differ by less than a factor of two: less padding than work."""
    groups: list[list[int]] = []
    for row in sorted(rows, key=lambda row: -contexts[row]):
        if groups and 2 * contexts[row] > contexts[groups[-1][0]]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [sorted(group) for group in groups]


def _attend_group(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    # The query heads that share a KV head stand where a sequence of queries would: no key is repeated.
    batch, length = q.shape[0], keys.shape[0] // q.shape[0]
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
