"""A model's shape and options, read from the raw config.json of a Hugging Face checkpoint.

What cannot be run as the checkpoint means it is refused here by name, before anything is allocated. Knows
neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvexplore.checks import check_int
from nvexplore.models import ARCHITECTURES, Architecture
from nvexplore.moe_config import MoeConfig
from nvexplore.rope_config import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and options of one decoder-only model; counts are those of the whole model, not of one rank.

    architecture:  key of ``nvexplore.models.ARCHITECTURES``.
    head_dim:      values a head; num_attention_heads is a multiple of num_key_value_heads.
    qkv_bias, o_bias, mlp_bias: whether those linears have a bias.
    moe:           the experts, or None for a model without.
    dtype:         the name that the checkpoint gives, such as "bfloat16", or None where it gives none.
    eos_token_ids: every id that ends a completion: those of config.json and of generation_config.json.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    moe: MoeConfig | None = None
    dtype: str | None = None
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def rope_theta(self) -> float:
        return self.rope.theta

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model can run; yarn means more than max_position_embeddings may say."""
        if self.rope.max_length is not None:
            return min(self.rope.max_length, self.max_position_embeddings)
        if self.rope.rope_type == "yarn":
            stretched = round(self.rope.factor * self.rope.original_max_position_embeddings)
            return max(stretched, self.max_position_embeddings)
        return self.max_position_embeddings

    def check_max_model_len(self, max_model_len: int) -> int:
        """Return ``max_model_len`` if the model can run sequences of that length; the ValueError says why not."""
        if self.rope.max_length is not None and max_model_len > self.max_positions:
            raise ValueError(
                f"max_model_len={max_model_len}: rope_type={self.rope.rope_type!r} is supported within its original "
                f"length only, set max_model_len={self.max_positions} or less"
            )
        length = check_int("max_model_len", max_model_len, minimum=1)
        if length > self.max_positions:
            is_stretched = self.max_positions > self.max_position_embeddings
            whose = "factor times the original length of its yarn" if is_stretched else "max_position_embeddings"
            raise ValueError(f"max_model_len={length}: must be at most {self.max_positions}, the model's {whose}")
        return length

    @classmethod
    def from_path(cls, path: str | Path) -> ModelConfig:
        """Read config.json and, where there is one, generation_config.json from the folder ``path``."""
        folder = Path(path)
        generation = folder / "generation_config.json"
        return cls.from_dict(
            _read_object(folder / "config.json"), _read_object(generation) if generation.exists() else None
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelConfig:
        """Make one of the parsed JSON; the ValueError or TypeError names the key that is wrong or missing."""
        spec = _architecture_of(config)
        given = {**spec.defaults, **config}
        _refuse_unsupported(given, spec)

        def size(key: str) -> int:
            if given.get(key) is None:
                raise ValueError(f"config.json of {spec.name} has no {key}")
            return check_int(key, given[key], minimum=1)

        num_heads, hidden_size = size("num_attention_heads"), size("hidden_size")
        if given.get("num_key_value_heads") is None:
            given["num_key_value_heads"] = num_heads
        num_kv_heads = size("num_key_value_heads")
        if num_heads % num_kv_heads:
            raise ValueError(
                f"num_attention_heads={num_heads}: must be a multiple of num_key_value_heads={num_kv_heads}"
            )
        if given.get("head_dim") is None:
            if hidden_size % num_heads:
                raise ValueError(
                    f"hidden_size={hidden_size}: must be a multiple of num_attention_heads={num_heads}, "
                    "since config.json has no head_dim"
                )
            given["head_dim"] = hidden_size // num_heads
        head_dim = size("head_dim")
        if head_dim % 2:
            raise ValueError(f"head_dim={head_dim}: must be even, the rotary embedding turns pairs")
        return cls(
            architecture=spec.name,
            vocab_size=size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=size("intermediate_size"),
            num_hidden_layers=size("num_hidden_layers"),
            num_attention_heads=num_heads,
            num_key_value_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=_epsilon(given),
            max_position_embeddings=size("max_position_embeddings"),
            rope=RopeConfig.from_dict(given),
            tie_word_embeddings=_flag(given, "tie_word_embeddings"),
            qk_norm=spec.qk_norm,
            qkv_bias=_flag(given, spec.qkv_bias),
            o_bias=_flag(given, spec.o_bias),
            mlp_bias=_flag(given, spec.mlp_bias),
            moe=MoeConfig.from_dict(given) if spec.has_experts else None,
            dtype=_dtype_name(given),
            eos_token_ids=_eos_token_ids(config, generation_config or {}, spec),
        )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist: {file.parent} is not a model folder") from None
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file}: must hold an object, not {type(value).__name__}")
    return value


def _architecture_of(config: Mapping[str, Any]) -> Architecture:
    names, model_type = config.get("architectures") or [], config.get("model_type")
    by_type = next((spec for spec in ARCHITECTURES.values() if spec.model_type == model_type), None)
    if not isinstance(names, list) or not names:
        if by_type is None:
            raise ValueError(f"config.json names no architecture (architectures={names!r}, model_type={model_type!r})")
        return by_type
    if names[0] not in ARCHITECTURES:
        raise ValueError(f"architecture {names[0]!r} is not supported (supported: {', '.join(ARCHITECTURES)})")
    if model_type is not None and model_type != ARCHITECTURES[names[0]].model_type:
        raise ValueError(f"architecture {names[0]!r} but model_type={model_type!r}: the two disagree")
    return ARCHITECTURES[names[0]]


def _refuse_unsupported(config: Mapping[str, Any], spec: Architecture) -> None:
    is_causal = config.get("is_causal", True)
    if is_causal is not True:
        raise ValueError(f"is_causal={is_causal!r} is not supported: a token here sees none behind it")
    for key in ("per_layer_config", "attention_chunk_size"):
        if config.get(key) is not None:
            raise ValueError(f"{key}={config[key]!r} is not supported: all layers attend to all tokens alike")
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise ValueError(f"quantization_config (quant_method={method!r}): quantised checkpoints are not supported")
    activation = config.get("hidden_act") or "silu"
    if activation != "silu":
        raise ValueError(f"hidden_act={activation!r} is not supported (supported: 'silu')")
    # A Qwen config may name a window that no layer uses: only layers from max_window_layers on do.
    layer_types = config.get("layer_types") or []
    first_windowed = (config.get(spec.windowed_from) or 0) if spec.windowed_from else 0
    uses_window = config.get("use_sliding_window") and config.get("sliding_window") is not None
    decides_alone = layer_types and spec.windowed_from is not None
    if "sliding_attention" in layer_types or (
        uses_window and not decides_alone and first_windowed < (config.get("num_hidden_layers") or 0)
    ):
        raise ValueError(f"sliding_window={config.get('sliding_window')!r} is in use: not supported")
    other = sorted(set(layer_types) - {"full_attention", "sliding_attention"})
    if other:
        raise ValueError(f"layer_types: {', '.join(map(repr, other))} not supported")
    for key in ("attention_bias", "mlp_bias"):
        is_known = key in (spec.qkv_bias, spec.o_bias, spec.mlp_bias)
        if config.get(key) and not is_known and not (key == "attention_bias" and spec.qkv_bias is True):
            raise ValueError(f"{key}={config[key]!r}: {spec.name} has no such bias here")


def _flag(config: Mapping[str, Any], key: bool | str) -> bool:
    if isinstance(key, bool):
        return key
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{key}={value!r}: must be true or false")
    return bool(value)


def _epsilon(config: Mapping[str, Any]) -> float:
    value = config.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ValueError(f"rms_norm_eps={value!r}: must be a number between 0 and 1")
    return float(value)


def _dtype_name(config: Mapping[str, Any]) -> str | None:
    value = config.get("dtype") or config.get("torch_dtype")
    if value is not None and not isinstance(value, str):
        raise TypeError(f"dtype={value!r}: must be a name such as 'bfloat16'")
    return value and value.removeprefix("torch.")


def _eos_token_ids(config: Mapping[str, Any], generation: Mapping[str, Any], spec: Architecture) -> frozenset[int]:
    key = "eos_token_id"
    sources = [source for source in (config, generation) if key in source] or [spec.defaults]
    found: set[int] = set()
    for source in sources:
        ids = source.get(key)
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        found.update(check_int(key, i, minimum=0) for i in ids)
    return frozenset(found)
