"""Qwen3, dense: queries and keys are normalised a head, and head_dim is not tied to the hidden size."""

from __future__ import annotations

from types import MappingProxyType

from nvexplore.models.architecture import Architecture

QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    qk_norm=True,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    defaults=MappingProxyType(
        {"max_position_embeddings": 32768, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28}
    ),
)
