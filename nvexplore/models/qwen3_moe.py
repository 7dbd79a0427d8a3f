"""Qwen3 with experts: Qwen3's attention, and in most or all layers many small feed-forward networks."""

from __future__ import annotations

from types import MappingProxyType

from nvexplore.models.architecture import Architecture

QWEN3_MOE = Architecture(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    qk_norm=True,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    has_experts=True,
    windowed_from=None,
    defaults=MappingProxyType(
        {
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            # Unlike those that other tools assume: a config that leaves them out means these.
            "norm_topk_prob": False,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "decoder_sparse_step": 1,
        }
    ),
)
