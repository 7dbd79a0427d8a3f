"""How long the stages of loading take."""

from __future__ import annotations

import time


class Stopwatch:
    """seconds: of each stage that has ended, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """End ``stage``, and begin the next."""
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now
