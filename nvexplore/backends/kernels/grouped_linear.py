"""y = x W^T with a weight for each stretch of rows: the experts of a mixture, where torch's grouped product cannot go.

A program takes a tile of one expert's rows and some of its outputs. Which expert's, it finds on the device: how many
tiles are launched depends on the sizes alone, so nobody waits to hear how the tokens chose, and a CUDA graph serves any
choice. Programs that find no tile end at once.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import IS_INTERPRETED, check_rows, power_of_2


@triton.jit(do_not_specialize=["num_groups"])
def _grouped_linear(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    ends_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_groups: tl.tensor,
    x_stride: tl.tensor,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STEP: tl.constexpr,
    WIDENS: tl.constexpr,
) -> None:
    # Programs side by side share rows, and those of the next rows the expert's weight: it is still in the cache.
    COL_TILES: tl.constexpr = (OUTPUTS + COLS - 1) // COLS
    tile = tl.program_id(0) // COL_TILES
    col = tl.program_id(0) % COL_TILES * COLS + tl.arange(0, COLS)

    group = tl.arange(0, GROUPS)
    is_group = group < num_groups
    ends = tl.load(ends_ptr + group, mask=is_group, other=0)
    begins = tl.load(ends_ptr + group - 1, mask=is_group & (group > 0), other=0)
    tiles = (ends - begins + ROWS - 1) // ROWS  # of each group; none behind the last
    if tile >= tl.sum(tiles, axis=0):
        return
    mine = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int32), axis=0)
    first = tile - tl.sum(tl.where(group < mine, tiles, 0), axis=0)
    begin = tl.sum(tl.where(group == mine, begins, 0), axis=0)
    end = tl.sum(tl.where(group == mine, ends, 0), axis=0)

    row = begin + first * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, STEP)
    is_row = (row < end)[:, None]
    is_col = (col < OUTPUTS)[:, None]
    x_at = x_ptr + row[:, None].to(tl.int64) * x_stride + at[None, :]
    weight_at = weight_ptr + (mine.to(tl.int64) * OUTPUTS + col[:, None]) * INPUTS + at[None, :]
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, INPUTS, STEP):
        is_in = (start + at < INPUTS)[None, :]
        x = tl.load(x_at + start, mask=is_row & is_in, other=0.0)
        weight = tl.load(weight_at + start, mask=is_col & is_in, other=0.0)
        if WIDENS:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    to = out_ptr + row[:, None].to(tl.int64) * OUTPUTS + col[None, :]
    tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=is_row & (col < OUTPUTS)[None, :])


class TileShape(NamedTuple):
    """Rows and outputs of a program, inputs that it takes at a time, and how Triton is to run it."""

    rows: int
    cols: int
    step: int
    num_warps: int
    num_stages: int


# By the rows that a group has on average, at most; all fit in 64 KiB of shared memory, which is what the smallest have.
_HALVES = ((16, TileShape(16, 64, 64, 4, 4)), (64, TileShape(64, 128, 32, 4, 4)), (0, TileShape(128, 128, 32, 4, 3)))
_FLOATS = ((16, TileShape(16, 64, 32, 4, 3)), (0, TileShape(64, 64, 16, 4, 3)))  # the multipliers of float32 are scalar


def tile_shape(item_size: int, rows: int, groups: int) -> TileShape:
    """The tile for so many rows in so many groups, of values of ``item_size`` bytes."""
    shapes = _FLOATS if item_size == 4 else _HALVES
    return next(shape for most, shape in shapes if rows <= most * groups or not most)


def most_tiles(rows: int, groups: int, size: int) -> int:
    """How many tiles of ``size`` rows there are at most, however the rows are spread over groups.

    That is where all groups but one have a single row, or there are no rows for that.
    """
    used = min(rows, groups)
    return used + (rows - used) // size


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x [T, in], weight [groups, out, in], ends [groups] int32 -> [T, out], summed in float32 and rounded once.

    The rows of group g are those from ends[g - 1] up to ends[g]; the last end is T.
    """
    check_rows("x", x)
    if not weight.is_contiguous():
        raise ValueError(f"weight of shape {tuple(weight.shape)} and strides {weight.stride()}: not contiguous")
    rows, (groups, outputs, inputs) = x.shape[0], weight.shape
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    shape = tile_shape(x.dtype.itemsize, rows, groups)
    if rows:
        _grouped_linear[(most_tiles(rows, groups, shape.rows) * triton.cdiv(outputs, shape.cols),)](
            x, weight, ends, out, groups, x.stride(0),
            INPUTS=inputs, OUTPUTS=outputs, GROUPS=power_of_2(groups), ROWS=shape.rows, COLS=shape.cols,
            STEP=shape.step, WIDENS=IS_INTERPRETED, num_warps=shape.num_warps, num_stages=shape.num_stages,
        )  # fmt: skip
    return out
