"""Toy checkpoints: transformers loads each without a missing or unexpected key; what they say is varied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from nvexplore.toy import make_toy
from nvexplore.toy_tokenizer import EOS_TOKEN_ID, SPECIAL_TOKENS, VOCAB_SIZE

torch.set_num_threads(1)

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3_moe")


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    return model.eval(), info


def greedy(model: Any, prompt: bytes, num_tokens: int) -> list[int]:
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
        )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": False, "num_shards": 3, "head_dim": 64},
        {"head_dim": 128, "num_layers": 3, "num_key_value_heads": 4, "vocab_size": 300},
    ],
    ids=["default", "untied-sharded", "other-sizes"],
)
def test_transformers_loads_every_key_and_no_other(architecture: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = make_toy(tmp_path / "toy", architecture, **options)
    model, info = load(path)
    assert not any(info.values()), info
    config = model.config
    assert config.model_type == architecture
    assert type(model).__name__ == json.loads((path / "config.json").read_text())["architectures"][0]
    assert config.num_hidden_layers == options.get("num_layers", 2)
    assert config.num_attention_heads == 4
    assert config.num_key_value_heads == options.get("num_key_value_heads", 2)
    assert model.model.layers[0].self_attn.head_dim == options.get("head_dim", 16)
    is_tied = model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert is_tied == options.get("tied", True)


@pytest.mark.parametrize(
    ("architecture", "option"),
    [
        ("llama", "attention_bias"),
        ("llama", "mlp_bias"),
        ("qwen3", "attention_bias"),
        ("qwen3_moe", "attention_bias"),
    ],
)
def test_optional_biases_are_written_where_the_config_has_them(architecture: str, option: str, tmp_path: Path) -> None:
    path = make_toy(tmp_path / "toy", architecture, **{option: True})
    assert any(name.endswith(".bias") for name in load_file(path / "model.safetensors"))
    _, info = load(path)
    assert not any(info.values()), info


def test_dense_and_sparse_layers_mix(tmp_path: Path) -> None:
    path = make_toy(tmp_path / "toy", "qwen3_moe", num_layers=4, decoder_sparse_step=2, mlp_only_layers=[3])
    names = set(load_file(path / "model.safetensors"))
    assert [f"model.layers.{i}.mlp.gate.weight" in names for i in range(4)] == [False, True, False, False]
    _, info = load(path)
    assert not any(info.values()), info


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_output_is_varied_and_legible(architecture: str, seed: int, tmp_path: Path) -> None:
    model, _ = load(make_toy(tmp_path / "toy", architecture, seed=seed))
    first = greedy(model, b"The paged KV cache", 40)
    second = greedy(model, b"Hello, my name is", 40)
    for output in (first, second):
        assert len(set(output)) >= 12, bytes(output)
        assert all(32 <= token < 127 for token in output)
    assert first != second


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_has_an_effect(architecture: str, tmp_path: Path) -> None:
    """A loader that forgets a tensor (a norm weight left at 1, a bias at 0) must change the output."""
    model, _ = load(make_toy(tmp_path / "toy", architecture))
    # Long enough that every expert gets some of the tokens.
    ids = torch.arange(32, 127).unsqueeze(0)
    with torch.inference_mode():
        expected = model(ids).logits
        for name, parameter in model.named_parameters():
            kept = parameter.clone()
            parameter.fill_(1.0 if "norm" in name else 0.0)
            # A k bias shifts every score of a row alike but for RoPE, so its effect is the smallest.
            assert (model(ids).logits - expected).abs().max() > 0.01, name
            parameter.copy_(kept)
        assert torch.equal(model(ids).logits, expected)


def test_the_same_arguments_write_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first, again = make_toy(tmp_path / "a"), make_toy(tmp_path / "b")
    names = sorted(path.name for path in first.iterdir())
    assert names == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert all((first / name).read_bytes() == (again / name).read_bytes() for name in names)
    other = make_toy(tmp_path / "c", seed=1)
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_16_bit_toy_is_the_float32_toy_rounded(dtype: str, tmp_path: Path) -> None:
    exact = load_file(make_toy(tmp_path / "exact") / "model.safetensors")
    path = make_toy(tmp_path / "rounded", dtype=dtype)
    rounded = load_file(path / "model.safetensors")
    torch_dtype = getattr(torch, dtype)
    assert exact.keys() == rounded.keys()
    assert all(torch.equal(exact[name].to(torch_dtype), rounded[name]) for name in exact)
    assert load(path)[0].dtype == torch_dtype


def test_shards_hold_the_same_tensors_and_the_index_finds_each(tmp_path: Path) -> None:
    whole = load_file(make_toy(tmp_path / "whole", tied=False) / "model.safetensors")
    path = make_toy(tmp_path / "sharded", tied=False, num_shards=4)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    shards = {file.name: load_file(file) for file in path.glob("*.safetensors")}
    assert sorted(shards) == [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]
    assert index["weight_map"].keys() == whole.keys()
    assert all(torch.equal(shards[file][name], whole[name]) for name, file in index["weight_map"].items())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())


def test_a_toy_replaces_an_earlier_toy_and_nothing_else(tmp_path: Path) -> None:
    make_toy(tmp_path, num_shards=3)
    make_toy(tmp_path, "llama")
    assert [file.name for file in tmp_path.glob("model*")] == ["model.safetensors"]
    assert not any(load(tmp_path)[1].values())
    real = tmp_path / "real"
    real.mkdir()
    (real / "config.json").write_text('{"model_type": "llama"}')
    (real / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="not a toy"):
        make_toy(real)
    assert (real / "model.safetensors").read_bytes() == b"precious"
    assert (real / "config.json").read_text() == '{"model_type": "llama"}'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "gpt2"}, "unknown architecture 'gpt2', known are llama, qwen2, qwen3, qwen3_moe"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
        ({"vocab_size": 100}, "vocab_size is 100, the byte tokenizer has 272 tokens"),
        ({"num_shards": 0}, "num_shards is 0, expected 1 to"),
        ({"num_shards": 1000}, "num_shards is 1000, expected 1 to 24"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_written(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        make_toy(tmp_path / "toy", **options)
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize(
    ("options", "theta"),
    [
        ({}, 10_000.0),
        ({"rope_theta": 500_000.0}, 500_000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7_000.0}}, 7_000.0),
    ],
)
def test_old_and_new_spelling_of_rope_agree(options: dict[str, Any], theta: float, tmp_path: Path) -> None:
    path = make_toy(tmp_path, **options)
    assert json.loads((path / "config.json").read_text())["rope_theta"] == theta
    assert load(path)[0].config.rope_parameters["rope_theta"] == theta


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(make_toy(tmp_path_factory.mktemp("tokenizer")))


@settings(max_examples=40)
@given(st.text())
def test_any_text_is_its_bytes_and_comes_back(tokenizer: Any, value: str) -> None:
    ids = tokenizer(value)["input_ids"]
    assert ids == list(value.encode())
    assert tokenizer.decode(ids) == value


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_gets_the_byte_tokenizer(architecture: str, tmp_path: Path) -> None:
    value = "  Grüße, 日本 123\n\t!"
    tokenizer = AutoTokenizer.from_pretrained(make_toy(tmp_path, architecture))
    assert tokenizer(value)["input_ids"] == list(value.encode())
    assert tokenizer.decode(list(value.encode())) == value


def test_special_tokens_are_single_ids_and_come_back(tokenizer: Any) -> None:
    assert len(tokenizer) == VOCAB_SIZE
    assert tokenizer(SPECIAL_TOKENS[2])["input_ids"] == [EOS_TOKEN_ID] == [tokenizer.eos_token_id]
    value = f"a {SPECIAL_TOKENS[1]} b{SPECIAL_TOKENS[2]}\n"
    ids = tokenizer(value)["input_ids"]
    assert len(ids) == len("a  b\n") + 2
    assert tokenizer.decode(ids) == value
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a  b\n"
    assert tokenizer.bos_token_id is None
    assert tokenizer.pad_token_id == VOCAB_SIZE - len(SPECIAL_TOKENS)


def test_the_chat_template_renders(tokenizer: Any) -> None:
    chat = [{"role": "system", "content": "Be <b>brief</b>."}, {"role": "user", "content": "Hi"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered.splitlines() == [
        "<|im_start|>system",
        "Be <b>brief</b>.<|im_end|>",
        "<|im_start|>user",
        "Hi<|im_end|>",
        "<|im_start|>assistant",
    ]
    assert rendered.endswith("\n")
