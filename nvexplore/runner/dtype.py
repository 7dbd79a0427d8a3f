"""The number format that a checkpoint is run in."""

from __future__ import annotations

import warnings
from typing import Final

import torch

from nvexplore.model_config import ModelConfig

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_dtype(dtype: str | torch.dtype, config: ModelConfig) -> torch.dtype:
    """Return the dtype of weights and KV; "auto" is the checkpoint's own, or float32 where it names none.

    Warns of float16 for a bfloat16 checkpoint: the numbers in it may be larger than float16's greatest, 65504.
    """
    name = str(dtype).removeprefix("torch.")
    name = (config.dtype or "float32") if name == "auto" else name
    if name not in _DTYPES:
        raise ValueError(f"dtype={name!r} is not supported (supported: auto, {', '.join(_DTYPES)})")
    if (name, config.dtype) == ("float16", "bfloat16"):
        warnings.warn(
            "dtype='float16' for a bfloat16 checkpoint: values above 65504 become infinite and the request fails "
            "with NaN logits; dtype='auto' avoids it",
            stacklevel=2,
        )
    return _DTYPES[name]
