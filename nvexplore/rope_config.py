"""The rotary embedding as config.json describes it, in its old and its new spelling. Knows no tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_ORIGINAL: Final = "original_max_position_embeddings"
_COMMON: Final = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", _ORIGINAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions become angles; frozen and made of numbers, so it can serve as a key.

    theta:     base of the geometric series of frequencies.
    rope_type: "default";
               "linear": frequencies divided by ``factor``;
               "llama3": low frequencies divided by ``factor``, high ones kept, a ramp between; wavelengths are
               measured in ``original_max_position_embeddings`` tokens, the length of the first training;
               "yarn": the same idea with another ramp, between ``beta_fast`` and ``beta_slow`` turns within the
               original length, rounded to whole pairs if ``truncate``;
               "longrope": each frequency divided by its own number in ``short_factor``;
               "dynamic": as default. These two change beyond ``max_length``.
    attention_factor: what cosines and sines are multiplied by.
    max_length: the longest sequence these frequencies are right for, or None. Beyond it longrope and dynamic
               turn by other angles, and the keys in the cache would all have to be turned again.
    """

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    max_length: int | None = None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Read ``rope_theta`` and ``rope_scaling`` (old) or ``rope_parameters`` (new) of a config.json.

        A type that is unknown, or a key that its type does not have, is a ValueError naming it: ignored, it
        would give fair text until the context is long.
        """
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(rope, Mapping):
            raise ValueError(f"rope_parameters={rope!r}: must be an object")
        # null is a key's default, but not here: transformers has true as the default, and takes null for false.
        if rope.get("truncate", True) is None:
            raise ValueError("rope_parameters: truncate=None must be true or false")
        rope = {key: value for key, value in rope.items() if value is not None}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope.get("type", rope_type) != rope_type:
            raise ValueError(f"rope_type={rope_type!r} but type={rope['type']!r}: the two spellings disagree")
        if not isinstance(rope_type, str) or rope_type not in _TYPES:
            raise ValueError(f"rope_type={rope_type!r} is not supported (supported: {', '.join(_TYPES)})")
        keys, read = _TYPES[rope_type]
        unknown = sorted(set(rope) - _COMMON - keys)
        if unknown:
            raise ValueError(f"rope_type={rope_type!r}: unknown {', '.join(unknown)}")
        partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise ValueError(f"partial_rotary_factor={partial!r}: only whole heads are rotated here")
        source = _Source(rope_type, rope, config)
        theta = source.positive("rope_theta", rope.get("rope_theta", config.get("rope_theta", 10000.0)))
        return cls(theta=theta, rope_type=rope_type, **read(source))


class _Source:
    """The keys of a rope type and of the config around it, each checked when it is asked for."""

    def __init__(self, rope_type: str, rope: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self.rope_type, self.rope, self.config = rope_type, rope, config

    def positive(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ValueError(f"rope_type={self.rope_type!r}: {key}={value!r} must be a number above 0")
        return float(value)

    def number(self, key: str, default: float | None = None) -> float:
        return self.positive(key, self.rope.get(key, default))

    def factors(self, key: str) -> tuple[float, ...]:
        """One number a pair of a head's values."""
        values, head_dim = self.rope.get(key), self.config.get("head_dim")
        if not isinstance(values, list) or (head_dim is not None and len(values) != head_dim // 2):
            shown = f"a list of {len(values)}" if isinstance(values, list) else repr(values)
            raise ValueError(f"rope_type={self.rope_type!r}: {key} is {shown}, not head_dim={head_dim} / 2 numbers")
        return tuple(self.positive(key, value) for value in values)

    def longest(self) -> int:
        key = "max_position_embeddings"
        return int(self.positive(key, self.config.get(key)))

    def original(self) -> int:
        # Where transformers looks, in its order.
        found = self.config.get(_ORIGINAL) or self.rope.get(_ORIGINAL)
        return self.longest() if found is None else int(self.positive(_ORIGINAL, found))

    def stretch(self) -> float:
        """How many times the length of the first training a sequence may be long."""
        return self.number("factor") if "factor" in self.rope else self.longest() / self.original()


def _default(source: _Source) -> dict[str, Any]:
    return {}


def _linear(source: _Source) -> dict[str, Any]:
    return {"factor": source.number("factor")}


def _dynamic(source: _Source) -> dict[str, Any]:
    return {"factor": source.number("factor"), "max_length": min(source.original(), source.longest())}


def _llama3(source: _Source) -> dict[str, Any]:
    low, high = source.number("low_freq_factor"), source.number("high_freq_factor")
    if high <= low:
        raise ValueError(f"high_freq_factor={high}: must be above low_freq_factor={low}")
    return {
        "factor": source.number("factor"),
        "low_freq_factor": low,
        "high_freq_factor": high,
        _ORIGINAL: source.original(),
    }


def _yarn(source: _Source) -> dict[str, Any]:
    factor = source.stretch()
    truncate = source.rope.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ValueError(f"rope_type='yarn': truncate={truncate!r} must be true or false")

    def scale(weight: float) -> float:
        return 1 + 0.1 * weight * math.log(factor) if factor > 1 else 1.0

    inferred = scale(1)
    if source.rope.get("mscale") and source.rope.get("mscale_all_dim"):
        inferred = scale(source.number("mscale")) / scale(source.number("mscale_all_dim"))
    return {
        "factor": factor,
        "beta_fast": source.number("beta_fast", 32),
        "beta_slow": source.number("beta_slow", 1),
        "truncate": truncate,
        "attention_factor": source.number("attention_factor", inferred),
        _ORIGINAL: source.original(),
    }


def _longrope(source: _Source) -> dict[str, Any]:
    original, factor = source.original(), source.stretch()
    inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short_factor = source.factors("short_factor")
    source.factors("long_factor")  # never used, but a file that has it wrong may be wrong elsewhere
    return {
        "factor": factor,
        "short_factor": short_factor,
        "attention_factor": source.number("attention_factor", inferred),
        "max_length": original,
        _ORIGINAL: original,
    }


# What each supported type may say beside theta, and who reads it.
_TYPES: Final[dict[str, tuple[frozenset[str], Callable[[_Source], dict[str, Any]]]]] = {
    "default": (frozenset(), _default),
    "linear": (frozenset({"factor"}), _linear),
    "dynamic": (frozenset({"factor"}), _dynamic),
    "llama3": (frozenset({"factor", "low_freq_factor", "high_freq_factor"}), _llama3),
    "yarn": (
        frozenset({"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
        _yarn,
    ),
    "longrope": (frozenset({"factor", "attention_factor", "short_factor", "long_factor"}), _longrope),
}
