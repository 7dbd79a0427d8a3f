"""What may differ between the model families that share one decoder, as plain data. Knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture of Hugging Face checkpoints, by what sets it apart from the shared decoder.

    name, model_type: as in ``architectures`` and ``model_type`` of config.json.
    qk_norm:     queries and keys go through an RMSNorm over each head before the rotary embedding.
    qkv_bias, o_bias, mlp_bias: whether those linears have one; a string is the config.json key that decides.
    has_experts: layers may be mixtures of experts (``MoeConfig`` says which).
    windowed_from: where a config turns a sliding window on, the key that names the first layer to have it;
                 None: all layers have it. (A window in use is refused.)
    defaults:    what config.json may leave out, with the values of transformers' config class.
    """

    name: str
    model_type: str
    qk_norm: bool = False
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    has_experts: bool = False
    windowed_from: str | None = "max_window_layers"
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
