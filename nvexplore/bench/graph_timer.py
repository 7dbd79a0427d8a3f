"""What launches take on a GPU, from one CUDA graph that holds them all. Knows no kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

import torch

GRAPH_SECONDS: Final = 2e-3  # a graph runs so long at least: next to it, the pause between two replays is nothing
SECONDS: Final = 0.1  # of all replays, roughly
LEAST: Final = 5  # replays


def median_seconds(calls: Sequence[Callable[[], Any]]) -> float:
    """Seconds a call: ``calls`` are captured one after another, and the median is of replays of the whole graph.

    So the host stands in nobody's way; the time from one kernel's end to the next one's start is in it, as it is in a
    decode step. Call under ``torch.inference_mode``, with calls that may be repeated.
    """
    for call in calls:  # compiles, chooses and allocates, which a capture may not
        call()
    once = _replay_seconds(calls, 1)[0]
    rounds = max(1, math.ceil(GRAPH_SECONDS / once))
    times = _replay_seconds([*calls] * rounds, max(LEAST, round(SECONDS / (rounds * once))))
    return median(times) / (rounds * len(calls))


def _replay_seconds(calls: Sequence[Callable[[], Any]], count: int) -> list[float]:
    """What each of ``count`` replays takes, after one that does not count."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Results are kept until the end: memory that is written again and again would never leave the cache.
        kept = [call() for call in calls]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
    graph.replay()
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    graph.reset()
    del kept
    return [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]
