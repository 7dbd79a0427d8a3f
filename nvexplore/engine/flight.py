"""A step between its plan and its tokens, and what taking off changes of its sequences. Runs and commits nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nvexplore.engine.batch import Launched, ScheduledBatch
from nvexplore.engine.event_log import Event
from nvexplore.engine.events import Planned
from nvexplore.engine.sequence import SequenceStatus

PREFILL, DECODE = SequenceStatus.PREFILL, SequenceStatus.DECODE


@dataclass(slots=True)
class Plan:
    """A step's plan: when it began and was ready (ns), the events before it and of it, and the number of the first.

    That number is right only if nothing was in the air: events of steps that had not landed are not counted in it.
    """

    began: int
    ready: int
    batch: ScheduledBatch
    needs_host: bool
    events: list[Event]
    num_before: int
    base: int
    planned: Planned | None


@dataclass(slots=True)
class Flight:
    """A step that the runner has been given and whose tokens are not known yet."""

    step: int
    plan: Plan
    launched: Launched


def lift(batch: ScheduledBatch) -> None:
    """Its tokens count as computed from here on, since whatever is given to the runner next comes after them."""
    for seq, start, count in zip(batch.seqs, batch.starts, batch.counts, strict=True):
        seq.num_computed_tokens = start + count
    first = batch.num_decodes
    for seq, samples in zip(batch.seqs[first:], batch.samples[first:], strict=True):
        if samples:
            seq.status = DECODE


def ground(batch: ScheduledBatch) -> None:
    """Undo ``lift``."""
    for seq, start, is_prefill in zip(batch.seqs, batch.starts, batch.is_prefill, strict=True):
        seq.num_computed_tokens = start
        seq.status = PREFILL if is_prefill else DECODE


def put_back(flights: deque[Flight], flight: Flight) -> None:
    """Undo that the oldest flight was taken out."""
    if not flights or flights[0] is not flight:
        flights.appendleft(flight)
