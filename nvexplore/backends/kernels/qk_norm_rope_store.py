"""From the packed projection to queries, and keys and values in the paged pool: norm, rotation and store in one pass.

A program takes a few heads of one token. Queries, keys and values lie side by side, so heads are told apart by their
number: queries first, then keys, then values, which are neither normalised nor rotated.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import await_kernel_before, check_rows, launch_options, power_of_2
from nvexplore.backends.kernels.store_kv import as_stored, check_pool

_HEADS_A_PROGRAM = 8


@triton.jit
def _qk_norm_rope_store(
    qkv_ptr: tl.tensor,
    q_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    angles_ptr: tl.tensor,
    q_weight_ptr: tl.tensor,
    k_weight_ptr: tl.tensor,
    row_stride: tl.tensor,
    q_eps: tl.tensor,
    k_eps: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    KEEPS_KEYS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    await_kernel_before(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, WIDTH)
    is_q = head < NUM_HEADS
    is_k = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_v = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS)
    is_in = (at < HALF)[None, :] & (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None]
    source = qkv_ptr + token * row_stride + head[:, None] * (2 * HALF) + at[None, :]
    raw_first = tl.load(source, mask=is_in, other=0.0)
    raw_second = tl.load(source + HALF, mask=is_in, other=0.0)
    first = raw_first.to(tl.float32)
    second = raw_second.to(tl.float32)
    if HAS_NORM:
        square = tl.sum(first * first + second * second, axis=1) / (2 * HALF)
        scale = tl.rsqrt(square + tl.where(is_q, q_eps, k_eps))[:, None]
        q_first = tl.load(q_weight_ptr + at, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
        q_second = tl.load(q_weight_ptr + HALF + at, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
        k_first = tl.load(k_weight_ptr + at, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
        k_second = tl.load(k_weight_ptr + HALF + at, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
        first = first * scale * tl.where(is_q[:, None], q_first, k_first)
        second = second * scale * tl.where(is_q[:, None], q_second, k_second)
    position = tl.load(positions_ptr + token).to(tl.int64)
    angles = angles_ptr + position * (2 * HALF) + at
    cos = tl.load(angles, mask=at < HALF, other=0.0)[None, :]
    sin = tl.load(angles + HALF, mask=at < HALF, other=0.0)[None, :]
    turned_first = (first * cos - second * sin).to(q_ptr.dtype.element_ty)
    turned_second = (second * cos + first * sin).to(q_ptr.dtype.element_ty)
    q_to = q_ptr + (token * NUM_HEADS + head[:, None]) * (2 * HALF) + at[None, :]
    tl.store(q_to, turned_first, mask=is_in & is_q[:, None])
    tl.store(q_to + HALF, turned_second, mask=is_in & is_q[:, None])
    if KEEPS_KEYS:
        tl.store(source, turned_first, mask=is_in & is_k[:, None])
        tl.store(source + HALF, turned_second, mask=is_in & is_k[:, None])
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:  # -1 as an index would be the pool's last slot
        k_head = head - NUM_HEADS
        k_to = k_cache_ptr + (slot * NUM_KV_HEADS + k_head[:, None]) * (2 * HALF) + at[None, :]
        tl.store(k_to, as_stored(turned_first, k_cache_ptr), mask=is_in & is_k[:, None])
        tl.store(k_to + HALF, as_stored(turned_second, k_cache_ptr), mask=is_in & is_k[:, None])
        v_head = k_head - NUM_KV_HEADS
        v_to = v_cache_ptr + (slot * NUM_KV_HEADS + v_head[:, None]) * (2 * HALF) + at[None, :]
        tl.store(v_to, as_stored(raw_first, v_cache_ptr), mask=is_in & is_v[:, None])
        tl.store(v_to + HALF, as_stored(raw_second, v_cache_ptr), mask=is_in & is_v[:, None])


def qk_norm_rope_store(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    q_norm: tuple[Tensor, float] | None = None,
    k_norm: tuple[Tensor, float] | None = None,
    *,
    keeps_keys: bool = False,
) -> Tensor:
    """Return the queries [T, num_heads, head_dim]; keys and values go to ``slot_mapping`` [T], where -1 skips.

    qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim]; k_cache, v_cache: [blocks, block_size, num_kv_heads,
    head_dim], contiguous, in a format that ``store_kv`` takes; cos_sin: [max_positions, head_dim] float32, cosines then
    sines; q_norm, k_norm: weight [head_dim] and eps, both or neither. Everything is computed in float32 and rounded
    once, to the format of qkv, before it is stored. keeps_keys: the keys in ``qkv`` itself are replaced by theirs, too.
    """
    check_pool(k_cache, v_cache)
    check_rows("qkv", qkv)
    tokens, num_kv_heads, head_dim = qkv.shape[0], k_cache.shape[2], k_cache.shape[3]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    q = torch.empty(tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        half = head_dim // 2
        heads = min(_HEADS_A_PROGRAM, power_of_2(num_heads + 2 * num_kv_heads))
        q_weight, q_eps = q_norm or (cos_sin, 0.0)
        k_weight, k_eps = k_norm or (cos_sin, 0.0)
        _qk_norm_rope_store[(tokens, triton.cdiv(num_heads + 2 * num_kv_heads, heads))](
            qkv, q, k_cache, v_cache, slot_mapping, positions, cos_sin, q_weight, k_weight,
            qkv.stride(0), q_eps, k_eps,
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HALF=half, WIDTH=power_of_2(half),
            HEADS=heads, HAS_NORM=q_norm is not None, KEEPS_KEYS=keeps_keys, num_warps=2, **launch_options(),
        )  # fmt: skip
    return q
