"""Public bug reports about mixtures of experts, each as the small input that shows it. More in tests/test_moe.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nvexplore import LLM, SamplingParams
from nvexplore.backends.routing import route
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import SparseMLP
from nvexplore.toy import make_toy
from tests.paged import Paged, difference, reference_logits, token_ids


@pytest.mark.parametrize(("norm", "expected"), [(True, (0.731, 0.269)), (False, (0.644, 0.237))])
def test_v22_router_weights(norm: bool, expected: tuple[float, float]) -> None:
    """transformers#41151, QwenLM/Qwen3#687: softmax after the top-k, or scaling where the config says not to."""
    weights, experts = route(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), 2, norm=norm)
    assert experts.tolist() == [[0, 1]]
    assert weights[0].tolist() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("norm", [True, False, None])
def test_v22_norm_topk_prob_is_the_configs_and_false_where_it_says_nothing(tmp_path: Path, norm: bool | None) -> None:
    """QwenLM/Qwen3#687: an assumed default. Both settings give other logits, each those of transformers."""
    ids = token_ids(30)
    path = make_toy(tmp_path, "qwen3_moe", norm_topk_prob=norm is True)
    if norm is None:
        text = (path / "config.json").read_text()
        (path / "config.json").write_text(text.replace('"norm_topk_prob": false,', ""))
    paged = Paged(path)
    (logits,) = paged.logits((paged.seq(ids), 30))
    assert difference(logits, reference_logits(path, ids)) <= 1e-4
    for layer in paged.runner.model.decoder_layers():
        assert isinstance(layer.mlp, SparseMLP)
        assert layer.mlp.norm_topk_prob == (norm is True)
        layer.mlp.norm_topk_prob = not layer.mlp.norm_topk_prob
    assert difference(paged.logits((paged.seq(ids), 30))[0], logits) > 0.1


@pytest.mark.parametrize(
    ("keys", "sparse"),
    [
        ({"mlp_only_layers": [0], "decoder_sparse_step": 2}, [1, 3]),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, [3]),
        ({"mlp_only_layers": [0, 1, 2, 3]}, []),
    ],
)
def test_v22_which_layers_are_sparse(tmp_path: Path, keys: dict[str, Any], sparse: list[int]) -> None:
    """vllm PR#42577: layer i has experts iff it is not in mlp_only_layers and (i + 1) % decoder_sparse_step == 0."""
    path, ids = make_toy(tmp_path, "qwen3_moe", num_layers=4, intermediate_size=96, **keys), token_ids(20)
    paged = Paged(path)
    layers = list(paged.runner.model.decoder_layers())
    assert [i for i, layer in enumerate(layers) if isinstance(layer.mlp, SparseMLP)] == sparse
    assert difference(paged.logits((paged.seq(ids), 20))[0], reference_logits(path, ids)) <= 1e-4


def test_v22_no_experts_at_all_is_a_dense_model(tmp_path: Path) -> None:
    """The sibling: 0 experts is a value, not a missing one."""
    path = make_toy(tmp_path, "qwen3_moe", mlp_only_layers=[0, 1])
    config = (path / "config.json").read_text().replace('"num_experts": 4', '"num_experts": 0')
    (path / "config.json").write_text(config)
    assert ModelConfig.from_path(path).moe is None
    paged = Paged(path)
    assert paged.logits((paged.seq([1, 2, 3]), 3))[0].isfinite().all()


def test_v22_an_expert_may_get_no_token(tmp_path: Path) -> None:
    """transformers#41151: with 16 experts and 2 tokens most get nothing, in every step of a decode."""
    path = make_toy(tmp_path, "qwen3_moe", num_experts=16, moe_intermediate_size=8)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(path, num_kvcache_blocks=16) as llm:
        outputs = llm.generate([[65], [66, 67]], params, use_tqdm=False)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for output in outputs:
        ids = list(output.prompt_token_ids)
        while len(ids) < len(output.prompt_token_ids) + 24:
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert output.token_ids == ids[len(output.prompt_token_ids) :]


def test_v22_fused_experts_are_read(tmp_path: Path) -> None:
    """vllm PR#42577: newer files hold one 3-D tensor for all experts; the sibling reads such a file in shards."""
    path = make_toy(tmp_path / "toy", "qwen3_moe", num_layers=3)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.save_pretrained(tmp_path / "fused", save_original_format=False, max_shard_size="60KB")
    assert len(list((tmp_path / "fused").glob("*.safetensors"))) > 1
    paged, ids = Paged(tmp_path / "fused"), token_ids(20)
    assert difference(paged.logits((paged.seq(ids), 20))[0], reference_logits(path, ids)) <= 1e-4
