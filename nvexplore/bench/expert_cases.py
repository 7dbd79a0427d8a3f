"""The experts of a mixture as cases: rows that random tokens send to them, by our kernel and by torch's product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.backends.grouped_experts import has_grouped_mm
from nvexplore.backends.kernels.grouped_linear import grouped_linear
from nvexplore.bench.kernel_bench import Case, Ceiling, Work
from nvexplore.bench.kernel_inputs import randn
from nvexplore.model_config import ModelConfig

TOKENS: Final = (256, 4096)  # of a decode step, which waits for the weights; and of a prefill

_Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def expert_cases(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, tokens: Sequence[int] = TOKENS
) -> list[Case]:
    """The cases; none for a model without experts, and none by torch where its product would wait for the device."""
    moe = config.moe
    if moe is None:
        return []
    calls: dict[str, _Call] = {"triton": grouped_linear}
    if dtype is torch.bfloat16 and has_grouped_mm(device):
        calls["torch"] = _torch
    cases = []
    for inputs, outputs in (
        (config.hidden_size, 2 * moe.intermediate_size),
        (moe.intermediate_size, config.hidden_size),
    ):
        for count in tokens:
            rows = count * moe.num_experts_per_tok
            ceiling: Ceiling = "read" if rows < 256 * moe.num_experts else "matmul"
            text = f"{rows:,} x {inputs:,} by {moe.num_experts} x {outputs:,}"
            for by, call in calls.items():
                make = partial(_work, call, (moe.num_experts, outputs, inputs), rows, device, dtype)
                cases.append(Case("grouped_linear", by, text, ceiling, make))
    return cases


def _work(call: _Call, shape: tuple[int, int, int], rows: int, device: torch.device, dtype: torch.dtype) -> Work:
    experts, outputs, inputs = shape
    x, weight = randn(device, dtype, rows, inputs), randn(device, dtype, *shape).mul_(inputs**-0.5)
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(experts, (rows,), generator=generator).bincount(minlength=experts)
    ends = counts.cumsum(0).to(device, torch.int32)
    # Of the weights only those of experts that some row goes to.
    read = int(counts.count_nonzero()) * outputs * inputs
    num_bytes = (read + rows * (inputs + outputs)) * dtype.itemsize + experts * 4
    return Work(partial(call, x, weight, ends), num_bytes, 2 * rows * inputs * outputs)


def _torch(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
