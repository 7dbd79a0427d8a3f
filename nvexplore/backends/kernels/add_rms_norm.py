"""Residual add and RMSNorm in one pass: a program reads a row once and writes the sum and its norm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import await_kernel_before, check_rows, launch_options, power_of_2


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
    PARTS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    await_kernel_before(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    is_in = at < SIZE
    x = tl.load(x_ptr + row * x_stride + at, mask=is_in, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        x += tl.load(x_ptr + (part * tl.num_programs(0) + row) * x_stride + at, mask=is_in, other=0.0)
    if ADDS:
        x += tl.load(residual_ptr + row * SIZE + at, mask=is_in, other=0.0).to(tl.float32)
        total = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * SIZE + at, total, mask=is_in)
    scale = tl.rsqrt(tl.sum(x * x) / SIZE + eps)
    weight = tl.load(weight_ptr + at, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=is_in)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, size] -> (norm(x + residual), x + residual); the sum is written over ``residual``.

    Without a residual (norm(x), x). Sum and norm are computed in float32 and rounded once each. With a residual x may
    also be [parts, T, size] float32, contiguous: sums that ``few_rows_linear`` has split, which are added up here.
    """
    check_rows("x", x)
    out = torch.empty(x.shape[-2:], dtype=x.dtype if residual is None else residual.dtype, device=x.device)
    if x.dim() > 2 and (residual is None or not x.is_contiguous()):
        raise ValueError(f"x of shape {tuple(x.shape)}, strides {x.stride()}: parts need a residual and no gaps")
    if residual is not None and not residual.is_contiguous():
        raise ValueError(f"residual of shape {tuple(residual.shape)} and strides {residual.stride()}: not contiguous")
    rows, size = x.shape[-2:]
    if rows:
        width = power_of_2(size)
        _add_rms_norm[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            out,
            x.stride(-2),
            eps,
            SIZE=size,
            WIDTH=width,
            ADDS=residual is not None,
            PARTS=x.shape[0] if x.dim() > 2 else 1,
            **launch_options(),
            num_warps=min(16, max(1, width // 512)),
        )
    return out, x if residual is None else residual
