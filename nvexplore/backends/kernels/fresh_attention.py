"""Causal attention of prompts from their first token on: keys and values straight from the projection.

Such rows look at nothing but tokens of their own step, whose keys and values lie one after another in the packed
projection, however scattered the blocks are that they are stored in. So whole tiles come by the GPU's copy engine for
tensors (TMA, from Hopper on), without an address a row; the paged kernel needs about a third more time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nvexplore.backends.kernels.launch import IS_INTERPRETED, check_queries, power_of_2
from nvexplore.backends.kernels.prefill_attention import TileShape

_LOG2_E = 1.4426950408889634


def fresh_tile_shape() -> TileShape:
    """Two programs fit in a processor at the same time: one multiplies while the other works on its scores."""
    return TileShape(16, 16, 1, 1) if IS_INTERPRETED else TileShape(128, 64, 4, 2)


def takes(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel is made for such heads: 16 bits, and a power of two that fits."""
    return dtype.itemsize == 2 and head_dim in (16, 32, 64, 128)


@triton.jit
def _attend(
    q: tl.tensor,
    acc: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    token: tl.tensor,
    num_tokens: tl.tensor,
    begin: tl.tensor,
    kv_head: tl.tensor,
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    IS_EDGE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Attend to the keys [first, end); IS_EDGE: some may lie behind a token, or belong to the next row."""
    for start in range(first, end, KEYS):
        k = keys.load([begin + start, kv_head * HEAD_DIM]).to(q.dtype)
        score = tl.dot(q, tl.trans(k))
        if IS_EDGE:
            key = start + tl.arange(0, KEYS)
            score = tl.where(key[None, :] <= token[:, None], score, -1e30)
        new_peak = tl.maximum(peak, tl.max(score, axis=1) * scale)
        weight = tl.exp2(score * scale - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        v = values.load([begin + start, kv_head * HEAD_DIM]).to(q.dtype)
        if IS_EDGE:
            # What the next row holds may be no number, which weight 0 does not make 0.
            v = tl.where((start + tl.arange(0, KEYS) < num_tokens)[:, None], v, 0.0)
        acc = tl.dot(weight.to(v.dtype), v, acc * fade[:, None])
        total = total * fade + tl.sum(weight, axis=1)
        peak = new_peak
    return acc, peak, total


@triton.jit
def _fresh_attention(
    q_ptr: tl.tensor,
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    starts_ptr: tl.tensor,
    tile_rows_ptr: tl.tensor,
    tile_firsts_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    SCORES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDENS: tl.constexpr,
) -> None:
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    row = tl.load(tile_rows_ptr + tile)
    first_token = tl.load(tile_firsts_ptr + tile)
    begin = tl.load(starts_ptr + row)
    num_tokens = tl.load(starts_ptr + row + 1) - begin

    # A row of scores for each token and each query head of those that share the KV head.
    score = tl.arange(0, SCORES)
    token = first_token + score // GROUP
    is_query = (score < TOKENS * GROUP) & (token < num_tokens)
    tile_at = ((begin + first_token).to(tl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP) * HEAD_DIM
    head_at = (score // GROUP * (NUM_KV_HEADS * GROUP) + score % GROUP) * HEAD_DIM
    at = tile_at + head_at[:, None] + tl.arange(0, HEAD_DIM)[None, :]
    q = tl.load(q_ptr + at, mask=is_query[:, None], other=0.0)
    if WIDENS:
        q = q.to(tl.float32)

    peak = tl.full([SCORES], -1e30, tl.float32)
    total = tl.zeros([SCORES], tl.float32)
    acc = tl.zeros([SCORES, HEAD_DIM], tl.float32)
    # Every token of the tile sees the keys up to the first token's own.
    edge = (first_token + 1) // KEYS * KEYS
    end = tl.minimum(num_tokens, first_token + TOKENS)
    acc, peak, total = _attend(
        q, acc, peak, total, 0, edge, token, num_tokens, begin, kv_head, keys, values, scale, HEAD_DIM, KEYS, False
    )
    acc, peak, total = _attend(
        q, acc, peak, total, edge, end, token, num_tokens, begin, kv_head, keys, values, scale, HEAD_DIM, KEYS, True
    )
    result = acc / total[:, None]
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=is_query[:, None])


def fresh_attention(
    q: Tensor,
    qkv: Tensor,
    cu_seqlens_q: Tensor,
    scale: float,
    *,
    tile_rows: Tensor,
    tile_firsts: Tensor,
    out: Tensor,
) -> None:
    """Write attention for the tiles' tokens into ``out`` [T, num_heads, head_dim]; each sees its own row's tokens.

    q: like out, of heads that ``takes`` takes. qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], the keys in it
    normalised and rotated. cu_seqlens_q: [N + 1] int32, first token of each row, then T.
    tile_rows, tile_firsts: [tiles] int32, the row of each tile and which of the row's tokens is its first; a tile has
    ``fresh_tile_shape().tokens(group)`` of them.
    """
    check_queries(q)
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = (qkv.shape[1] // head_dim - num_heads) // 2
    group = num_heads // num_kv_heads
    if not takes(q.dtype, head_dim):
        raise ValueError(f"q of {q.dtype} with head_dim {head_dim}: this kernel takes 16 bits, and 16, 32, 64 or 128")
    if not tile_rows.shape[0]:
        return
    shape = fresh_tile_shape()
    width = num_kv_heads * head_dim
    keys, values = (
        TensorDescriptor.from_tensor(qkv[:, first : first + width], [shape.keys, head_dim])
        for first in (num_heads * head_dim, num_heads * head_dim + width)
    )
    _fresh_attention[(num_kv_heads, tile_rows.shape[0])](
        q, keys, values, cu_seqlens_q, tile_rows, tile_firsts, out, scale * _LOG2_E,
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, TOKENS=shape.tokens(group),
        SCORES=power_of_2(max(shape.scores, group), 16), KEYS=shape.keys,
        WIDENS=IS_INTERPRETED, num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
