"""Mixtures of experts: which layers, which experts, what weights, and both ways they lie on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nvexplore.backends import create_backend
from nvexplore.backends.cpu import route
from nvexplore.layers.moe import MoE
from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM, GatedMLP, SparseMLP
from nvexplore.moe_config import MoeConfig
from nvexplore.runner.weights import WeightsError, load_weights
from nvexplore.toy import make_toy
from tests.paged import Paged, difference, reference_logits, token_ids

CPU = torch.device("cpu")
MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}


def moe_config(**keys: Any) -> MoeConfig:
    config = MoeConfig.from_dict({**MOE, **keys})
    assert config is not None
    return config


@pytest.mark.parametrize(("norm", "weights"), [(True, [0.7311, 0.2689]), (False, [0.6439, 0.2369])])
def test_v22_softmax_over_all_then_top_k_then_scaling_if_asked(norm: bool, weights: list[float]) -> None:
    found, experts = route(torch.tensor([[2.0, 1.0, 0.0, -1.0], [-1.0, 0.0, 1.0, 2.0]]), 2, norm=norm)
    torch.testing.assert_close(found, torch.tensor([weights, weights]), atol=1e-4, rtol=0)
    assert experts.tolist() == [[0, 1], [3, 2]]


def plain_moe(x: Tensor, layer: MoE) -> Tensor:
    """Every expert for every token, in float64; those that are not chosen weigh 0."""
    probabilities = torch.softmax(x.double() @ layer.gate.weight.double().T, dim=-1)
    chosen = probabilities >= probabilities.sort(dim=-1).values[:, -layer.top_k, None]
    weights = probabilities * chosen
    if layer.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for expert, (gate_up, down) in enumerate(zip(layer.experts.gate_up_proj, layer.experts.down_proj, strict=True)):
        gate, up = (x.double() @ gate_up.double().T).chunk(2, dim=-1)
        out += weights[:, expert, None] * (torch.nn.functional.silu(gate) * up @ down.double().T)
    return out


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_the_operation_follows_the_formula(tokens: int, top_k: int, norm: bool) -> None:
    layer = MoE(moe_config(num_experts_per_tok=top_k, norm_topk_prob=norm), 16, Placement(torch.float32, CPU))
    torch.manual_seed(tokens)
    for parameter in layer.parameters():
        parameter.normal_()
    x = torch.randn(tokens, 16)
    kept = x.clone()
    with torch.inference_mode():
        found = create_backend("cpu", torch.float32).moe(x, layer)
    torch.testing.assert_close(found, plain_moe(x, layer).float(), rtol=1e-4, atol=1e-4)
    assert torch.equal(x, kept)


def test_v22_experts_without_tokens_are_not_touched() -> None:
    """Their weights are NaN; and a token's result is the same among others that go elsewhere."""
    layer = MoE(moe_config(), 16, Placement(torch.float32, CPU))
    layer.gate.weight.zero_()
    layer.gate.weight[0, 0], layer.gate.weight[2, 0], layer.gate.weight[3, 0] = 9.0, 8.0, -9.0
    for expert in (0, 2):
        layer.experts.gate_up_proj[expert].uniform_(-1, 1)
        layer.experts.down_proj[expert].uniform_(-1, 1)
    x = torch.rand(5, 16) + 0.5
    backend = create_backend("cpu", torch.float32)
    with torch.inference_mode():
        found = backend.moe(x, layer)
        alone = torch.cat([backend.moe(row[None], layer) for row in x])
    assert found.isfinite().all()
    torch.testing.assert_close(found, alone)


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [3]),
        ({"mlp_only_layers": [0, 4, 9]}, [1, 2, 3]),
        ({"decoder_sparse_step": 9}, []),
    ],
)
def test_v22_which_layers_have_experts(tmp_path: Path, keys: dict[str, Any], layers: list[int]) -> None:
    assert [layer for layer in range(5) if moe_config(**keys).has_experts(layer)] == layers
    path = make_toy(tmp_path, "qwen3_moe", num_layers=5, intermediate_size=48, **keys)
    model = CausalLM(ModelConfig.from_path(path), max_positions=8, placement=Placement(torch.float32, CPU))
    for number, layer in enumerate(model.decoder_layers()):
        if number in layers:
            assert isinstance(layer.mlp, SparseMLP)
            assert layer.mlp.experts.gate_up_proj.shape == (4, 2 * 32, 64)
        else:
            assert isinstance(layer.mlp, GatedMLP)
            assert layer.mlp.down_proj.weight.shape == (64, 48)
    load_weights(model, path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_experts": None}, "neither num_experts nor num_local_experts"),
        ({"num_local_experts": 8}, "num_experts=4 but num_local_experts=8"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok=5: must be at most 4"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size=0"),
        ({"mlp_only_layers": [-1]}, "mlp_only_layers=-1"),
    ],
)
def test_wrong_values_name_the_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        moe_config(**keys)


@pytest.mark.parametrize("keys", [{"norm_topk_prob": 1}, {"mlp_only_layers": 3}, {"num_experts": "4"}])
def test_wrong_types_name_the_key(keys: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(keys))):
        moe_config(**keys)


def test_names_and_defaults_are_those_of_transformers() -> None:
    from transformers import Qwen3MoeConfig

    sizes = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    base = {"architectures": ["Qwen3MoeForCausalLM"], "intermediate_size": 128, **sizes}
    for name in ("num_experts", "num_local_experts"):
        ours, theirs = ModelConfig.from_dict({**base, name: 16}).moe, Qwen3MoeConfig(**sizes, **{name: 16})
        assert ours is not None
        assert ours.num_experts == theirs.num_experts == 16
        assert ours.num_experts_per_tok == theirs.num_experts_per_tok
        assert ours.norm_topk_prob is theirs.norm_topk_prob is False
        assert ours.intermediate_size == theirs.moe_intermediate_size
        assert ours.decoder_sparse_step == theirs.decoder_sparse_step
    assert ModelConfig.from_dict({**base, "num_experts": 0}).moe is None


def stack(path: Path) -> None:
    """Rewrite the checkpoint with one tensor for all experts of a layer, as newer files have it."""
    tensors = load_file(path / "model.safetensors")
    stacked: dict[str, Tensor] = {}
    groups: dict[str, dict[str, list[Tensor]]] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if match is None:
            stacked[name] = tensor
        else:  # files hold the experts in any order: expert 10 may come before 2
            parts = groups.setdefault(match[1], {}).setdefault(match[3], [torch.empty(0)] * 64)
            parts[int(match[2])] = tensor
    for experts, parts in groups.items():
        gate, up, down = (
            torch.stack([t for t in parts[k] if t.numel()]) for k in ("gate_proj", "up_proj", "down_proj")
        )
        stacked[f"{experts}.gate_up_proj"] = torch.cat((gate, up), dim=1)
        stacked[f"{experts}.down_proj"] = down
    save_file(stacked, path / "model.safetensors", metadata={"format": "pt"})


def test_both_layouts_on_disk_give_the_same_logits(tmp_path: Path) -> None:
    ids, logits = token_ids(30), []
    path = make_toy(tmp_path, "qwen3_moe", num_experts=12, moe_intermediate_size=16, num_experts_per_tok=3)
    for change in (lambda _: None, stack):
        change(path)
        paged = Paged(path)
        (found,) = paged.logits((paged.seq(ids), 30))
        logits.append(found)
    assert torch.equal(*logits)
    assert difference(logits[0], reference_logits(path, ids)) <= 1e-4


@pytest.mark.parametrize("original", [True, False])
def test_what_transformers_saves_is_read(tmp_path: Path, original: bool) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(make_toy(tmp_path / "toy", "qwen3_moe", tied=False))
    model.save_pretrained(tmp_path / "saved", save_original_format=original)
    names = set(load_file(tmp_path / "saved" / "model.safetensors"))
    assert ("model.layers.0.mlp.experts.gate_up_proj" in names) is not original
    paged, ids = Paged(tmp_path / "saved"), token_ids(20)
    (found,) = paged.logits((paged.seq(ids), 20))
    assert difference(found, reference_logits(tmp_path / "toy", ids)) <= 1e-4


def test_wrong_stacks_are_named(tmp_path: Path) -> None:
    path = make_toy(tmp_path, "qwen3_moe")
    file, name = path / "model.safetensors", "model.layers.0.mlp.experts.gate_up_proj"
    separate = load_file(file)
    stack(path)
    right = load_file(file)

    def refused(tensors: dict[str, Tensor], message: str) -> None:
        save_file(tensors, file, metadata={"format": "pt"})
        with pytest.raises(WeightsError, match=message):
            Paged(path)

    refused({**right, name: right[name][:3].clone()}, r"gate_up_proj .*has shape \[3, 64, 64\], .*needs \[4, 64, 64\]")
    refused({k: v for k, v in right.items() if k != name}, r"experts\.0\.gate_proj\.weight, .* missing")
    refused({**separate, name: right[name]}, r"experts\.0\.gate_proj\.weight, .* there twice, by itself and stacked")


@pytest.mark.parametrize("stacked", [False, True])
def test_ranks_split_every_expert(tmp_path: Path, stacked: bool) -> None:
    path = make_toy(tmp_path, "qwen3_moe", vocab_size=272)
    separate = load_file(path / "model.safetensors")
    if stacked:
        stack(path)
    config = ModelConfig.from_path(path)
    ranks = [CausalLM(config, max_positions=8, placement=Placement(torch.float32, CPU, r, 2)) for r in range(2)]
    mlps = []
    for model in ranks:
        load_weights(model, path)
        mlps.append(next(model.decoder_layers()).mlp)
    for expert in range(4):
        name = f"model.layers.0.mlp.experts.{expert}."
        halves = [mlp.experts.gate_up_proj[expert].chunk(2) for mlp in mlps]
        for part, pieces in zip(("gate_proj", "up_proj"), zip(*halves, strict=True), strict=True):
            assert torch.equal(torch.cat(pieces), separate[f"{name}{part}.weight"])
        downs = [mlp.experts.down_proj[expert] for mlp in mlps]
        assert torch.equal(torch.cat(downs, dim=1), separate[f"{name}down_proj.weight"])
    assert all(torch.equal(mlp.gate.weight, separate["model.layers.0.mlp.gate.weight"]) for mlp in mlps)
    assert [mlp.sums_ranks for mlp in mlps] == [True, True]
