"""Tokens a second, the queues, and of each request how long its tokens took."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import Any

from nvexplore.engine.events import StepRecord
from nvexplore.explore.step_times import own
from nvexplore.notebook.answers import Context
from nvexplore.notebook.view import View

MOST = 48
STEPS = 1024
"""Only so many steps back are read: an answer must not take long while the engine runs."""


class ThroughputView(View):
    """``ThroughputView(explorer)``; drawn by widgets/throughput_view.js, the rates from what the page has."""

    @staticmethod
    def answer(context: Context, id: int) -> dict[str, Any]:
        """Latencies of 48 requests, those that run first and then the newest, in seconds of engine time.

        id: one that is told of besides; -1: none.
        """
        records = _stretch(context)
        seq_ids = [seq_id for seq_id in context.recorder.requests if context.mirror.find(seq_id) is not None]
        running = set(context.state.running)
        chosen = sorted(seq_ids, key=lambda seq_id: (seq_id in running, seq_id), reverse=True)[:MOST]
        if id in seq_ids and id not in chosen:
            chosen.append(id)
        clock, tokens = EngineClock(records), _token_times(records, set(chosen))
        return {
            "step": context.step,
            "requests": [_latency(context, clock, seq_id, tokens.get(seq_id, [])) for seq_id in chosen],
            "num_hidden": len(seq_ids) - len(chosen),
        }


class EngineClock:
    """Seconds in which the engine worked on its steps; pauses between them do not count.

    records: of steps that follow each other, oldest first.
    """

    def __init__(self, records: list[StepRecord]) -> None:
        self._added = {seq_id for record in records for seq_id in record.before.added.seq_id}
        self._ends = [record.time for record in records]
        self._durations: list[float] = []
        before = 0.0
        for record in records:
            self._durations.append(own(record, before))
            before = record.time
        self._worked = [0.0, *accumulate(self._durations)]

    def has_seen(self, arrival: float, seq_id: int) -> bool:
        """Whether the request came during these steps, or after them."""
        return seq_id in self._added or not self._ends or arrival >= self._ends[-1]

    def at(self, time: float) -> float:
        """Engine time at ``time``, which is in seconds since the engine started."""
        step = bisect_right(self._ends, time)
        if step == len(self._ends):
            return self._worked[-1]
        return self._worked[step] + max(0.0, time - (self._ends[step] - self._durations[step]))


def _stretch(context: Context) -> list[StepRecord]:
    """The last records up to the step that is looked at that follow each other without a gap, oldest first."""
    records = [r for r in context.recorder.records if context.step - STEPS < r.step <= context.step]
    breaks = [i for i, (one, other) in enumerate(pairwise(records), 1) if other.step != one.step + 1]
    return records[breaks[-1] :] if breaks else records


def _token_times(records: list[StepRecord], seq_ids: set[int]) -> dict[int, list[float]]:
    """When each of the sequences got a token, oldest first."""
    found: dict[int, list[float]] = {}
    for record in records:
        for seq_id in record.committed.seq_id:
            if seq_id in seq_ids:
                found.setdefault(seq_id, []).append(record.time)
    return found


def _latency(context: Context, clock: EngineClock, seq_id: int, times: list[float]) -> dict[str, Any]:
    """first: time to first token; None before it, or if the arrival lies before the steps that were read.

    mean, longest: time between two tokens in these steps; None with fewer than two. num_tokens: all so far.
    waited: of a live request without a token, how long it has waited for it; else None.
    """
    info, seq = context.recorder.requests[seq_id], context.mirror.find(seq_id)
    assert seq is not None
    worked = [clock.at(time) for time in times]
    gaps = [later - earlier for earlier, later in pairwise(worked)]
    num_tokens = len(seq.token_ids) - seq.num_prompt_tokens
    is_live = seq_id in context.state.sequences
    has_first, arrived = num_tokens > 0 and len(times) == num_tokens, clock.at(info.arrival)
    is_known = clock.has_seen(info.arrival, seq_id)
    return {
        "id": seq_id,
        "name": info.request_id,
        "first": worked[0] - arrived if has_first and is_known else None,
        "waited": clock.at(context.state.time) - arrived if is_live and is_known and not num_tokens else None,
        "mean": sum(gaps) / len(gaps) if gaps else None,
        "longest": max(gaps, default=None),
        "num_tokens": num_tokens,
        "is_live": is_live,
    }
