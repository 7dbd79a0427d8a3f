"""Turns the GGUF of SmolLM2 into a Hugging Face checkpoint folder that transformers and nvexplore read.

It knows how llama.cpp stores a llama-architecture model with a byte-level BPE tokenizer: tensor names, the
order of q/k rows, and which pre-tokenizer the word "smollm" stands for. It does not know where the file came
from or where the folder will live; `demo` does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nvexplore.gguf import GGUFError, GGUFFile

if TYPE_CHECKING:
    import torch

# llama.cpp's tensor names and Hugging Face's, outside and inside a layer.
_OUTER_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN: Final = 3  # value of tokenizer.ggml.token_type for special tokens


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Write the checkpoint of the model in `gguf_path` into the existing `folder`.

    Makes model.safetensors (bf16), config.json, generation_config.json, tokenizer.json and
    tokenizer_config.json. Raises GGUFError where the file is not GGUF or holds a model or tokenizer of
    another kind.
    """
    from safetensors.torch import save_file

    with GGUFFile(gguf_path) as gguf:
        metadata = gguf.metadata
        for key, expected in (
            ("general.architecture", "llama"),
            ("tokenizer.ggml.model", "gpt2"),
            ("tokenizer.ggml.pre", "smollm"),
        ):
            if (found := metadata.get(key)) != expected:
                raise GGUFError(f"{gguf_path}: {key} is {found!r}, this converter reads only {expected!r}")
        tensors = _tensors(gguf)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = _config(metadata, is_tied="lm_head.weight" not in tensors)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_tokenizer(metadata, folder)


def _tensors(gguf: GGUFFile) -> dict[str, torch.Tensor]:
    import torch

    num_heads = gguf.metadata["llama.attention.head_count"]
    num_kv_heads = gguf.metadata["llama.attention.head_count_kv"]
    tensors = {}
    for gguf_name in gguf.tensors:
        values = torch.from_numpy(gguf.load(gguf_name))
        name = _hf_name(gguf_name)
        if name.endswith("q_proj.weight"):
            values = _unpermute(values, num_heads)
        elif name.endswith("k_proj.weight"):
            values = _unpermute(values, num_kv_heads)
        tensors[name] = values.to(torch.bfloat16).contiguous()
    return tensors


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of a q or k projection in Hugging Face's order.

    llama.cpp rotates neighbouring rows (0, 1), (2, 3), ...; Hugging Face rotates row i with row
    i + head_dim / 2. So llama.cpp's row 2 * i + half of a head is Hugging Face's row half * head_dim / 2 + i.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _hf_name(gguf_name: str) -> str:
    stem, _, kind = gguf_name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    elif stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.{kind}"
    raise GGUFError(f"tensor {gguf_name!r} is not part of a llama model")


def _config(metadata: dict[str, Any], *, is_tied: bool) -> dict[str, Any]:
    hidden_size = metadata["llama.embedding_length"]
    num_heads = metadata["llama.attention.head_count"]
    rope_theta = metadata["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": hidden_size,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        # GGUF keeps a float32: 1e-5 comes back as 9.999999747e-06.
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        # transformers 5 writes rope_parameters and dtype, 4 reads rope_theta and torch_dtype; neither
        # complains about the other's.
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_theta": rope_theta, "rope_type": "default"},
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    pairs = [pair.partition(" ") for pair in metadata["tokenizer.ggml.merges"]]
    merges = [(left, right) for left, _, right in pairs]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # What llama.cpp calls "smollm": every digit stands alone before the rest is cut. GPT-2's pre-tokenizer on
    # its own cuts a run of spaces before a number elsewhere: "  1" would be [216, 216, 33], not [256, 33].
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            # Not "GPT2Tokenizer": transformers 5 would then use a pre-tokenizer of its own, not this one.
            "tokenizer_class": "PreTrainedTokenizerFast",
            # Without this, transformers 4 adds token_type_ids, which generate() of a llama refuses.
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": metadata["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
            "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
            "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
            "chat_template": metadata["tokenizer.chat_template"],
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
