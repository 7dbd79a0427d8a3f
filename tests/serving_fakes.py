"""Engines for the tests of serving benchmarks that run nothing, and a clock that only they move."""

from __future__ import annotations

from collections.abc import Sequence

from nvexplore.bench.serving import Arrival, Figure
from nvexplore.bench.serving_arrivals import Progress, serve


class Clock:
    """Time that only servers and sleep move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, duration: float) -> None:
        assert duration > 0
        self.now += duration + 1e-9  # as a real clock, it gets past any number however it was rounded


class FakeServer:
    """Takes a millisecond for each prompt token, 10 for a step of all prompts; notes what it is asked for."""

    load_seconds = 1.0
    stages: dict[str, float] = {}  # noqa: RUF012

    def __init__(self, clock: Clock, name: str = "fake", lost: int = 0) -> None:
        self.name, self.clock, self.lost = name, clock, lost
        self.asked: list[tuple[list[list[int]], list[int]]] = []

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        self.asked.append((prompts, max_tokens))
        self.clock.now += sum(map(len, prompts)) * 1e-3 + max(max_tokens) * 10e-3
        return sum(max_tokens) - self.lost

    def close(self) -> None: ...


class FakeStreaming(FakeServer):
    """Also takes requests while others run: 10 ms a step, in which every request gets a token. Half are hits."""

    num_cached_tokens = 0

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        self.num_cached_tokens = sum(map(len, prompts)) // 2
        return super().generate(prompts, max_tokens)

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        self.arrivals = arrivals
        self.running: dict[int, tuple[int, int]] = {}
        return serve(self, arrivals)

    def add(self, number: int, arrival: Arrival) -> None:
        self.running[number] = 0, arrival.max_tokens - self.lost

    def step(self) -> list[Progress]:
        assert self.running
        self.clock.now += 10e-3
        self.running = {number: (count + 1, most) for number, (count, most) in self.running.items()}
        told = [Progress(number, count, count == most) for number, (count, most) in self.running.items()]
        self.running = {number: each for number, each in self.running.items() if each[0] < each[1]}
        return told


def by_case(figures: Sequence[Figure]) -> dict[tuple[str, str], float]:
    return {(figure.quantity, figure.case): figure.value for figure in figures}
