"""A feed on a toy engine, with a clock and a timer that stand still until they are moved."""

from __future__ import annotations

from typing import Any

from nvexplore.engine.engine import Engine
from nvexplore.notebook.feed import Feed
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine


class Watch:
    """The feed, and what it sent when."""

    def __init__(self, *, has_timer: bool = True, **limits: Any) -> None:
        self.now = 100.0
        self.messages: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.timer: float | None = None
        self.feed = Feed(
            self._sent, later=self._later if has_timer else lambda _: False, clock=lambda: self.now, **limits
        )

    def _sent(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.times.append(self.now)

    def _later(self, seconds: float) -> bool:
        assert self.timer is None
        self.timer = self.now + seconds
        return True

    def wait(self, seconds: float) -> None:
        """Let time pass; what was to be called back is."""
        end = self.now + seconds
        while self.timer is not None and self.timer <= end:
            self.now, self.timer = max(self.now, self.timer), None
            self.feed.tick()
        self.now = end

    def most_in_a_second(self) -> int:
        return max(sum(t <= other < t + 1.0 for other in self.times) for t in self.times)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def busy_engine(num_blocks: int = 40, num_seqs: int = 6, max_tokens: int = 500) -> Engine:
    engine = toy_engine(num_blocks, 4, max_num_batched_tokens=16, max_num_seqs=8)
    for i in range(num_seqs):
        engine.add_request([1 + i % 3] * (5 + i), greedy(min(max_tokens, 4 * num_blocks - 20)), request_id=f"r{i}")
    return engine
