"""Workloads of whole prompts, and what an engine makes of them. Knows engines by ``generate`` alone.

So every engine is measured in the same way: first token and step times are differences of whole calls.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

TEMPERATURE = 0.6
IDS = 10_000  # prompts are of random ids below it, as in nano-vLLM's benchmark


class Server(Protocol):
    """An engine that has loaded its model."""

    name: str
    load_seconds: float

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        """Complete each prompt by exactly so many tokens at TEMPERATURE; returns how many tokens came."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Figure:
    """What a workload gives: a number, its unit, and whether more is better."""

    value: float
    unit: str
    more_is_better: bool


@dataclass(frozen=True, slots=True)
class Serving:
    """A workload: ``measure(server, seed)``. Prompts are new for every seed, so no cache knows them."""

    name: str
    measure: Callable[[Server, int], Figure]


def seconds(server: Server, prompts: list[list[int]], max_tokens: list[int]) -> float:
    begin = time.perf_counter()
    came = server.generate(prompts, max_tokens)
    took = time.perf_counter() - begin
    if came != sum(max_tokens):
        raise RuntimeError(f"{server.name} gave {came} tokens, {sum(max_tokens)} were asked for")
    return took


def throughput_requests(seed: int, count: int = 256, longest: int = 1024) -> tuple[list[list[int]], list[int]]:
    """nano-vLLM's own benchmark: 256 prompts of 100 to 1,024 ids, as many new tokens each, all at once."""
    source = random.Random(seed)
    least = min(100, longest)
    prompts = [_ids(source, source.randint(least, longest)) for _ in range(count)]
    return prompts, [source.randint(least, longest) for _ in range(count)]


def throughput(server: Server, seed: int, count: int = 256, longest: int = 1024) -> Figure:
    prompts, max_tokens = throughput_requests(seed, count, longest)
    return Figure(sum(max_tokens) / seconds(server, prompts, max_tokens), "tokens/s", True)


def decode_step(server: Server, seed: int, batch: int, prompt: int = 64, new: int = 128) -> Figure:
    """Milliseconds a step: a long completion less a short one, over the tokens between."""
    source, short = random.Random(seed), 8
    took = [
        seconds(server, [_ids(source, prompt) for _ in range(batch)], [tokens] * batch)
        for tokens in (short, short + new)
    ]
    return Figure((took[1] - took[0]) / new * 1e3, "ms", False)


def first_token(server: Server, seed: int, prompt: int = 64) -> Figure:
    return Figure(seconds(server, [_ids(random.Random(seed), prompt)], [1]) * 1e3, "ms", False)


def prefill(server: Server, seed: int, count: int = 8, prompt: int = 8192) -> Figure:
    source = random.Random(seed)
    took = seconds(server, [_ids(source, prompt) for _ in range(count)], [1] * count)
    return Figure(count * prompt / took, "prompt tokens/s", True)


def shared_prefix(
    server: Server, seed: int, count: int = 256, shared: int = 2048, own: int = 64, new: int = 64
) -> Figure:
    """Many requests whose prompts begin alike, each with an end of its own."""
    source = random.Random(seed)
    head = _ids(source, shared)
    return Figure(seconds(server, [head + _ids(source, own) for _ in range(count)], [new] * count), "s", False)


def workloads() -> list[Serving]:
    """All of them, at full size."""
    steps = [Serving(f"step at batch {batch}", partial(decode_step, batch=batch)) for batch in (1, 8, 32, 64)]
    return [
        Serving("throughput", throughput),
        *steps,
        Serving("first token", first_token),
        Serving("prefill 8 x 8,192", prefill),
        Serving("shared prefix", shared_prefix),
    ]


def _ids(source: random.Random, count: int) -> list[int]:
    return source.choices(range(IDS), k=count)
