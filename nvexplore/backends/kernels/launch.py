"""What the kernels' launchers share: block sizes, and whether the interpreter runs them."""

import triton
from torch import Tensor

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Triton's interpreter holds bfloat16 as bits and multiplies those: under it, tiles are widened before a dot."""


def power_of_2(size: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``size`` and ``least``: how wide a tile must be."""
    return max(least, 1 << (size - 1).bit_length())


def check_rows(name: str, x: Tensor) -> None:
    """Kernels walk along rows without gaps; ValueError for a tensor whose last dimension has a stride."""
    if x.stride(-1) != 1:
        raise ValueError(f"{name}: the last dimension of {tuple(x.shape)} has stride {x.stride(-1)}: it must be 1")


def check_queries(q: Tensor) -> None:
    """ValueError for queries that do not lie one after another."""
    if not q.is_contiguous():
        raise ValueError(f"q of shape {tuple(q.shape)} and strides {q.stride()}: not contiguous")
