"""Ragged rows over a paged pool full of traps, and what attention must give for them, in plain torch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tests.kernels.places import Place, assert_near

SCALE = 0.3
SENTINEL = 77.0  # what outputs hold before


@dataclass
class PagedCase:
    """Row i has ``counts[i]`` query tokens at the end of a context of ``contexts[i]``.

    Every slot that no context holds is NaN, blocks lie in random order, and the pool is a part of a larger one, so that
    block -1, which pads the tables, is NaN too. keys, values: of each row, as they are read from the pool.
    """

    place: Place
    contexts: list[int]
    counts: list[int]
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    keys: list[Tensor]
    values: list[Tensor]

    @property
    def starts(self) -> list[int]:
        return [0, *accumulate(self.counts)]

    @property
    def context_lens(self) -> Tensor:
        return self.place.ints(self.contexts)

    @property
    def cu_seqlens_q(self) -> Tensor:
        return self.place.ints(self.starts)

    def tokens(self, row: int) -> slice:
        return slice(self.starts[row], self.starts[row + 1])

    def check(self, out: Tensor, rows: Iterable[int] | None = None) -> None:
        """Compare the outputs of ``rows`` (None: all); tokens of other rows must still hold the sentinel."""
        wanted = set(range(len(self.counts)) if rows is None else rows)
        assert out.shape == self.q.shape and out.dtype == self.q.dtype
        for row, context in enumerate(self.contexts):
            found = out[self.tokens(row)]
            if row not in wanted:
                assert (found == SENTINEL).all(), f"row {row} was written"
            elif context == 0:
                assert (found == 0).all(), f"row {row} is padding"
            else:
                assert_near(found, plain_attention, self.q[self.tokens(row)], self.keys[row], self.values[row])

    def sentinels(self) -> Tensor:
        return torch.full_like(self.q, SENTINEL)


def plain_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One row: q [n, heads, head_dim] at the end of keys, values [context, kv_heads, head_dim], in the dtype of q."""
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", q, keys) * SCALE
    count, context = scores.shape[1:]
    positions = torch.arange(context - count, context)
    hidden = torch.arange(context) > positions[:, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hts,shd->thd", weights, values)


def paged_case(
    place: Place,
    rows: list[tuple[int, int]],
    *,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    scale: float = 1.0,
) -> PagedCase:
    """Make a case with a row for each (context, count); heads: of queries and of keys; scale: of the queries."""
    num_heads, num_kv_heads = heads
    needed = [-(-context // block_size) for context, _ in rows]
    num_blocks = sum(needed) + 3
    free = random.Random(len(rows)).sample(range(num_blocks), num_blocks)
    tables = [[free.pop() for _ in range(count)] for count in needed]
    widest = max(needed) + 1
    whole = place.pool(2, num_blocks + 2, block_size, num_kv_heads, head_dim)
    k_cache, v_cache = whole[0, 1:-1], whole[1, 1:-1]
    keys, values = [], []
    for table, (context, _) in zip(tables, rows, strict=True):
        keys.append(place.kept(place.randn(context, num_kv_heads, head_dim)))
        values.append(place.kept(place.randn(context, num_kv_heads, head_dim)))
        for number, block in enumerate(table):
            first, end = number * block_size, min(context, (number + 1) * block_size)
            k_cache[block, : end - first] = keys[-1][first:end]
            v_cache[block, : end - first] = values[-1][first:end]
    counts = [count for _, count in rows]
    return PagedCase(
        place=place,
        contexts=[context for context, _ in rows],
        counts=counts,
        q=place.randn(sum(counts), num_heads, head_dim, scale=scale),
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=place.ints([table + [-1] * (widest - len(table)) for table in tables]),
        keys=keys,
        values=values,
    )
