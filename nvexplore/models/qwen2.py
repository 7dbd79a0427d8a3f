"""Qwen2 and Qwen2.5: the linears of queries, keys and values always have a bias, that of the output never."""

from __future__ import annotations

from types import MappingProxyType

from nvexplore.models.architecture import Architecture

QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    qkv_bias=True,
    defaults=MappingProxyType({"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}),
)
