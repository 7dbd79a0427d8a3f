"""Several recordings side by side: the same requests under another policy, pool or budget. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pandas as pd

from nvexplore.explore.frames import prefix_hits, sequences, steps
from nvexplore.explore.recorder import Recorder

Frames = Mapping[str, pd.DataFrame]


def _quantile(column: str, share: float) -> Callable[[Frames], float]:
    return lambda of: float(of["sequences"][column].quantile(share))


def _sum(frame: str, column: str) -> Callable[[Frames], float]:
    return lambda of: float(of[frame][column].sum())


def _ended_by(*reasons: str) -> Callable[[Frames], float]:
    return lambda of: float(of["sequences"].finish_reason.isin(reasons).sum())


def _latency(of: Frames) -> float:
    table = of["sequences"]
    whole = table.finish_reason.isin(("stop", "length"))  # others were cut off, which is no speed
    return float(table.latency_s[whole].median())


def _tokens_a_second(of: Frames) -> float:
    table = of["steps"]
    busy = float(table.work_us.sum()) / 1e6
    return float(table.num_sampled_tokens.sum()) / busy if busy else float("nan")


def _hit_share(of: Frames) -> float:
    table = of["prefix_hits"]
    tokens = float(table.num_tokens.sum())
    return float(table.num_hit_tokens.sum()) / tokens if tokens else float("nan")


# How each is worked out.
FIGURES: Final[dict[str, Callable[[Frames], float]]] = {
    "steps": lambda of: float(len(of["steps"])),
    "requests finished": _ended_by("stop", "length", "error"),
    "of these in an error": _ended_by("error"),
    "requests aborted": _ended_by("abort"),
    "prompt tokens run": _sum("steps", "num_prefill_tokens"),
    "of these run again": _sum("steps", "num_recompute_tokens"),
    "tokens sampled": _sum("steps", "num_sampled_tokens"),
    "tokens sampled a second of steps": _tokens_a_second,
    "share of admitted tokens hit": _hit_share,
    "preemptions": _sum("steps", "num_preempted"),
    "cached blocks evicted": _sum("steps", "num_evicted"),
    "most blocks in use": lambda of: float(of["steps"].num_used_blocks.max()),
    "most requests waiting": lambda of: float(of["steps"].num_waiting.max()),
    "queue time, median, s": _quantile("queue_time_s", 0.5),
    "queue time, p95, s": _quantile("queue_time_s", 0.95),
    "time to first token, median, s": _quantile("ttft_s", 0.5),
    "time to first token, p95, s": _quantile("ttft_s", 0.95),
    "between tokens, median, s": _quantile("inter_token_mean_s", 0.5),
    "longest between tokens, p95, s": _quantile("inter_token_max_s", 0.95),
    "latency, median, s": _latency,
}


def compare(recorders: Mapping[str, Recorder]) -> pd.DataFrame:
    """A row a figure, a column a recording; NaN where it has none (nobody finished, say).

    recorders: by the names that the columns get. ValueError where one has no step.
    """
    found: dict[str, Any] = {}
    for name, recorder in recorders.items():
        if recorder.first_step is None:
            raise ValueError(f"{name}: no step is recorded, so there is nothing to compare")
        of = {"steps": steps(recorder), "sequences": sequences(recorder), "prefix_hits": prefix_hits(recorder)}
        found[name] = {figure: work_out(of) for figure, work_out in FIGURES.items()}
    return pd.DataFrame(found, index=list(FIGURES))
