"""Requests that arrive while others decode: the loop that feeds an engine, and what its users would notice."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from nvexplore.bench.serving import Arrival, Figure, Server, Source, StreamingServer

ARRIVAL_SECONDS: Final = 4.0  # where no rate is given, requests arrive over about so long


class Progress(NamedTuple):
    """Request number ``number`` has so many tokens now; ``is_finished``: and gets no more."""

    number: int
    num_tokens: int
    is_finished: bool


class Steps(Protocol):
    """An engine that runs one step at a time."""

    def add(self, number: int, arrival: Arrival) -> None:
        """Queue a request, which is called ``number`` from now on."""
        ...

    def step(self) -> Iterable[Progress]:
        """Run one step; only ever called with a request unfinished. Tells of those that may have new tokens."""
        ...


def serve(engine: Steps, arrivals: Sequence[Arrival]) -> list[list[float]]:
    """Give ``engine`` each request when its time has come, between two steps; returns as StreamingServer.serve.

    A token has come when the step that tells it has returned.
    """
    times: list[list[float]] = [[] for _ in arrivals]
    waiting = deque(sorted(range(len(arrivals)), key=lambda number: arrivals[number].seconds))
    num_unfinished = 0
    begin = time.perf_counter()
    while waiting or num_unfinished:
        now = time.perf_counter() - begin
        while waiting and arrivals[waiting[0]].seconds <= now:
            number = waiting.popleft()
            engine.add(number, arrivals[number])
            num_unfinished += 1
        if not num_unfinished:
            time.sleep(arrivals[waiting[0]].seconds - now)
            continue
        told = engine.step()
        now = time.perf_counter() - begin
        for each in told:
            came = times[each.number]
            came += [now] * (each.num_tokens - len(came))
            num_unfinished -= each.is_finished
    return times


def mixed_arrivals(
    server: Server, seed: int, *, ids: int, count: int, longest: int, new: int, rate: float | None
) -> list[Figure]:
    """Requests arrive at random (a Poisson process) with prompts of up to ``longest`` ids and up to ``new`` new tokens.

    Time to first token counts from a request's arrival, queued or not. Inter-token latency is the time between two
    tokens of a request that follow each other, all of all requests together: what a step of prompts costs those who
    decode is in its p95.
    """
    assert isinstance(server, StreamingServer)
    source = Source("mixed arrivals", seed, ids)
    times = source.arrival_times(count, count / ARRIVAL_SECONDS if rate is None else rate)
    arrivals = [
        Arrival(at, source.prompt(source.between(-(-longest // 10), longest)), source.between(max(2, new // 4), new))
        for at in times
    ]
    came = server.serve(arrivals)
    for number, (arrival, tokens) in enumerate(zip(arrivals, came, strict=True)):
        if len(tokens) != arrival.max_tokens:
            what = f"{len(tokens)} tokens for request {number}, {arrival.max_tokens} were asked for"
            raise RuntimeError(f"{server.name} gave {what}")
    first = [tokens[0] - arrival.seconds for arrival, tokens in zip(arrivals, came, strict=True)]
    between = np.concatenate([np.diff(tokens) for tokens in came])
    return [
        Figure(quantity, case, float(np.percentile(values, percentile)) * 1e3, "ms", False)
        for quantity, values in (("time to first token", first), ("inter-token latency", between))
        for case, percentile in (("median", 50), ("p95", 95))
    ]
