"""A step between its plan and its tokens, and what taking off changes of its sequences. Runs and commits nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from nvexplore.engine.batch import Launched, ScheduledBatch
from nvexplore.engine.event_log import Event
from nvexplore.engine.events import Planned
from nvexplore.engine.sequence import SequenceStatus
from nvexplore.engine.undo import UndoLog

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


def count_again(flights: Iterable[Flight], landed: Flight, num_freed: int, num_left: int, undo: UndoLog) -> None:
    """``landed`` has freed blocks and ended sequences. Plans made before that count them from here on.

    Records tell the plan of a step after the commit of the one before, and its counts must be of that moment too.
    """
    for flight in flights:
        planned = flight.plan.planned
        if flight is landed or planned is None or not (num_freed or num_left):
            continue
        free, running = planned.num_free_blocks + num_freed, planned.num_running - num_left
        undo.attr(flight.plan, "planned")
        flight.plan.planned = replace(planned, num_free_blocks=free, num_running=running)


def put_back(flights: deque[Flight], flight: Flight) -> None:
    """Undo that the oldest flight was taken out."""
    if not flights or flights[0] is not flight:
        flights.appendleft(flight)
