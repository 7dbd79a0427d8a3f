"""Causal attention of rows with many query tokens over the paged pool: cached context and new tokens alike.

A program takes a tile: some tokens of one row times the query heads that share a KV head. Keys before the tile's first
token need no mask; only the last few tiles of keys, which the causal edge crosses, pay for one.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import IS_INTERPRETED, check_queries, power_of_2

_LOG2_E = 1.4426950408889634


class TileShape(NamedTuple):
    """rows_of_scores = tokens * query heads a KV head, at most; keys: a tile's; and how Triton is to run it."""

    scores: int
    keys: int
    warps: int
    stages: int

    def tokens(self, group: int) -> int:
        """Tokens a program takes where ``group`` query heads share a KV head."""
        return max(1, self.scores // group)


def tile_shape(item_size: int, head_dim: int) -> TileShape:
    """What fits in a processor's shared memory: 2-byte values are multiplied by the matrix units."""
    if IS_INTERPRETED:
        return TileShape(16, 16, 1, 1)
    if item_size == 4:
        return TileShape(32, 32, 4, 1)
    return TileShape(128, 64, 4, 3) if head_dim <= 128 else TileShape(64, 32, 4, 2)


@triton.jit
def _attend(
    q: tl.tensor,
    acc: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    position: tl.tensor,
    table: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    kv_head: tl.tensor,
    context: tl.tensor,
    scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    IS_EDGE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Attend to the keys [first, end); IS_EDGE: some may lie behind a token, or beyond the context."""
    at = tl.arange(0, WIDTH)
    for start in range(first, end, KEYS):
        key = start + tl.arange(0, KEYS)
        is_value = (at < HEAD_DIM)[None, :]
        if IS_EDGE:
            block = tl.load(table + key // BLOCK_SIZE, mask=key < context, other=0).to(tl.int64)
            is_value = is_value & (key < context)[:, None]
        else:
            block = tl.load(table + key // BLOCK_SIZE).to(tl.int64)
        key_at = ((block * BLOCK_SIZE + key % BLOCK_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_DIM
        # The pool may have fewer bits than the queries.
        k = tl.load(k_cache_ptr + key_at[:, None] + at[None, :], mask=is_value, other=0.0).to(q.dtype)
        v = tl.load(v_cache_ptr + key_at[:, None] + at[None, :], mask=is_value, other=0.0).to(q.dtype)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if IS_EDGE:
            score = tl.where(key[None, :] <= position[:, None], score, -1e30)
        new_peak = tl.maximum(peak, tl.max(score, axis=1) * scale)
        weight = tl.exp2(score * scale - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        total = total * fade + tl.sum(weight, axis=1)
        peak = new_peak
    return acc, peak, total


@triton.jit(do_not_specialize=["table_stride"])
def _prefill_attention(
    q_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    contexts_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    tile_rows_ptr: tl.tensor,
    tile_firsts_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    table_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    SCORES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENS: tl.constexpr,
) -> None:
    tile = tl.program_id(1)
    kv_head = tl.program_id(0)
    row = tl.load(tile_rows_ptr + tile)
    if row < 0:  # a tile of padding
        return
    first_token = tl.load(tile_firsts_ptr + tile)
    begin = tl.load(starts_ptr + row)
    num_tokens = tl.load(starts_ptr + row + 1) - begin
    context = tl.load(contexts_ptr + row)
    cached = context - num_tokens

    score = tl.arange(0, SCORES)
    token = first_token + score // GROUP
    head = kv_head * GROUP + score % GROUP
    is_query = (score < TOKENS * GROUP) & (token < num_tokens)
    position = cached + tl.where(is_query, token, first_token)
    at = tl.arange(0, WIDTH)
    q_at = ((begin + token).to(tl.int64) * (NUM_KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + at[None, :]
    is_in = is_query[:, None] & (at < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_at, mask=is_in, other=0.0)
    if WIDENS:
        q = q.to(tl.float32)

    peak = tl.full([SCORES], -1e30, tl.float32)
    total = tl.zeros([SCORES], tl.float32)
    acc = tl.zeros([SCORES, WIDTH], tl.float32)
    table = tables_ptr + row.to(tl.int64) * table_stride
    # Every token of the tile sees the keys up to the first token's own.
    edge = (cached + first_token + 1) // KEYS * KEYS
    end = tl.minimum(context, cached + first_token + TOKENS)
    acc, peak, total = _attend(
        q, acc, peak, total, 0, edge, position, table, k_cache_ptr, v_cache_ptr, kv_head, context, scale,
        NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS, False, PRECISION,
    )  # fmt: skip
    acc, peak, total = _attend(
        q, acc, peak, total, edge, end, position, table, k_cache_ptr, v_cache_ptr, kv_head, context, scale,
        NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, KEYS, True, PRECISION,
    )  # fmt: skip
    result = acc / total[:, None]
    tl.store(out_ptr + q_at, result.to(out_ptr.dtype.element_ty), mask=is_in)


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    cu_seqlens_q: Tensor,
    scale: float,
    *,
    tile_rows: Tensor,
    tile_firsts: Tensor,
    out: Tensor,
) -> None:
    """Write attention for the tiles' tokens into ``out`` [T, num_heads, head_dim].

    q: like out. k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, in the format of q or a
    narrower one. block_tables [N, widest], context_lens [N], cu_seqlens_q [N + 1] int32.
    tile_rows, tile_firsts: [tiles] int32, the row of each tile and which of the row's tokens is its first; a tile has
    ``tile_shape(...).tokens(group)`` of them. A tile whose row is -1 is none.
    """
    check_queries(q)
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    shape = tile_shape(q.dtype.itemsize, head_dim)
    if not tile_rows.shape[0]:
        return
    _prefill_attention[(num_kv_heads, tile_rows.shape[0])](
        q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, tile_rows, tile_firsts, out,
        scale * _LOG2_E, block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, WIDTH=power_of_2(head_dim, 16),
        BLOCK_SIZE=block_size, TOKENS=shape.tokens(group), SCORES=power_of_2(max(shape.scores, group), 16),
        KEYS=shape.keys, PRECISION="ieee", WIDENS=IS_INTERPRETED, num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
