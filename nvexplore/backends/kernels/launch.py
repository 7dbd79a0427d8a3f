"""What the kernels' launchers share: block sizes, when a kernel may start, and whether the interpreter runs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Triton's interpreter holds bfloat16 as bits and multiplies those: under it, tiles are widened before a dot."""

_EARLY: ContextVar[bool] = ContextVar("early launches", default=False)


@contextmanager
def early_launches() -> Iterator[None]:
    """Launch what may be launched early before the kernel in front of it has ended, which it then waits for itself.

    So the time from one kernel's end to the next one's start is gone: programmatic dependent launch, on GPUs from
    compute capability 9.0 on. Where the kernel in front does not take part in it, nothing changes.
    """
    token = _EARLY.set(True)
    try:
        yield
    finally:
        _EARLY.reset(token)


def launches_early() -> bool:
    """Whether this is inside of ``early_launches``."""
    return _EARLY.get()


def launch_options() -> dict[str, Any]:
    """Arguments of a kernel that begins with ``await_kernel_before(EARLY)``."""
    if not _EARLY.get() or IS_INTERPRETED:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


@triton.jit
def await_kernel_before(EARLY: tl.constexpr) -> None:
    """Wait until all that the kernel before has written is there, and let the next one start."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


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
