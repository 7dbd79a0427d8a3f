"""Rotary frequencies and tables against transformers; spellings of the config; types that are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from nvexplore.layers.rotary import RotaryTable, inverse_frequencies
from nvexplore.rope_config import RopeConfig

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CPU = torch.device("cpu")


def their_frequencies(head_dim: int, theta: float, rope: dict[str, Any]) -> torch.Tensor:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, **rope},
    )
    frequencies: torch.Tensor = LlamaRotaryEmbedding(config).inv_freq
    return frequencies


@pytest.mark.parametrize(
    "rope", [{}, {"rope_type": "linear", "factor": 2.0}, LLAMA3], ids=["default", "linear", "llama3"]
)
@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_frequencies_equal_transformers(head_dim: int, theta: float, rope: dict[str, Any]) -> None:
    ours = inverse_frequencies(RopeConfig.from_dict({"rope_theta": theta, "rope_scaling": rope}), head_dim)
    theirs = their_frequencies(head_dim, theta, {"rope_type": "default", **rope})
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def their_embedding(head_dim: int, theta: float, rope: dict[str, Any], **config: Any) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=4 * head_dim,
            num_attention_heads=4,
            rope_parameters={"rope_theta": theta, **rope},
            **{"max_position_embeddings": 131072, **config},
        )
    )


YARN: dict[str, dict[str, Any]] = {
    "qwen": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "of-the-lengths": {"factor": None, "original_max_position_embeddings": 4096},
    "betas": {"factor": 40, "beta_fast": 20.0, "beta_slow": 2, "original_max_position_embeddings": 4096},
    "mscale": {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 4096},
    "half-an-mscale": {"factor": 40.0, "mscale": 0.7, "original_max_position_embeddings": 4096},
    "attention-factor": {"factor": 8.0, "attention_factor": 0.5, "original_max_position_embeddings": 2048},
    "not-truncated": {"factor": 8.0, "truncate": False, "original_max_position_embeddings": 2048},
    "one-pair": {"factor": 8.0, "beta_fast": 1.0001, "truncate": False, "original_max_position_embeddings": 64},
    "shrunk": {"factor": 0.5, "original_max_position_embeddings": 4096},
    "no-original": {"factor": 4.0},
}


@pytest.mark.parametrize("case", YARN)
@pytest.mark.parametrize(("head_dim", "theta"), [(16, 1e4), (64, 5e5), (128, 1e6)])
def test_yarn_equals_transformers(head_dim: int, theta: float, case: str) -> None:
    theirs = their_embedding(head_dim, theta, {"rope_type": "yarn", **YARN[case]})
    config = {"rope_theta": theta, "rope_scaling": {"type": "yarn", **YARN[case]}, "max_position_embeddings": 131072}
    ours = RopeConfig.from_dict(config)
    torch.testing.assert_close(inverse_frequencies(ours, head_dim), theirs.inv_freq, rtol=1e-6, atol=1e-9)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)
    assert ours.max_length is None


LONGROPE: dict[str, dict[str, Any]] = {
    "of-the-lengths": {"original_max_position_embeddings": 4096},
    "factor": {"factor": 8.0, "original_max_position_embeddings": 4096},
    "shrunk": {"factor": 0.5, "original_max_position_embeddings": 4096},
    "attention-factor": {"attention_factor": 1.3, "original_max_position_embeddings": 4096},
}


@pytest.mark.parametrize("case", LONGROPE)
@pytest.mark.parametrize("top", [False, True])
def test_longrope_equals_transformers_within_the_original_length(case: str, top: bool) -> None:
    """``top``: the original length stands in config.json itself, as Phi-3 has it."""
    rope = {
        "rope_type": "longrope",
        "short_factor": [1 + i / 10 for i in range(32)],
        "long_factor": [2.0 + i for i in range(32)],
        **LONGROPE[case],
    }
    outer = {"original_max_position_embeddings": rope.pop("original_max_position_embeddings")} if top else {}
    theirs = their_embedding(64, 1e4, dict(rope), **outer)
    config = {"head_dim": 64, "rope_theta": 1e4, "rope_scaling": rope, "max_position_embeddings": 131072, **outer}
    ours = RopeConfig.from_dict(config)
    torch.testing.assert_close(inverse_frequencies(ours, 64), theirs.inv_freq, rtol=1e-6, atol=1e-9)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)
    assert ours.max_length == 4096
    with pytest.raises(ValueError, match="'longrope': short_factor is a list of 32, not head_dim=128"):
        RopeConfig.from_dict({**config, "head_dim": 128})


def test_dynamic_is_default_within_the_original_length() -> None:
    theirs = their_embedding(64, 1e4, {"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=2048)
    config = {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 2048}
    ours = RopeConfig.from_dict(config)
    torch.testing.assert_close(inverse_frequencies(ours, 64), theirs.inv_freq, rtol=1e-6, atol=1e-9)
    assert (ours.max_length, ours.attention_factor) == (2048, 1.0)


def test_cosines_and_sines_are_scaled() -> None:
    rope = RopeConfig.from_dict({"rope_scaling": {"type": "yarn", **YARN["qwen"]}, "max_position_embeddings": 131072})
    theirs = their_embedding(64, 1e4, {"rope_type": "yarn", **YARN["qwen"]})
    cos, sin = theirs(torch.zeros(1), torch.arange(50)[None])
    table = RotaryTable(rope, 64, 50, CPU).cos_sin
    torch.testing.assert_close(table[:, :32], cos[0, :, :32])
    torch.testing.assert_close(table[:, 32:], sin[0, :, :32])


def test_v16_llama3_stretches_low_frequencies_only() -> None:
    plain = inverse_frequencies(RopeConfig(theta=5e5), 128)
    scaled = inverse_frequencies(RopeConfig.from_dict({"rope_theta": 5e5, "rope_parameters": LLAMA3}), 128)
    assert torch.equal(scaled[:20], plain[:20])
    assert torch.allclose(scaled[-10:] * 8, plain[-10:])
    between = scaled[(scaled != plain) & (scaled * 8 > plain * 1.001)]
    assert len(between) > 3


def test_n19_spellings_of_one_embedding_give_one_table() -> None:
    spellings: list[dict[str, Any]] = [
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_scaling": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "default"}},
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}},
    ]
    kept = copy.deepcopy(spellings)
    configs = {RopeConfig.from_dict(spelling) for spelling in spellings}
    assert configs == {RopeConfig(theta=1e6)}
    assert spellings == kept
    table = RotaryTable(configs.pop(), 64, 100, CPU).cos_sin
    assert table.shape == (100, 64)
    assert table.dtype == torch.float32
    assert torch.equal(table[0], torch.tensor([1.0] * 32 + [0.0] * 32))
    assert not torch.equal(table, RotaryTable(RopeConfig(theta=1e4), 64, 100, CPU).cos_sin)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "extended"}, "'extended'"),
        ({"type": "yarn", "factor": 4.0, "attn_factor": 1.0}, "'yarn': unknown attn_factor"),
        ({"type": "yarn", "factor": "4"}, "'yarn': factor='4'"),
        ({"type": "yarn", "factor": 4.0, "truncate": 1}, "'yarn': truncate=1"),
        ({"type": "yarn", "factor": 4.0, "truncate": None}, "truncate=None"),
        ({"type": "dynamic"}, "'dynamic': factor=None"),
        ({"type": "longrope", "long_factor": [1.0, 2.0]}, "'longrope': short_factor is None"),
        ({"type": "longrope", "long_factor": [1.0], "short_factor": [1.0, 0]}, "'longrope': short_factor=0"),
        ({"rope_type": ["default"]}, "default"),
        ({"rope_type": "default", "type": "mrope", "mrope_section": [1, 2]}, "'mrope'"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, "mrope_section"),
        ({"full_attention": {"rope_type": "default", "factors": [1, 2]}}, "full_attention"),
        ({"rope_type": "linear"}, "factor=None"),
        ({"rope_type": "linear", "factor": 0}, "factor=0"),
        ({"rope_type": "linear", "factor": True}, "factor=True"),
        ({"rope_theta": "1e6"}, "rope_theta='1e6'"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "high_freq_factor=4.0"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor=None"),
        ([1, 2], "must be an object"),
    ],
)
def test_v16_unknown_is_refused_by_name(rope: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeConfig.from_dict({"rope_scaling": rope, "max_position_embeddings": 4096})


def test_llama3_measures_in_the_original_context() -> None:
    rope = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    assert (
        RopeConfig.from_dict({"rope_scaling": rope, "max_position_embeddings": 4096}).original_max_position_embeddings
        == 4096
    )
    top = {"rope_scaling": LLAMA3, "max_position_embeddings": 4096, "original_max_position_embeddings": 2048}
    assert RopeConfig.from_dict(top).original_max_position_embeddings == 2048


def test_tables_leave_torch_as_it_was() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        table = RotaryTable(RopeConfig(theta=1e4), 16, 8, CPU).cos_sin
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(table, RotaryTable(RopeConfig(theta=1e4), 16, 8, CPU).cos_sin)
