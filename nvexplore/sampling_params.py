"""What a request asks of the sampler, checked when it is made. Knows nothing of engines or devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nvexplore.checks import check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    temperature: 0 is greedy (the argmax of the raw logits), otherwise logits are divided by it; finite, >= 0.
    max_tokens:  completion tokens at most, >= 1.
    ignore_eos:  go on to ``max_tokens`` even when the model says it is done.
    Raises TypeError or ValueError naming the argument, its value and the limit.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        t = self.temperature
        if isinstance(t, bool) or not isinstance(t, (int, float)):
            raise TypeError(f"temperature={t!r}: must be a number, not {type(t).__name__}")
        if not math.isfinite(t) or t < 0:
            raise ValueError(f"temperature={t!r}: must be finite and >= 0 (0 is greedy)")
        check_int("max_tokens", self.max_tokens, minimum=1)
        if not isinstance(self.ignore_eos, bool):
            raise TypeError(f"ignore_eos={self.ignore_eos!r}: must be True or False")
