"""config.json of real checkpoints: what is read, what is refused by name."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvexplore.config import EngineConfig
from nvexplore.model_config import ARCHITECTURES, ModelConfig

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def config(architecture: str = "LlamaForCausalLM", **keys: Any) -> dict[str, Any]:
    return {"architectures": [architecture], **SIZES, **keys}


def test_defaults_are_those_of_transformers() -> None:
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    for name, cls in (
        ("LlamaForCausalLM", LlamaConfig),
        ("Qwen2ForCausalLM", Qwen2Config),
        ("Qwen3ForCausalLM", Qwen3Config),
    ):
        theirs = cls(**SIZES, num_key_value_heads=2)
        ours = ModelConfig.from_dict(config(name, num_key_value_heads=2))
        for field in ("head_dim", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"):
            # transformers' Qwen2Config has no head_dim, and its model takes it from the sizes.
            assert getattr(ours, field) == getattr(theirs, field, 16), (name, field)
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        assert (ours.qkv_bias, ours.o_bias, ours.mlp_bias) == (name == "Qwen2ForCausalLM", False, False)
    assert ModelConfig.from_dict(config("Qwen3ForCausalLM")).head_dim == 128
    assert ModelConfig.from_dict(config()).head_dim == 16


def test_keys_are_read() -> None:
    read = ModelConfig.from_dict(
        config(
            num_key_value_heads=1,
            head_dim=32,
            rms_norm_eps=1e-5,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
        )
    )
    assert (read.num_key_value_heads, read.head_dim, read.rms_norm_eps) == (1, 32, 1e-5)
    assert (read.max_position_embeddings, read.tie_word_embeddings) == (8192, True)
    assert (read.qkv_bias, read.o_bias, read.mlp_bias, read.qk_norm) == (True, True, True, False)
    assert ModelConfig.from_dict(config("Qwen3ForCausalLM")).qk_norm
    assert ModelConfig.from_dict(config(head_dim=None, num_key_value_heads=None)).num_key_value_heads == 4
    assert hash(read) == hash(read)


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float32", "torch_dtype": "bfloat16"}, "float32"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({}, None),
    ],
)
def test_dtype(keys: dict[str, Any], dtype: str | None) -> None:
    assert ModelConfig.from_dict(config(**keys)).dtype == dtype


@pytest.mark.parametrize(
    ("model", "generation", "ids"),
    [
        ({"eos_token_id": 5}, None, {5}),
        ({"eos_token_id": [5, 0]}, {"eos_token_id": 7}, {0, 5, 7}),
        ({"eos_token_id": None}, {"eos_token_id": [8, 9]}, {8, 9}),
        ({}, {"eos_token_id": 0}, {0}),
        ({"eos_token_id": None}, {}, set()),
        ({}, None, {2}),  # LlamaConfig's default
    ],
)
def test_eos_token_ids(model: dict[str, Any], generation: dict[str, Any] | None, ids: set[int]) -> None:
    assert ModelConfig.from_dict(config(**model), generation).eos_token_ids == ids


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Lfm2ForCausalLM"]}, r"'Lfm2ForCausalLM'.*LlamaForCausalLM, Qwen2.*Qwen3ForCausalLM"),
    ({"architectures": None}, "names no architecture"),
    ({"architectures": []}, "names no architecture"),
    ({"architectures": None, "model_type": "gemma"}, "names no architecture.*'gemma'"),
    ({"model_type": "qwen3"}, "'LlamaForCausalLM' but model_type='qwen3'"),
    # transformers chooses by the type: these are scaled, windowed or normed otherwise.
    *(
        ({"architectures": [name], "model_type": other}, f"'{name}' but model_type='{other}'")
        for name, other in itertools.product(ARCHITECTURES, ["mistral", "granite", "cohere", "qwen2_vl", ""])
    ),
    *(({"architectures": [name], "is_causal": False}, "is_causal=False") for name in ARCHITECTURES),
    ({"is_causal": None}, "is_causal=None"),  # which transformers takes for False too
    ({"per_layer_config": {"1": {"rms_norm_eps": 0.1}}}, "per_layer_config=.*0.1"),
    ({"attention_chunk_size": 8}, "attention_chunk_size=8"),
    ({"architectures": ["Qwen2ForCausalLM"], "mlp_bias": True}, "mlp_bias=True.*Qwen2ForCausalLM"),
    # Of transformers' defaults: windows of 4096 from layer 28 on in Qwen2 and Qwen3, in all layers of Qwen3 MoE.
    (
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "num_hidden_layers": 29},
        "sliding_window=4096",
    ),
    (
        {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "max_window_layers": 1},
        "sliding_window=4096",
    ),
    (
        {"architectures": ["Qwen3MoeForCausalLM"], "use_sliding_window": True, "max_window_layers": 9},
        "sliding_window=4096",
    ),
    ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 2}, "sliding_window=4096"),
    ({"architectures": ["Qwen3MoeForCausalLM"]}, "neither num_experts nor num_local_experts"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.*'awq'"),
    ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ({"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 1}, "sliding_window=1024"),
    ({"use_sliding_window": True, "sliding_window": 1024}, "sliding_window=1024"),
    ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}, "sliding_window=8"),
    ({"layer_types": ["linear_attention", "full_attention"]}, "'linear_attention'"),
    ({"hidden_size": None}, "no hidden_size"),
    ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
    ({"num_key_value_heads": 3}, "num_attention_heads=4.*num_key_value_heads=3"),
    ({"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size=64.*num_attention_heads=5"),
    ({"head_dim": 15}, "head_dim=15"),
    ({"rms_norm_eps": 0}, "rms_norm_eps=0"),
    ({"architectures": ["Qwen3ForCausalLM"], "mlp_bias": True}, "mlp_bias=True.*Qwen3ForCausalLM"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_n18_refused_by_name(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(config(**keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"vocab_size": "512"},
        {"hidden_size": 64.0},
        {"tie_word_embeddings": "yes"},
        {"dtype": 16},
        {"eos_token_id": "</s>"},
    ],
)
def test_wrong_types_name_the_key(keys: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(keys))):
        ModelConfig.from_dict(config(**keys))


def test_a_window_that_no_layer_uses_is_fine() -> None:
    for keys in (
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2},
        {"sliding_window": None, "use_sliding_window": True},
        {"sliding_window": 4096, "use_sliding_window": True, "layer_types": ["full_attention"] * 2},
    ):
        for name in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
            assert ModelConfig.from_dict(config(name, **keys)).num_hidden_layers == 2
    assert ModelConfig.from_dict(config("Qwen2ForCausalLM", use_sliding_window=True)).num_hidden_layers == 2
    unused = config("Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, sliding_window=4096)
    assert ModelConfig.from_dict(unused).moe is not None


def test_attention_bias_may_be_said_of_a_model_that_always_has_it() -> None:
    read = ModelConfig.from_dict(config("Qwen2ForCausalLM", attention_bias=True))
    assert (read.qkv_bias, read.o_bias) == (True, False)


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("keys", "longest"),
    [
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 4096),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, 4096),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 1024}}, 1024),
        ({"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 512}}, 512),
        ({"rope_parameters": LONGROPE, "original_max_position_embeddings": 256}, 256),
        ({"rope_parameters": LONGROPE}, 4096),
        # Qwen's way to say it: max_position_embeddings is still that of the training, plus a bit.
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}}, 8192),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}, 4096),
    ],
)
def test_the_longest_sequence(keys: dict[str, Any], longest: int) -> None:
    read = ModelConfig.from_dict(config(max_position_embeddings=4096, **keys))
    assert read.max_positions == longest
    assert read.check_max_model_len(longest) == longest
    with pytest.raises(ValueError, match=f"max_model_len={longest + 1}.*{longest}"):
        read.check_max_model_len(longest + 1)
    with pytest.raises(ValueError, match="max_model_len=0"):
        read.check_max_model_len(0)


def test_a_length_that_would_turn_cached_keys_is_refused_by_its_rope_type() -> None:
    read = ModelConfig.from_dict(config(max_position_embeddings=64, rope_scaling={"type": "dynamic", "factor": 2.0}))
    with pytest.raises(ValueError, match=r"max_model_len=65: rope_type='dynamic' .* max_model_len=64 or less"):
        read.check_max_model_len(65)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "max_model_len=9000: must be at most 4096, the model's max_position_embeddings"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}},
            "max_model_len=9000: must be at most 8192, the model's factor times the original length of its yarn",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
            "max_model_len=9000: must be at most 4096, the model's max_position_embeddings",
        ),
        (
            {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
            "max_model_len=9000: rope_type='longrope' {}",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "original_max_position_embeddings": 64},
            "max_model_len=9000: rope_type='dynamic' {}",
        ),
    ],
    ids=["plain", "yarn", "short yarn", "longrope", "dynamic"],
)
def test_an_engines_option_is_refused_by_what_limits_it(keys: dict[str, Any], said: str) -> None:
    read = ModelConfig.from_dict(config(max_position_embeddings=4096, **keys))
    with pytest.raises(ValueError, match="max_model_len") as refusal:
        EngineConfig.of(max_model_len=9000).model_len(read)
    assert str(refusal.value) == said.format(
        "is supported within its original length only, set max_model_len=64 or less"
    )
    longest = read.max_positions
    assert EngineConfig.of(max_model_len=longest).model_len(read) == longest
    assert EngineConfig.of().model_len(read) == min(longest, 4096)


def test_from_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        ModelConfig.from_path(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config(eos_token_id=4)))
    assert ModelConfig.from_path(tmp_path).eos_token_ids == {4}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 6]}')
    assert ModelConfig.from_path(tmp_path).eos_token_ids == {4, 6}
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"generation_config.json: must hold an object"):
        ModelConfig.from_path(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        ModelConfig.from_path(tmp_path)


def test_reading_a_config_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, nvexplore.model_config, nvexplore.runner.slots;"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
