"""The grouped experts against a loop over experts, and the whole mixture through the backend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.cuda import CudaBackend
from nvexplore.backends.grouped_experts import grouped_experts
from nvexplore.layers.moe import MoE
from nvexplore.layers.parameter import Placement
from nvexplore.moe_config import MoeConfig
from tests.kernels.places import Place, assert_near

EXPERTS = 8


def one_by_one(x: Tensor, weights: Tensor, chosen: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """Every token's experts one after another, in the order of its choices."""
    out = torch.zeros_like(x)
    for token, experts in enumerate(chosen.tolist()):
        for place, expert in enumerate(experts):
            gate, up = (gate_up_proj[expert] @ x[token]).chunk(2)
            out[token] += weights[token, place] * (down_proj[expert] @ (gate * torch.sigmoid(gate) * up))
    return out


# Sizes that are multiples of 8 take torch's grouped product where there is one.
@pytest.mark.parametrize(("hidden", "inner"), [(32, 16), (20, 6)])
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (5, 2), (11, 3), (4, 8)])
def test_experts_follow_the_formula(tokens: int, top_k: int, hidden: int, inner: int, place: Place) -> None:
    """Experts that nobody chose hold NaN."""
    used = EXPERTS if top_k == EXPERTS else 4
    chosen = torch.stack([torch.randperm(used)[:top_k] for _ in range(tokens)])
    if used < EXPERTS:
        chosen = torch.tensor([1, 2, 5, 6])[chosen]  # none for the first, the last and two in the middle
    gate_up, down = place.nans(EXPERTS, 2 * inner, hidden), place.nans(EXPERTS, hidden, inner)
    for expert in set(chosen.flatten().tolist()):
        gate_up[expert], down[expert] = place.randn(2 * inner, hidden, scale=0.3), place.randn(hidden, inner)
    x, weights = place.randn(tokens, hidden), place.rand(tokens, top_k)
    inputs = x, weights, chosen.to(place.device), gate_up, down
    kept = x.clone()
    assert_near(grouped_experts(*inputs), one_by_one, *inputs, atol=3e-5)
    assert torch.equal(x, kept)


def test_a_token_has_the_same_result_alone(place: Place) -> None:
    """Whatever the others choose: the sums are taken in the order of a token's own choices."""
    gate_up, down = place.randn(EXPERTS, 32, 32, scale=0.3), place.randn(EXPERTS, 32, 16)
    x, weights = place.randn(6, 32), place.rand(6, 3)
    chosen = torch.stack([torch.randperm(EXPERTS)[:3] for _ in range(6)]).to(place.device)
    together = grouped_experts(x, weights, chosen, gate_up, down)
    alone = [grouped_experts(x[i : i + 1], weights[i : i + 1], chosen[i : i + 1], gate_up, down) for i in range(6)]
    tolerance = {"rtol": 0.0, "atol": 4 * torch.finfo(place.dtype).eps * float(together.abs().max())}
    torch.testing.assert_close(torch.cat(alone), together, **tolerance)


def mixture(x: Tensor, gate: Tensor, gate_up_proj: Tensor, down_proj: Tensor, top_k: int, norm: bool) -> Tensor:
    weights, chosen = torch.softmax(x @ gate.T, dim=-1).topk(top_k, dim=-1)
    if norm:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return one_by_one(x, weights, chosen, gate_up_proj, down_proj)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 4, 8])
def test_the_mixture_of_the_backend(top_k: int, norm: bool, device: torch.device) -> None:
    """V22: a softmax over all experts, then the greatest, then scaling only where it is asked for."""
    config = MoeConfig.from_dict(
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": top_k,
            "moe_intermediate_size": 16,
            "norm_topk_prob": norm,
            "decoder_sparse_step": 1,
        }
    )
    assert config is not None
    layer = MoE(config, 32, Placement(torch.float32, device))
    place = Place(device, torch.float32)
    for parameter in layer.parameters():
        parameter.copy_(place.randn(*parameter.shape, scale=0.4))
    x = place.randn(9, 32)
    backend = CudaBackend(device, torch.float32, TritonPagedAttention(2))
    assert_near(
        backend.moe(x, layer),
        lambda *given: mixture(*given, top_k, norm),
        x,
        layer.gate.weight,
        layer.experts.gate_up_proj,
        layer.experts.down_proj,
        atol=3e-5,
    )
