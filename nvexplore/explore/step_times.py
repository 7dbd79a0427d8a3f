"""How long a step took, and what of it came after the step before: so the time of steps that overlap is counted once.

A step planned ahead begins while the one before it runs, so whoever sums up whole steps counts some time twice.
"""

from __future__ import annotations

from nvexplore.engine.events import StepRecord


def took(record: StepRecord) -> float:
    """Seconds from the beginning of its plan to its end, those included that it shares with other steps."""
    times = record.committed
    return (times.plan_ns + times.run_ns + times.commit_ns) / 1e9


def own(record: StepRecord, before: float) -> float:
    """Seconds that it added: those of ``took`` after ``before``, when the step before ended (-inf: nobody knows)."""
    return min(took(record), max(0.0, record.time - before))


def own_run(record: StepRecord, before: float) -> float:
    """The same of its time in the runner."""
    run, commit = record.committed.run_ns / 1e9, record.committed.commit_ns / 1e9
    return min(run, max(0.0, record.time - commit - before))
