"""Toy checkpoints: random weights in the real Hugging Face format, for tests and teaching.

A toy is a folder like any downloaded model (config, safetensors, byte tokenizer), so it takes the same way
through the program; it loads in transformers too, which is not needed to write it. This module knows values
and files; `toy_architectures` knows what each architecture has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nvexplore.toy_architectures import ARCHITECTURES, Shape, tensor_shapes, toy_config
from nvexplore.toy_tokenizer import VOCAB_SIZE, write_byte_tokenizer

__all__ = ["make_toy"]

# Marks the config of a toy; transformers and others ignore keys that they do not know.
_TOY_KEY: Final = "nvexplore_toy"


def make_toy(
    path: str | Path,
    architecture: str = "qwen3",
    *,
    head_dim: int = 16,
    num_layers: int = 2,
    seed: int = 0,
    dtype: str = "float32",
    tied: bool = True,
    num_shards: int = 1,
    **config_overrides: Any,
) -> Path:
    """Write a toy checkpoint into the folder `path` (made if missing) and return it.

    Args:
        path: the folder; files of an earlier toy in it are replaced.
        architecture: "llama", "qwen2", "qwen3" or "qwen3_moe".
        head_dim: values of one attention head, usually 16, 64 or 128; there are 4 heads and 2 KV heads.
        num_layers: transformer layers.
        seed: of the random weights; the same arguments write the same bytes.
        dtype: torch's name of the weights' dtype: "float32", "bfloat16" or "float16".
        tied: the output layer is the embedding; otherwise there is an lm_head.weight.
        num_shards: safetensors files to spread the weights over, with an index where it is more than 1.
        config_overrides: further config.json keys, new or replaced; sizes change the weights accordingly.

    transformers 5 reads the tokenizer of a qwen2 toy as Qwen2's, which first normalises text to NFC.

    Raises ValueError for an unknown architecture or dtype, too many shards and a vocabulary smaller than
    the tokenizer's, FileExistsError where `path` holds another model.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {architecture!r}, known are {', '.join(sorted(ARCHITECTURES))}")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"dtype is {dtype!r}, a toy can be float32, bfloat16 or float16")
    config = toy_config(
        architecture,
        head_dim=head_dim,
        num_layers=num_layers,
        dtype=dtype,
        tied=tied,
        overrides={_TOY_KEY: {"seed": seed}, **config_overrides},
    )
    if config["vocab_size"] < VOCAB_SIZE:
        raise ValueError(f"vocab_size is {config['vocab_size']}, the byte tokenizer has {VOCAB_SIZE} tokens")
    shapes = dict(tensor_shapes(ARCHITECTURES[architecture], config))
    if not 1 <= num_shards <= len(shapes):
        raise ValueError(f"num_shards is {num_shards}, expected 1 to {len(shapes)}, the number of tensors")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_other_model(folder)
    _write_json(folder / "config.json", config)
    _write_weights(folder, shapes, dtype=dtype, seed=seed, num_shards=num_shards)
    generation = {key: config[key] for key in ("eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", generation)
    write_byte_tokenizer(folder)
    return folder


def _values(name: str, shape: Shape, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Random values of one tensor, scaled so that greedy outputs are varied.

    With every scale at 1 a toy repeats one token: the embedding of the last token outweighs what the layers
    add, and near-uniform attention sees the same average at every position.
    """
    values = random.standard_normal(shape, dtype=np.float32)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 3 + 0.75 * values  # attention that looks at few positions
    if name.endswith("norm.weight"):
        return 1 + 0.25 * values  # not 1: a weight that is not applied must show
    if name.endswith(".bias"):
        return 0.25 * values
    values *= np.float32(shape[1] ** -0.5)
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        values *= 3
    elif name.endswith(("o_proj.weight", "down_proj.weight")):
        values *= 6
    elif name in ("model.embed_tokens.weight", "lm_head.weight"):
        values *= 0.5
        # The printable bytes: output is legible and seldom meets a special token.
        values[ord(" ") : ord("~") + 1] *= 4
    return values


def _write_weights(folder: Path, shapes: dict[str, Shape], *, dtype: str, seed: int, num_shards: int) -> None:
    import torch
    from safetensors.torch import save_file

    random = np.random.default_rng(seed)
    torch_dtype = getattr(torch, dtype)
    tensors = {name: torch.from_numpy(_values(name, shape, random)).to(torch_dtype) for name, shape in shapes.items()}
    for old in (*folder.glob("model*.safetensors"), *folder.glob("model.safetensors.index.json")):
        old.unlink()
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard, names in enumerate(np.array_split(list(tensors), num_shards), start=1):
        file_name = f"model-{shard:05}-of-{num_shards:05}.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file_name, metadata={"format": "pt"})
        weight_map |= {str(name): file_name for name in names}
    total_size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _refuse_other_model(folder: Path) -> None:
    """Raise FileExistsError where `folder` holds a model that is not a toy, which would be lost."""
    try:
        is_toy = _TOY_KEY in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        is_toy = not any(folder.glob("*.safetensors"))
    if not is_toy:
        raise FileExistsError(f"{folder} holds a model that is not a toy, a toy will not replace it")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
