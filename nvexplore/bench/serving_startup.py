"""From an engine's construction to its first token: how long, and on what. Knows engines as servers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nvexplore.bench.serving import Server, Source, seconds

PROMPT = 64  # ids, at most


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds: of loading, of the first call for one token (cold), and of the next such call (warm).

    stages: of loading, where the engine tells them. backends: what computes attention, likewise.
    """

    name: str
    load: float
    first_token: float
    warm_first_token: float
    stages: dict[str, float]
    backends: dict[str, str] = field(default_factory=dict)

    @property
    def to_first_token(self) -> float:
        """From construction to the first token."""
        return self.load + self.first_token

    def parts(self) -> dict[str, float]:
        """What makes up ``to_first_token``, in order."""
        return {**(self.stages or {"load": self.load}), "first call": self.first_token}

    def as_dict(self) -> dict[str, Any]:
        """All figures, plain enough for JSON."""
        return {**asdict(self), "to_first_token": self.to_first_token}


def start(server: Server, *, ids: int, longest: int) -> Startup:
    """Ask a server that has just been made for one token, twice. longest: no request is longer, token included."""
    prompts = [Source("startup", number, ids).prompt(max(1, min(PROMPT, longest - 1))) for number in range(2)]
    cold, warm = (seconds(server, [prompt], [1]) for prompt in prompts)
    backends = getattr(server, "backends", {})
    return Startup(server.name, server.load_seconds, cold, warm, server.stages, backends)


def lines(startups: Sequence[Startup]) -> list[str]:
    """A line for each engine, and one for what computes its attention."""
    told = []
    for each in startups:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in each.parts().items())
        warm = f"warm first token {each.warm_first_token * 1e3:.1f} ms"
        told.append(f"{each.name}: {each.to_first_token:.2f} s to the first token ({parts}); {warm}")
        if each.backends:
            told.append(f"{each.name}: " + "; ".join(f"{phase} by {names}" for phase, names in each.backends.items()))
    return told
