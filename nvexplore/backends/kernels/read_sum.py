"""A sum that does nothing but read: how fast memory can be read is measured with it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 8192  # values a program reads, all of them on their way at the same time


@triton.jit
def _read_sum(x_ptr: tl.tensor, out_ptr: tl.tensor, size: tl.tensor, WIDTH: tl.constexpr) -> None:
    program = tl.program_id(0)
    at = program.to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    tl.store(out_ptr + program, tl.sum(tl.load(x_ptr + at, mask=at < size, other=0.0), axis=0))


def read_sum(x: Tensor) -> Tensor:
    """x [n] float32 -> sums of its parts of ``WIDTH`` values, [n / WIDTH, rounded up] float32."""
    parts = triton.cdiv(x.shape[0], WIDTH)
    out = torch.empty(parts, dtype=torch.float32, device=x.device)
    if parts:
        _read_sum[(parts,)](x, out, x.shape[0], WIDTH=WIDTH, num_warps=8)
    return out
