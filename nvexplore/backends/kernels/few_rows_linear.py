"""y = x W^T of a decode step with few rows, where a layer takes as long as its kernel's latency, not as its work.

A program takes a few outputs of all rows (of 64 where there are more) and reads their weights once. Where outputs are
few, long sums are split over programs, and the kernel that reads the result adds them up.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import IS_INTERPRETED, await_kernel_before, check_rows, launch_options

MAX_ROWS = 128
_MAX_BYTES = 12 << 20  # of a weight: of a larger one reading takes longer than any latency, and cuBLAS reads faster
_FEWEST = 16  # programs: with less than that, too little of the device reads
_ENOUGH = 128  # programs from which on no sum is split
_MAX_PARTS = 4


@triton.jit(do_not_specialize=["rows"])
def _few_rows_linear(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    x_stride: tl.tensor,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STEP: tl.constexpr,
    PARTS: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDENS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    await_kernel_before(EARLY)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    at = part * (INPUTS // PARTS) + tl.arange(0, STEP)
    is_row = (row < rows)[:, None]
    x_at = x_ptr + row[:, None].to(tl.int64) * x_stride + at[None, :]
    weight_at = weight_ptr + col[:, None] * INPUTS + at[None, :]
    acc = tl.zeros([ROWS, COLS], tl.float32)
    if IS_GATED:
        up_at = weight_at + outputs * INPUTS
        up_acc = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, INPUTS // PARTS, STEP):
            x = tl.load(x_at + start, mask=is_row, other=0.0)
            gate = tl.load(weight_at + start)
            up = tl.load(up_at + start)
            if WIDENS:
                x, gate, up = x.to(tl.float32), gate.to(tl.float32), up.to(tl.float32)
            acc = tl.dot(x, tl.trans(gate), acc)
            up_acc = tl.dot(x, tl.trans(up), up_acc)
        if HAS_BIAS:
            acc += tl.load(bias_ptr + col).to(tl.float32)[None, :]
            up_acc += tl.load(bias_ptr + outputs + col).to(tl.float32)[None, :]
        # Rounded as if both halves had been written first.
        value = acc.to(out_ptr.dtype.element_ty).to(tl.float32)
        acc = value / (1.0 + tl.exp(-value)) * up_acc.to(out_ptr.dtype.element_ty).to(tl.float32)
    else:
        for start in range(0, INPUTS // PARTS, STEP):
            x = tl.load(x_at + start, mask=is_row, other=0.0)
            weight = tl.load(weight_at + start)
            if WIDENS:
                x, weight = x.to(tl.float32), weight.to(tl.float32)
            acc = tl.dot(x, tl.trans(weight), acc)
        if HAS_BIAS:
            acc += tl.where(part == 0, tl.load(bias_ptr + col).to(tl.float32), 0.0)[None, :]
    to = out_ptr + (part * rows + row)[:, None].to(tl.int64) * outputs + col[None, :]
    tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=is_row)


def _sizes(x: Tensor, weight: Tensor, is_gated: bool) -> tuple[int, int, int]:
    """Rows, inputs and outputs."""
    return x.shape[0], weight.shape[1], weight.shape[0] // 2 if is_gated else weight.shape[0]


class _Shape(NamedTuple):
    """How the work is cut, as measured on an H200 in a chain of all kernels of a layer."""

    rows: int
    cols: int
    step: int
    parts: int
    num_warps: int
    num_stages: int


def _shape(rows: int, inputs: int, outputs: int, *, splits: bool, is_gated: bool) -> _Shape | None:
    """None where a size divides by no tile, or too few programs would read."""
    step = next((step for step in (128, 64) if inputs % step == 0), 0)
    if not step or outputs % 32:
        return None
    parts = 1
    while splits and parts < _MAX_PARTS and outputs // 32 * parts < _ENOUGH and inputs % (2 * parts * step) == 0:
        parts *= 2
    if outputs // 32 * parts < _FEWEST:
        return None
    if rows <= 16:
        if parts > 1 or is_gated or step == 64:
            return _Shape(16, 32, step, parts, num_warps=4, num_stages=5)
        return _Shape(16, 16, step, parts, num_warps=2, num_stages=4)
    if parts > 1:
        return _Shape(64, 32, step, parts, num_warps=4, num_stages=4)
    if rows <= 64 or outputs % 64:
        return _Shape(64, 32, 64, parts, num_warps=4, num_stages=6)
    return _Shape(64, 64, 64, parts, num_warps=4, num_stages=5)


def most_rows(device: torch.device) -> int:
    """How many rows a step may have that is launched early: it was measured on a Hopper data center GPU.

    Others need compute capability 9.0, and 128 KiB of shared memory a program, which smaller Blackwell GPUs have not.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    return MAX_ROWS if torch.cuda.get_device_capability(device)[0] in (9, 10) else 0


def takes(x: Tensor, weight: Tensor, *, is_gated: bool = False, splits: bool = False) -> bool:
    """Whether ``few_rows_linear`` has a way, and probably the fastest one, for these arguments."""
    if x.dtype.itemsize != 2 or x.shape[0] > MAX_ROWS or weight.nbytes > _MAX_BYTES:
        return False
    return _shape(*_sizes(x, weight, is_gated), splits=splits, is_gated=is_gated) is not None


def few_rows_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, is_gated: bool = False, splits: bool = False
) -> Tensor:
    """x [T, in], weight [out, in], bias [out] -> [T, out], summed in float32 and rounded once.

    is_gated: [T, out / 2] instead, silu of the first half of the outputs times the second.
    splits: where it is faster, [parts, T, out] float32 instead, whose parts are still to be added up.
    ValueError for sizes that no tile divides, or too few outputs.
    """
    check_rows("x", x)
    rows, inputs, outputs = _sizes(x, weight, is_gated)
    shape = _shape(rows, inputs, outputs, splits=splits, is_gated=is_gated)
    if shape is None or not weight.is_contiguous():
        raise ValueError(
            f"a weight of shape {tuple(weight.shape)}, strides {weight.stride()}: it must be contiguous, its inputs a "
            f"multiple of 64, its outputs (of a half where it is gated) of 32 and enough for {_FEWEST} programs"
        )
    parts = shape.parts
    size, dtype = ((parts, rows, outputs), torch.float32) if parts > 1 else ((rows, outputs), x.dtype)
    out = torch.empty(size, dtype=dtype, device=x.device)
    _few_rows_linear[(outputs // shape.cols, triton.cdiv(rows, shape.rows), parts)](
        x, weight, weight if bias is None else bias, out, rows, outputs, x.stride(0),
        INPUTS=inputs, ROWS=shape.rows, COLS=shape.cols, STEP=shape.step, PARTS=parts,
        IS_GATED=is_gated, HAS_BIAS=bias is not None, WIDENS=IS_INTERPRETED,
        num_warps=shape.num_warps, num_stages=shape.num_stages, **launch_options(),
    )  # fmt: skip
    return out
