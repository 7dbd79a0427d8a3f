"""Public bug reports about architectures and weights, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Longer tables of
inputs stand in test_weights.py and test_model_config.py; rotary embeddings in test_rope_reports.py, mixtures of
experts in test_moe_reports.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nvexplore import LLM
from nvexplore.layers.linear import ColumnParallelLinear, RowParallelLinear
from nvexplore.layers.parameter import Piece, Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.weights import WeightsError, load_weights
from nvexplore.toy import make_toy
from tests.paged import Paged, difference, reference_logits, token_ids
from tests.reports.common import GREEDY, change_config, toy_llm

CPU = torch.device("cpu")


def ranks_of(path: Path, size: int = 2) -> list[CausalLM]:
    config = ModelConfig.from_path(path)
    models = [CausalLM(config, max_positions=8, placement=Placement(torch.float32, CPU, r, size)) for r in range(size)]
    for model in models:
        load_weights(model, path)
    return models


# ---------------------------------------------------------------------------------------------------------------- N15


def test_n15_a_row_parallel_bias_is_whole_on_every_rank(tmp_path: Path) -> None:
    """nano-vllm#125, PR#203: a 1-D bias was cut along dimension 1, or given to one rank only."""
    path = make_toy(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    files = load_file(path / "model.safetensors")
    for model in ranks_of(path):
        layer = next(model.decoder_layers())
        for linear, name in ((layer.self_attn.o_proj, "self_attn.o_proj"), (layer.mlp.down_proj, "mlp.down_proj")):
            assert isinstance(linear, RowParallelLinear) and linear.bias is not None and linear.sums_ranks
            assert torch.equal(linear.bias, files[f"model.layers.0.{name}.bias"])


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_n15_packed_biases_are_cut_like_their_rows(tmp_path: Path, architecture: str) -> None:
    """MinivLLM PR#81, the sibling: the biases of q, k and v are three slices of one parameter on each rank."""
    path = make_toy(tmp_path, architecture, attention_bias=True if architecture == "llama" else None)
    files = load_file(path / "model.safetensors")
    for rank, model in enumerate(ranks_of(path)):
        linear = next(model.decoder_layers()).self_attn.qkv_proj
        expected = [files[f"model.layers.0.self_attn.{name}_proj.bias"].chunk(2)[rank] for name in "qkv"]
        assert linear.bias is not None and torch.equal(linear.bias, torch.cat(expected))


def test_n15_pieces_of_a_bias_have_one_dimension() -> None:
    """The arithmetic by itself, for two and four ranks."""
    for size in (2, 4):
        for rank in range(size):
            placement = Placement(torch.float32, CPU, rank, size)
            column = ColumnParallelLinear(8, {"a": 8, "b": 16}, bias=True, placement=placement)
            row = RowParallelLinear(8, 12, bias=True, placement=placement)
            biases: dict[str, Piece] = {
                piece.name: piece
                for layer, name in ((column, "x.column"), (row, "x.row"))
                for piece in layer.pieces(name)
                if piece.name.endswith("bias")
            }
            assert {name: (p.shape, p.dim, p.start, len(p.target)) for name, p in biases.items()} == {
                "x.a.bias": ((8,), 0, rank * 8 // size, 8 // size),
                "x.b.bias": ((16,), 0, rank * 16 // size, 16 // size),
                "x.row.bias": ((12,), 0, 0, 12),
            }


# ----------------------------------------------------------------------------------------------------------- N16, N18


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_n16_the_architecture_is_that_of_the_config(tmp_path: Path, architecture: str, tied: bool) -> None:
    """nano-vllm#17, #69: every checkpoint was built as Qwen3, and the bias of Qwen2 broke deep inside the loader."""
    path, ids = make_toy(tmp_path, architecture, tied=tied), token_ids(20)
    paged = Paged(path)
    attention = next(paged.runner.model.decoder_layers()).self_attn
    assert attention.q_norm is None and attention.k_norm is None and attention.o_proj.bias is None
    assert (attention.qkv_proj.bias is not None) == (architecture == "qwen2")
    (logits,) = paged.logits((paged.seq(ids), 20))
    assert difference(logits, reference_logits(path, ids)) <= 1e-4


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen3_moe", "llama"])
def test_n16_a_config_without_architectures_goes_by_its_model_type(tmp_path: Path, model_type: str) -> None:
    """The sibling: the two keys say the same, and where they do not, neither is guessed."""
    path = make_toy(tmp_path, model_type)
    whole = ModelConfig.from_path(path)
    assert ModelConfig.from_path(change_config(path, architectures=None)) == whole
    other = "LlamaForCausalLM" if model_type != "llama" else "Qwen2ForCausalLM"
    with pytest.raises(ValueError, match=f"'{other}' but model_type='{model_type}'"):
        ModelConfig.from_path(change_config(path, architectures=[other]))


@pytest.mark.parametrize("name", ["Lfm2ForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM", "MambaForCausalLM"])
def test_n18_an_unsupported_architecture_is_refused_by_name(
    toy: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nano-vllm#126: a wholly different architecture fails obscurely, deep in the loader."""
    folder = shutil.copytree(toy, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"], config["model_type"] = [name], name.split("For")[0].lower()
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(torch, "empty", None)  # nothing is allocated on the way to the refusal
    monkeypatch.setattr(torch, "full", None)
    with pytest.raises(ValueError, match=rf"{name}.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        LLM(folder)


# ---------------------------------------------------------------------------------------------------------------- V18


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_v18_each_rank_holds_its_rows_of_a_tied_head(tmp_path: Path, architecture: str) -> None:
    """vllm PR#6758, sglang PR#1508: with several ranks the tied head was a copy of the wrong shard."""
    path = make_toy(tmp_path, architecture, tied=True)
    embedding = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    for rank, model in enumerate(ranks_of(path)):
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert torch.equal(model.lm_head.weight, embedding.chunk(2)[rank])
        assert (model.lm_head.first_id, model.lm_head.gathers_ranks) == (rank * 136, True)


def test_v18_a_head_in_the_file_of_a_tied_model_changes_nothing(tmp_path: Path) -> None:
    """sglang PR#2009, the sibling, with text: the head of the file, right or wrong, is not what speaks."""
    path = make_toy(tmp_path, "qwen2", tied=True)
    with LLM(path, num_kvcache_blocks=16) as llm:
        expected = llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"lm_head\.weight .* is not used"):
        llm = LLM(path, num_kvcache_blocks=16)
    with llm:
        assert llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids == expected


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_v18_without_the_key_a_head_is_needed(tmp_path: Path, architecture: str) -> None:
    """parallax PR#444, the sibling: the key's default is false for each, so a file without a head is not complete."""
    path = change_config(make_toy(tmp_path, architecture, tied=True), tie_word_embeddings=None)
    with pytest.raises(WeightsError, match=r"lm_head\.weight missing"):
        ranks_of(path, 1)


# ---------------------------------------------------------------------------------------------------------------- V20


@pytest.mark.parametrize("order", [1, -1])
def test_v20_the_index_decides_tensor_by_tensor(tmp_path: Path, order: int) -> None:
    """vllm PR#54230: extra safetensors files, or stale copies in another shard, overwrite the right values."""
    path = make_toy(tmp_path / "sharded", "llama", num_shards=2, tied=False)
    with toy_llm(path) as llm:
        expected = llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids
    index = json.loads((path / "model.safetensors.index.json").read_text())
    first, second = sorted(set(index["weight_map"].values()))[::order]
    stale = next(name for name, file in index["weight_map"].items() if file == first)
    tensors = load_file(path / second)
    tensors[stale] = torch.full_like(load_file(path / first)[stale], 9.0)
    save_file(tensors, path / second, metadata={"format": "pt"})
    save_file({n: torch.zeros(3) for n in index["weight_map"]}, path / "consolidated.safetensors")
    with toy_llm(path) as llm:
        assert llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids == expected


def test_v20_a_shard_that_the_index_does_not_name_is_not_opened(tmp_path: Path) -> None:
    """vllm PR#30537, the sibling: leftovers of another upload beside the shards, one of them not even safetensors."""
    path = make_toy(tmp_path, "qwen2", num_shards=3, tied=False)
    right = {name: tensor for file in path.glob("model-*") for name, tensor in load_file(file).items()}
    save_file({name: -tensor for name, tensor in right.items()}, path / "model-00001-of-00002.safetensors")
    (path / "model-00004-of-00004.safetensors").write_bytes(b"")
    (model,) = ranks_of(path, 1)
    for piece in model.pieces():
        assert torch.equal(piece.target, right[piece.name])


# ---------------------------------------------------------------------------------------------------------------- V33


def test_v33_a_parameter_that_no_file_fills_is_named(tmp_path: Path) -> None:
    """vllm PR#1490: memory that was never written gives NaN in some runs only."""
    path = make_toy(tmp_path / "hole", "llama")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.(up_proj|gate_up_proj)"):
        LLM(path)


@pytest.mark.parametrize(
    ("architecture", "name", "reported"),
    [
        ("qwen2", "model.layers.1.self_attn.k_proj.bias", "k_proj.bias missing"),
        ("qwen3_moe", "model.layers.0.mlp.experts.3.up_proj.weight", "experts.3.up_proj.weight missing"),
        ("qwen3", "model.layers.1.self_attn.q_norm.weight", "q_norm.weight missing"),
    ],
)
def test_v33_what_a_file_lacks_never_runs(tmp_path: Path, architecture: str, name: str, reported: str) -> None:
    """vllm PR#1490, the sibling: biases, experts and norms that older memory would fill, with luck with zeros."""
    path = make_toy(tmp_path, architecture)
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=reported):
        LLM(path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_v33_parameters_are_nan_until_they_are_loaded(tmp_path: Path, architecture: str) -> None:
    """vllm PR#1490, the sibling: what no file fills shows; and what the files fill gives finite logits at once."""
    path = make_toy(tmp_path, architecture)
    model = CausalLM(ModelConfig.from_path(path), max_positions=8, placement=Placement(torch.float32, CPU))
    assert all(parameter.isnan().all() for parameter in model.parameters())
    paged = Paged(path)
    assert paged.logits((paged.seq([5]), 1))[0].isfinite().all()


def test_v33_a_nan_weight_is_an_error_not_token_zero(tmp_path: Path) -> None:
    """The sibling: NaN in the file itself shows at load time or in the first step, never as quiet ids."""
    path = make_toy(tmp_path / "nan", "llama")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises((ValueError, RuntimeError, ArithmeticError)):
        LLM(path).generate(["abc"], GREEDY, use_tqdm=False)
