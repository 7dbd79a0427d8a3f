"""Block tables from the width they were uploaded with to the fixed width that a CUDA graph knows."""

import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import power_of_2

_WIDEST = 1024


@triton.jit
def _spread_tables(
    source_ptr: tl.tensor, width_ptr: tl.tensor, out_ptr: tl.tensor, out_stride: tl.tensor, WIDTH: tl.constexpr
) -> None:
    row = tl.program_id(0)
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    width = tl.load(width_ptr)
    is_in = (at < width) & (at < out_stride)
    blocks = tl.load(source_ptr + row.to(tl.int64) * width + at, mask=is_in)
    # Attention that is not ours may look a block up that no context reaches: -1 would be outside of the pool.
    tl.store(out_ptr + row.to(tl.int64) * out_stride + at, tl.maximum(blocks, 0), mask=is_in)


def spread_tables(source: Tensor, width: Tensor, out: Tensor) -> None:
    """Copy rows of ``width`` [1] int32 columns, packed in ``source``, to the first columns of out [N, widest].

    The -1 that pad a row become 0. Columns beyond keep what they hold: no context reaches them.
    """
    rows, widest = out.shape
    tile = min(_WIDEST, power_of_2(widest))
    _spread_tables[(rows, triton.cdiv(widest, tile))](source, width, out, out.stride(0), WIDTH=tile, num_warps=2)
