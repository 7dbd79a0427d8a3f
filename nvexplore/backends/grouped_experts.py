"""The experts of a mixture as two grouped matrix products: no loop over experts, no wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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
    inner = silu_mul(_grouped(x[tokens], gate_up_proj, ends, experts))
    results = _grouped(inner, down_proj, ends, experts)
    results = results * weights.flatten()[order, None]
    in_order = torch.empty_like(results)
    in_order[order] = results
    return in_order.view(num_tokens, top_k, down_proj.shape[1]).sum(dim=1)


def _grouped(x: Tensor, weight: Tensor, ends: Tensor, experts: Tensor) -> Tensor:
    """Rows of x up to ends[e] times weight[e] transposed; ``experts``: the one of each row."""
    if x.dtype is torch.bfloat16 and x.device.type == "cuda" and not (x.shape[1] % 8 or weight.shape[1] % 8):
        return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    # Other formats have no grouped product: a weight a row, which costs memory traffic and no wait.
    return torch.einsum("tk,tnk->tn", x, weight[experts])
