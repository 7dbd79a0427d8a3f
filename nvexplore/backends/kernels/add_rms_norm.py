"""Residual add and RMSNorm in one pass: a program reads a row once and writes the sum and its norm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import check_rows, power_of_2


@triton.jit
def _add_rms_norm(
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ADDS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    is_in = at < SIZE
    x = tl.load(x_ptr + row * x_stride + at, mask=is_in, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(residual_ptr + row * SIZE + at, mask=is_in, other=0.0).to(tl.float32)
        total = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * SIZE + at, total, mask=is_in)
    scale = tl.rsqrt(tl.sum(x * x) / SIZE + eps)
    weight = tl.load(weight_ptr + at, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=is_in)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, size] -> (norm(x + residual), x + residual); the sum is written over ``residual``.

    Without a residual (norm(x), x). Sum and norm are computed in float32 and rounded once each.
    """
    check_rows("x", x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if residual is not None and not residual.is_contiguous():
        raise ValueError(f"residual of shape {tuple(residual.shape)} and strides {residual.stride()}: not contiguous")
    rows, size = x.shape
    if rows:
        width = power_of_2(size)
        _add_rms_norm[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            out,
            x.stride(0),
            eps,
            SIZE=size,
            WIDTH=width,
            ADDS=residual is not None,
            num_warps=min(16, max(1, width // 512)),
        )
    return out, x if residual is None else residual
