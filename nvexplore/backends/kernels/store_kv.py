"""Keys and values of a step's tokens into the paged pool, by slot."""

import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import check_rows, power_of_2


@triton.jit
def as_stored(x: tl.tensor, pool_ptr: tl.tensor) -> tl.tensor:
    """Values in the pool's format. float8_e4m3fn has no infinity: beyond 448 it would be NaN, so that is where it ends.

    NaN stays NaN: what is broken must show.
    """
    if pool_ptr.dtype.element_ty == tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(pool_ptr.dtype.element_ty)


@triton.jit
def _store_kv(
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:  # -1 as an index would be the pool's last slot
        at = tl.arange(0, WIDTH)
        is_in = at < SIZE
        k = tl.load(k_ptr + token * k_stride + at, mask=is_in)
        v = tl.load(v_ptr + token * v_stride + at, mask=is_in)
        tl.store(k_cache_ptr + slot * SIZE + at, as_stored(k, k_cache_ptr), mask=is_in)
        tl.store(v_cache_ptr + slot * SIZE + at, as_stored(v, v_cache_ptr), mask=is_in)


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write k, v [T, num_kv_heads, head_dim] to the slots of the caches that ``slot_mapping`` [T] names; -1 skips.

    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, in the format of k and v or in
    float8_e4m3fn, to which values are rounded; ±448 is its greatest.
    """
    check_pool(k_cache, v_cache)
    k, v = k.flatten(1), v.flatten(1)
    check_rows("k", k)
    check_rows("v", v)
    size = k.shape[1]
    if size != k_cache.shape[2] * k_cache.shape[3]:
        raise ValueError(f"keys of {size} values a token, the cache holds {k_cache.shape[2] * k_cache.shape[3]}")
    if k.shape[0]:
        width = power_of_2(size)
        _store_kv[(k.shape[0],)](
            k, v, k_cache, v_cache, slot_mapping, k.stride(0), v.stride(0), SIZE=size, WIDTH=width, num_warps=2
        )


def check_pool(k_cache: Tensor, v_cache: Tensor) -> None:
    """A slot's offset is slot * num_kv_heads * head_dim only in contiguous caches; ValueError for others."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if not cache.is_contiguous():
            raise ValueError(f"{name} of shape {tuple(cache.shape)} and strides {cache.stride()}: not contiguous")
