"""SiLU of the first half of each row times the second half."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import check_rows, power_of_2

_WIDEST = 1024


@triton.jit
def _silu_mul(
    gate_up_ptr: tl.tensor, out_ptr: tl.tensor, row_stride: tl.tensor, SIZE: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_in = at < SIZE
    gate = tl.load(gate_up_ptr + row * row_stride + at, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + SIZE + at, mask=is_in, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + at, value.to(out_ptr.dtype.element_ty), mask=is_in)


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 * n] -> silu(first half) * second half, [T, n]; computed in float32."""
    check_rows("gate_up", gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        width = min(_WIDEST, power_of_2(size))
        _silu_mul[(rows, triton.cdiv(size, width))](
            gate_up, out, gate_up.stride(0), SIZE=size, WIDTH=width, num_warps=min(4, max(1, width // 256))
        )
    return out
