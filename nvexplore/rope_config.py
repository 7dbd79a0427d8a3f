"""The rotary embedding as config.json describes it, in its old and its new spelling. Knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# What each supported type must say beside theta; anything unknown changes the frequencies in an unknown way.
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_COMMON: Final = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions become angles; frozen and made of numbers, so it can serve as a key.

    theta:     base of the geometric series of frequencies.
    rope_type: "default", "linear" (frequencies divided by ``factor``) or "llama3" (low frequencies divided by
               ``factor``, high ones kept, a ramp between; wavelengths are measured in
               ``original_max_position_embeddings`` tokens).
    """

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Read ``rope_theta`` and ``rope_scaling`` (old) or ``rope_parameters`` (new) of a config.json.

        A type that is unknown, or a key that its type does not have, is a ValueError naming it: ignored, it
        would give fair text until the context is long.
        """
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(rope, Mapping):
            raise ValueError(f"rope_parameters={rope!r}: must be an object")
        rope = {key: value for key, value in rope.items() if value is not None}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope.get("type", rope_type) != rope_type:
            raise ValueError(f"rope_type={rope_type!r} but type={rope['type']!r}: the two spellings disagree")
        if not isinstance(rope_type, str) or rope_type not in _NEEDED:
            raise ValueError(f"rope_type={rope_type!r} is not supported (supported: {', '.join(_NEEDED)})")
        needed = _NEEDED[rope_type]
        unknown = sorted(set(rope) - set(_COMMON) - set(needed))
        if unknown:
            raise ValueError(f"rope_type={rope_type!r}: unknown {', '.join(unknown)}")
        partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise ValueError(f"partial_rotary_factor={partial!r}: only whole heads are rotated here")
        # Where transformers looks, in its order.
        original = "original_max_position_embeddings"
        rope.setdefault(original, config.get("max_position_embeddings"))
        rope[original] = config.get(original) or rope[original]
        values = {key: _positive(key, rope.get(key)) for key in needed}
        theta = _positive("rope_theta", rope.get("rope_theta", config.get("rope_theta", 10000.0)))
        if rope_type == "llama3":
            values[original] = int(values[original])
            if values["high_freq_factor"] <= values["low_freq_factor"]:
                raise ValueError(
                    f"high_freq_factor={values['high_freq_factor']}: must be above "
                    f"low_freq_factor={values['low_freq_factor']}"
                )
        return cls(theta=theta, rope_type=rope_type, **values)


def _positive(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"rope parameters: {name}={value!r} must be a number above 0")
    return float(value)
