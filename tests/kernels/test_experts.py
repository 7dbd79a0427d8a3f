"""The grouped experts against a loop over experts, and the whole mixture through the backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nvexplore.backends import cpu, cuda
from nvexplore.backends import grouped_experts as module
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.cuda import CudaBackend
from nvexplore.backends.grouped_experts import grouped_experts
from nvexplore.layers.moe import MoE
from nvexplore.layers.parameter import Placement
from nvexplore.moe_config import MoeConfig
from tests.kernels.backends import CPU, cpu_backend, near
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


def random_layer(config: MoeConfig, hidden: int, place: Place, scale: float | None = None) -> MoE:
    """scale: of all parameters; None: so that sums stay around 1."""
    layer = MoE(config, hidden, Placement(place.dtype, place.device))
    for parameter in layer.parameters():
        parameter.copy_(place.randn(*parameter.shape, scale=scale or parameter.shape[-1] ** -0.5))
    return layer


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
    place = Place(device, torch.float32)
    layer = random_layer(config, 32, place, scale=0.4)
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


def choices(routing: str, tokens: int, top_k: int, experts: int) -> Tensor:
    """Which experts each token goes to, [tokens, top_k]; never one twice."""
    if routing == "all to the same":
        return torch.arange(experts).flip(0)[:top_k].repeat(tokens, 1)
    some = torch.randperm(experts)[: top_k if routing == "no other" else experts]
    return torch.stack([some[torch.randperm(len(some))[:top_k]] for _ in range(tokens)])


# The last sizes are those of a rank of three, and such as no tile divides.
@pytest.mark.parametrize(("hidden", "inner"), [(32, 16), (40, 11)])
@pytest.mark.parametrize("routing", ["all to the same", "no other", "anywhere"])
@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(1, 2, 5), (1, 1, 1), (19, 2, 5), (70, 3, 3), (150, 1, 2)])
def test_any_choice_gives_what_the_cpus_backend_gives(
    tokens: int,
    top_k: int,
    experts: int,
    routing: str,
    hidden: int,
    inner: int,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token alone, one expert for all, experts for nobody: tiles of every height, whole and begun."""
    config = MoeConfig(
        num_experts=experts,
        num_experts_per_tok=top_k,
        intermediate_size=inner,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=frozenset(),
    )
    layer = random_layer(config, hidden, place)
    x, weights = place.randn(tokens, hidden), place.rand(tokens, top_k)
    chosen = choices(routing, tokens, top_k, experts)
    for backend in (cpu, cuda):
        monkeypatch.setattr(backend, "route", lambda x, *_, **__: (weights.to(x.device), chosen.to(x.device)))
    found = CudaBackend(place.device, place.dtype, TritonPagedAttention(2)).moe(x, layer)
    expected = cpu_backend(place.dtype).moe(x.cpu(), layer.to(CPU))
    near(found, expected, place.dtype)


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that anything makes."""

    num_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        found = [leaf.nbytes for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.num_bytes = max(self.num_bytes, *found, 0)
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_memory_is_that_of_the_rows_and_nothing_waits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest prefill of Qwen3-30B-A3B on tensors without data, where whatever the host wants to read raises.

    A matrix for each token and choice would be 825 GB in 16 bits.
    """
    tokens, top_k, experts, hidden, inner = 16_384, 8, 128, 2048, 768
    monkeypatch.setattr(module, "grouped_linear", lambda x, w, ends: x.new_empty(x.shape[0], w.shape[1]))
    monkeypatch.setattr(module, "silu_mul", lambda x: x.new_empty(x.shape[0], x.shape[1] // 2))

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    x, weights, chosen = empty(tokens, hidden), empty(tokens, top_k), empty(tokens, top_k, dtype=torch.int64)
    with Largest() as largest:
        out = grouped_experts(x, weights, chosen, empty(experts, 2 * inner, hidden), empty(experts, hidden, inner))
    assert out.shape == x.shape and out.dtype is dtype
    assert largest.num_bytes <= max(tokens * top_k, experts * 2 * inner) * hidden * dtype.itemsize


@pytest.mark.parametrize(
    ("capability", "dtype", "inputs", "outputs", "expected"),
    [
        ((9, 0), torch.bfloat16, 32, 16, "torch"),
        ((10, 3), torch.bfloat16, 32, 16, "torch"),
        ((9, 0), torch.bfloat16, 32, 12, "ours"),
        ((9, 0), torch.bfloat16, 20, 16, "ours"),
        ((9, 0), torch.float16, 32, 16, "ours"),
        ((9, 0), torch.float32, 32, 16, "ours"),
        *[(capability, torch.bfloat16, 32, 16, "ours") for capability in ((8, 0), (8, 6), (8, 9), (11, 0), (12, 0))],
    ],
)
def test_torch_multiplies_where_it_does_not_wait(
    capability: tuple[int, int],
    dtype: torch.dtype,
    inputs: int,
    outputs: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everywhere else its grouped product is a loop on the host over experts, which no graph can hold."""
    taken: list[str] = []
    monkeypatch.setattr(functional, "grouped_mm", lambda *_, **__: taken.append("torch"))
    monkeypatch.setattr(module, "grouped_linear", lambda *_: taken.append("ours"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    module.has_grouped_mm.cache_clear()
    with FakeTensorMode():
        x, weight = (torch.empty(*shape, dtype=dtype, device="cuda") for shape in ((5, inputs), (3, outputs, inputs)))
        module._grouped(x, weight, torch.empty(3, dtype=torch.int32, device="cuda"))
    module.has_grouped_mm.cache_clear()
    assert taken == [expected]


@pytest.mark.gpu
@pytest.mark.parametrize(("hidden", "inner"), [(64, 32), (40, 12)])
def test_bfloat16_by_the_kernel(hidden: int, inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs where torch has no grouped product, whatever this one is."""
    monkeypatch.setattr(module, "has_grouped_mm", lambda device: False)
    place = Place(torch.device("cuda", 0), torch.bfloat16)
    chosen = choices("anywhere", 100, 2, EXPERTS).to(place.device)
    inputs = place.randn(100, hidden), place.rand(100, 2), chosen
    matrices = place.randn(EXPERTS, 2 * inner, hidden, scale=0.3), place.randn(EXPERTS, hidden, inner)
    assert_near(grouped_experts(*inputs, *matrices), one_by_one, *inputs, *matrices)
