"""The architectures of toy checkpoints: config keys, and name and shape of every tensor on disk.

It follows what transformers writes for these models. It does not know values, files or how a model computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from nvexplore.toy_tokenizer import EOS_TOKEN_ID, PAD_TOKEN_ID, VOCAB_SIZE

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one architecture has beyond the common transformer, and its own config keys."""

    hf_class: str
    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    has_experts: bool = False
    config: dict[str, Any] = field(default_factory=dict)


_QWEN: Final = {"use_sliding_window": False, "sliding_window": None}
ARCHITECTURES: Final = {
    "llama": Architecture("LlamaForCausalLM", config={"attention_bias": False, "mlp_bias": False}),
    "qwen2": Architecture("Qwen2ForCausalLM", has_qkv_bias=True, config=_QWEN),
    "qwen3": Architecture("Qwen3ForCausalLM", has_qk_norm=True, config={"attention_bias": False, **_QWEN}),
    "qwen3_moe": Architecture(
        "Qwen3MoeForCausalLM",
        has_qk_norm=True,
        has_experts=True,
        config={
            "attention_bias": False,
            **_QWEN,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
}


def toy_config(
    architecture: str, *, head_dim: int, num_layers: int, dtype: str, tied: bool, overrides: dict[str, Any]
) -> dict[str, Any]:
    """The content of config.json, with `overrides` put over the toy's own keys."""
    kind = ARCHITECTURES[architecture]
    config: dict[str, Any] = {
        "architectures": [kind.hf_class],
        "model_type": architecture,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        # transformers 5 writes dtype, 4 reads torch_dtype.
        "dtype": dtype,
        "torch_dtype": dtype,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": PAD_TOKEN_ID,
        **kind.config,
        **overrides,
    }
    # transformers 5 writes rope_parameters, 4 reads rope_theta and rope_scaling: both must say the same.
    if "rope_parameters" in overrides:
        config["rope_theta"] = overrides["rope_parameters"].get("rope_theta", config["rope_theta"])
    elif "rope_scaling" not in overrides:
        config["rope_parameters"] = {"rope_theta": config["rope_theta"], "rope_type": "default"}
    return config


def tensor_shapes(kind: Architecture, config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor, in the order of the forward pass."""
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        for name, shape in _attention_shapes(kind, config):
            yield f"{prefix}self_attn.{name}", shape
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        for name, shape in _mlp_shapes(kind, config, layer):
            yield f"{prefix}mlp.{name}", shape
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _attention_shapes(kind: Architecture, config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    has_bias = config.get("attention_bias", False)
    for name, size in (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)):
        yield f"{name}.weight", (size, hidden)
        if kind.has_qkv_bias or has_bias:
            yield f"{name}.bias", (size,)
    if kind.has_qk_norm:
        yield "q_norm.weight", (head_dim,)
        yield "k_norm.weight", (head_dim,)
    yield "o_proj.weight", (hidden, q_size)
    if has_bias:
        yield "o_proj.bias", (hidden,)


def _mlp_shapes(kind: Architecture, config: dict[str, Any], layer: int) -> Iterator[tuple[str, Shape]]:
    hidden = config["hidden_size"]
    is_sparse = (
        kind.has_experts and layer not in config["mlp_only_layers"] and (layer + 1) % config["decoder_sparse_step"] == 0
    )
    if is_sparse:
        yield "gate.weight", (config["num_experts"], hidden)
    prefixes = [f"experts.{i}." for i in range(config["num_experts"])] if is_sparse else [""]
    size = config["moe_intermediate_size" if is_sparse else "intermediate_size"]
    for prefix in prefixes:
        for name, shape in (
            ("gate_proj", (size, hidden)),
            ("up_proj", (size, hidden)),
            ("down_proj", (hidden, size)),
        ):
            yield f"{prefix}{name}.weight", shape
            if config.get("mlp_bias", False):
                yield f"{prefix}{name}.bias", shape[:1]
