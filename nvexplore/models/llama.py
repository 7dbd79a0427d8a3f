"""Llama 2 and 3, and the many models of the same shape (SmolLM2 is one)."""

from __future__ import annotations

from types import MappingProxyType

from nvexplore.models.architecture import Architecture

LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    defaults=MappingProxyType({"max_position_embeddings": 2048, "eos_token_id": 2}),
)
