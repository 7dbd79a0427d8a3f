"""The matrices of a layer in decode steps with few rows, as cases: by our kernel, launched early, and by cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.backends.kernels.few_rows_linear import few_rows_linear, takes
from nvexplore.backends.kernels.launch import early_launches
from nvexplore.backends.kernels.silu_mul import silu_mul
from nvexplore.bench.kernel_bench import Case, Work
from nvexplore.bench.kernel_inputs import randn
from nvexplore.model_config import ModelConfig

ROWS: Final = (1, 8, 64, 128)


class _Matrix(NamedTuple):
    inputs: int
    outputs: int
    is_gated: bool = False
    splits: bool = False


_Call = Callable[[Tensor, Tensor, _Matrix], Tensor]


def linear_cases(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, rows: Sequence[int] = ROWS
) -> list[Case]:
    """The cases; a matrix that is left to cuBLAS has none."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    matrices = (
        _Matrix(hidden, heads + 2 * config.num_key_value_heads * config.head_dim),
        _Matrix(heads, hidden, splits=True),
        _Matrix(hidden, 2 * inner, is_gated=True),
        _Matrix(inner, hidden, splits=True),
    )
    cases = []
    for each in matrices:
        weight = torch.empty(1, dtype=dtype, device=device).expand(each.outputs, each.inputs)  # only for its sizes
        for count in rows:
            x = torch.empty(1, dtype=dtype, device=device).expand(count, each.inputs)
            if not takes(x, weight, is_gated=each.is_gated, splits=each.splits):
                continue
            text = f"{count:,} x {each.inputs:,} by {each.outputs:,}{', SiLU * mul' if each.is_gated else ''}"
            for by, call in (("triton", _early), ("cublas", _cublas)):
                make = partial(_work, call, each, count, device, dtype)
                cases.append(Case("few_rows_linear", by, text, "read", make))
    return cases


def _work(call: _Call, matrix: _Matrix, rows: int, device: torch.device, dtype: torch.dtype) -> Work:
    x = randn(device, dtype, rows, matrix.inputs)
    weight = randn(device, dtype, matrix.outputs, matrix.inputs) * matrix.inputs**-0.5
    outputs = matrix.outputs // 2 if matrix.is_gated else matrix.outputs
    # Where sums are split, parts in float32 are written: what for is the kernel's own affair.
    num_bytes = (weight.numel() + x.numel() + rows * outputs) * dtype.itemsize
    return Work(partial(call, x, weight, matrix), num_bytes, 2 * rows * weight.numel())


def _early(x: Tensor, weight: Tensor, matrix: _Matrix) -> Tensor:
    with early_launches():
        return few_rows_linear(x, weight, is_gated=matrix.is_gated, splits=matrix.splits)


def _cublas(x: Tensor, weight: Tensor, matrix: _Matrix) -> Tensor:
    out = functional.linear(x, weight)
    return silu_mul(out) if matrix.is_gated else out
