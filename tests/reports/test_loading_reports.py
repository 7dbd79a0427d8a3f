"""Public bug reports about reading configs and weights and sizing the pool, each as the small input that shows it.

Longer tables of inputs stand in test_weights.py, test_rotary.py, test_model_config.py and test_kv_cache.py; the first
reports of this kind in test_model_reports.py, those about dtypes in test_sampling_reports.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nvexplore import LLM, SamplingParams
from nvexplore.layers.linear import ColumnParallelLinear, RowParallelLinear
from nvexplore.layers.parameter import Piece, Placement
from nvexplore.layers.rotary import RotaryTable, inverse_frequencies
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.rope_config import RopeConfig
from nvexplore.runner.kv_cache import DeviceMemory, KVCacheShape
from nvexplore.runner.weights import WeightsError, load_weights
from nvexplore.toy import make_toy
from tests.paged import Paged, difference, reference_logits, token_ids

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
GIB = 1 << 30


def ranks_of(path: Path, size: int = 2) -> list[CausalLM]:
    config = ModelConfig.from_path(path)
    models = [CausalLM(config, max_positions=8, placement=Placement(torch.float32, CPU, r, size)) for r in range(size)]
    for model in models:
        load_weights(model, path)
    return models


def change_config(path: Path, **keys: Any) -> Path:
    """Set keys of config.json; None takes a key away."""
    config = {**json.loads((path / "config.json").read_text()), **keys}
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


# ---------------------------------------------------------------------------------------------------------- N15


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


# ---------------------------------------------------------------------------------------------------------- N16


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


# ---------------------------------------------------------------------------------------------------- N19, V16


def test_n19_a_dict_with_lists_inside_is_read_or_refused_but_never_hashed_as_it_is() -> None:
    """vllm PR#51268, the sibling: longrope's lists become tuples; unknown nested dicts are refused by name."""
    lists = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0], "original_max_position_embeddings": 64}
    config = {"head_dim": 4, "max_position_embeddings": 128, "rope_parameters": {"rope_type": "longrope", **lists}}
    first, second = RopeConfig.from_dict(config), RopeConfig.from_dict(json.loads(json.dumps(config)))
    assert len({first, second}) == 1
    nested = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "linear", "factor": 8.0}}
    with pytest.raises(ValueError, match="full_attention, sliding_attention"):
        RopeConfig.from_dict({"rope_parameters": nested})


def test_n19_two_models_do_not_share_a_table() -> None:
    """vllm PR#1867, the sibling: a cache that ignores a part of its key gives a model the angles of another."""
    stretched = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    configs = [
        RopeConfig.from_dict({"rope_parameters": p}) for p in ({"rope_theta": 1e4}, {"rope_theta": 1e6}, stretched)
    ]
    tables = [RotaryTable(config, 16, 8, CPU).cos_sin for config in configs]
    assert not any(torch.equal(a, b) for a, b in zip(tables, [*tables[1:], tables[0]], strict=True))


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_v16_llama3_follows_the_published_formula(key: str) -> None:
    """vllm#9481, meta-llama/llama3#299: low frequencies / 8, high ones kept, a ramp between; either spelling."""
    rope = {key: "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 8192
    found = inverse_frequencies(RopeConfig.from_dict({"rope_theta": 5e5, "rope_scaling": rope}), 128).double()
    for pair, frequency in enumerate(found.tolist()):
        plain = 5e5 ** (-pair / 64)
        wave = 2 * math.pi / plain
        kept = min(1.0, max(0.0, (8192 / wave - 1) / (4 - 1)))
        assert frequency == pytest.approx(kept * plain + (1 - kept) * plain / 8, rel=1e-5)


def test_v16_no_type_is_ignored(tmp_path: Path) -> None:
    """vllm#6689, the sibling: each type that is accepted changes the logits, or says from which length on it would."""
    ids, seen = token_ids(90), []
    factors = {"short_factor": [1.5] * 8, "long_factor": [2.0] * 8}
    low_high = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for rope in (
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, **low_high},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        {"rope_type": "longrope", "original_max_position_embeddings": 96, **factors},
    ):
        path = make_toy(tmp_path / str(rope["rope_type"]), "llama", rope_parameters={"rope_theta": 1e4, **rope})
        paged = Paged(path, max_model_len=96)
        seen.append(paged.logits((paged.seq(ids), 90))[0])
    assert all(difference(a, b) > 0.1 for i, a in enumerate(seen) for b in seen[:i])
    for rope_type, keys in (("longrope", {"original_max_position_embeddings": 64, **factors}), ("dynamic", {})):
        rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, **keys}
        path = make_toy(tmp_path / f"short-{rope_type}", "llama", max_position_embeddings=64, rope_parameters=rope)
        with pytest.raises(ValueError, match=f"max_model_len=65: rope_type='{rope_type}'.*max_model_len=64"):
            Paged(path, max_model_len=65)


# ---------------------------------------------------------------------------------------------------------- V18


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


# ---------------------------------------------------------------------------------------------------------- V20


def test_v20_a_shard_that_the_index_does_not_name_is_not_opened(tmp_path: Path) -> None:
    """vllm PR#30537, the sibling: leftovers of another upload beside the shards, one of them not even safetensors."""
    path = make_toy(tmp_path, "qwen2", num_shards=3, tied=False)
    right = {name: tensor for file in path.glob("model-*") for name, tensor in load_file(file).items()}
    save_file({name: -tensor for name, tensor in right.items()}, path / "model-00001-of-00002.safetensors")
    (path / "model-00004-of-00004.safetensors").write_bytes(b"")
    (model,) = ranks_of(path, 1)
    for piece in model.pieces():
        assert torch.equal(piece.target, right[piece.name])


# ---------------------------------------------------------------------------------------------------------- V31


@pytest.mark.parametrize(
    ("utilization", "free_before", "expected"),
    [
        (0.9, 24, 21.6 - 7),  # all of our share
        (0.9, 20, 20 - 7),  # another process holds 4: less than our share is there
        (0.9, 10, 10 - 7),
        (0.9, 2, 0),
        (0.2, 20, 0),  # 4.8 for us, of which weights and a step take 7
        (1.0, 24, 24 - 7),
    ],
)
def test_v31_a_pool_is_this_engines_share_less_its_own_use(
    utilization: float, free_before: int, expected: float
) -> None:
    """vllm#10643, #10533: total 24, peak 3, weights 4; memory of others is not charged to this engine."""
    memory = DeviceMemory(24 * GIB, utilization, 4 * GIB, 3 * GIB, max(0, free_before - 4) * GIB)
    assert memory.available == pytest.approx(expected * GIB, abs=1)


def test_v31_what_others_take_meanwhile_is_not_charged() -> None:
    """vllm#55827: another process takes 5 between the two looks at the memory, or gives 5 back."""
    shape = KVCacheShape(28, 16, 8, 128, torch.bfloat16)
    memory = DeviceMemory(24 * GIB, 0.5, 4 * GIB, 3 * GIB, 16 * GIB)
    blocks = [shape.num_blocks(memory._replace(free=free * GIB), useful_blocks=10**9) for free in (16, 11, 20)]
    assert blocks == [5 * GIB // shape.block_bytes] * 3


def test_v31_two_engines_by_halves_and_a_third_that_finds_nothing() -> None:
    """vllm#10643, the sibling: a negative count of blocks; now an error with every number and a way out."""
    shape = KVCacheShape(28, 16, 8, 128, torch.bfloat16)
    first = DeviceMemory(24 * GIB, 0.45, 4 * GIB, 1 * GIB, 20 * GIB)
    second = first._replace(free=20 * GIB - first.available - 4 * GIB)
    assert first.available == second.available > 0
    third = second._replace(free=second.free - second.available - 4 * GIB)
    assert third.free > 0
    with pytest.raises(ValueError, match="no room for the KV cache") as caught:
        shape.num_blocks(third._replace(free=GIB), useful_blocks=10**9)
    for text in ("0.45 of", f"{24 * GIB:,}", f"{4 * GIB:,}", f"{GIB:,}", "num_kvcache_blocks", " 0 bytes"):
        assert text in str(caught.value)


def test_v31_an_explicit_number_of_blocks_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sibling on the CPU: nothing is free, and the user says how many all the same."""
    monkeypatch.setattr("nvexplore.backends.cpu._free_memory", lambda: 0)
    path = make_toy(tmp_path)
    assert Paged(path, num_blocks=7).runner.num_blocks == 7
    with pytest.raises(ValueError, match="0 bytes are available"):
        LLM(path)


# ---------------------------------------------------------------------------------------------------------- V33


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
