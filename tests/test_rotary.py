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
        ({"type": "yarn", "factor": 4.0}, "'yarn'"),
        ({"type": "longrope", "long_factor": [1.0, 2.0]}, "'longrope'"),
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
