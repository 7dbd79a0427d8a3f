"""What serving workloads are made of: requests, engines as they see them, figures. Knows no engine and loads none."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

WORKLOADS: Final = ("throughput", "step", "first-token", "prefill", "shared-prefix", "mixed-arrivals")
TEMPERATURE: Final = 0.6
IDS: Final = 10_000  # prompts are of random ids below it, as in nano-vLLM's benchmark


class Server(Protocol):
    """An engine that has loaded its model.

    load_seconds: how long its construction took; stages: seconds of it by stage, empty where the engine tells none.
    """

    name: str
    load_seconds: float
    stages: dict[str, float]

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        """Complete each prompt by exactly so many tokens at TEMPERATURE; returns how many tokens came."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes ``seconds`` after the start of a run."""

    seconds: float
    prompt: list[int]
    max_tokens: int


@runtime_checkable
class StreamingServer(Protocol):
    """A server that takes requests while others run."""

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        """Complete every request; returns for each when its tokens came, in seconds after the start."""
        ...


@runtime_checkable
class CountsHits(Protocol):
    """A server that knows what its prefix cache gave. num_cached_tokens: prompt tokens of the last ``generate``."""

    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that a workload tells: what, in which case ("batch 8", "p95"; "" where there is one), and its value.

    more_is_better: None for what is told, but not compared.
    """

    quantity: str
    case: str
    value: float
    unit: str
    more_is_better: bool | None


@dataclass(frozen=True, slots=True)
class Serving:
    """A workload: ``measure(server, seed)``. Prompts are new for every seed, so no cache knows them.

    longest: tokens of its longest request, completion included. is_streaming: whether it needs a StreamingServer.
    """

    name: str
    measure: Callable[[Server, int], list[Figure]]
    longest: int
    is_streaming: bool = False

    def can_run_on(self, server: Server) -> bool:
        return not self.is_streaming or isinstance(server, StreamingServer)


class Source:
    """Random prompts, sizes and times: the same for equal ``name`` and ``seed``, and otherwise unlike all others.

    ids: prompts are of ids below it.
    """

    def __init__(self, name: str, seed: int, ids: int) -> None:
        # A text: of an int only the absolute value would count, and a warm-up would know the prompts of a pass.
        self._random = random.Random(f"{name} {seed}")
        self._ids = range(ids)

    def prompt(self, length: int) -> list[int]:
        return self._random.choices(self._ids, k=length)

    def between(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def arrival_times(self, count: int, rate: float) -> list[float]:
        """Of a Poisson process of ``rate`` requests a second, seen from the first request on; in seconds."""
        times = [0.0]
        while len(times) < count:
            times.append(times[-1] + self._random.expovariate(rate))
        return times


def seconds(server: Server, prompts: list[list[int]], max_tokens: list[int]) -> float:
    """How long ``server`` takes for all of them; RuntimeError if it gives fewer or more tokens than asked for."""
    begin = time.perf_counter()
    came = server.generate(prompts, max_tokens)
    took = time.perf_counter() - begin
    if came != sum(max_tokens):
        raise RuntimeError(f"{server.name} gave {came} tokens, {sum(max_tokens)} were asked for")
    return took
