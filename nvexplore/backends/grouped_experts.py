"""The experts of a mixture as two grouped matrix products: no loop over experts, no wait for the device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.backends.kernels.grouped_linear import grouped_linear
from nvexplore.backends.kernels.silu_mul import silu_mul


def grouped_experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """Return the weighted sum over each token's experts, [T, hidden].

    x [T, hidden]; weights, chosen [T, top_k]; gate_up_proj [experts, 2 * n, hidden], down_proj [experts, hidden, n].
    Tokens are sorted by expert, so that each expert's are one stretch of rows; sums are taken in the order of a
    token's choices, whatever the other tokens are.
    """
    num_tokens, top_k = chosen.shape
    experts, order = chosen.flatten().sort(stable=True)
    tokens = order // top_k
    numbers = torch.arange(gate_up_proj.shape[0], device=x.device)
    ends = torch.searchsorted(experts, numbers, right=True).to(torch.int32)
    inner = silu_mul(_grouped(x[tokens], gate_up_proj, ends))
    results = _grouped(inner, down_proj, ends)
    results = results * weights.flatten()[order, None]
    in_order = torch.empty_like(results)
    in_order[order] = results
    return in_order.view(num_tokens, top_k, down_proj.shape[1]).sum(dim=1)


def _grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of x up to ends[e] times weight[e] transposed."""
    if x.dtype is torch.bfloat16 and has_grouped_mm(x.device) and not (x.shape[1] % 8 or weight.shape[1] % 8):
        return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    return grouped_linear(x, weight, ends)


@cache
def has_grouped_mm(device: torch.device) -> bool:
    """Whether torch's grouped product of bfloat16 is a kernel there: on data center GPUs from Hopper on.

    Elsewhere torch reads ``ends`` on the host and multiplies group by group: it waits, which no graph can hold.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)
