"""A step explained: who waits for what, who gave way, what was hit, how it ran. Reads a Recorder; changes nothing.

``print(explain(recorder))`` tells of the newest step; each part is also a function of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvexplore.explore.explain_miss import explain_admissions
from nvexplore.explore.explain_moment import Moment, moment_at
from nvexplore.explore.explain_preemption import explain_preemptions
from nvexplore.explore.explain_running import explain_running
from nvexplore.explore.explain_step import explain_step
from nvexplore.explore.explain_waiting import explain_unseen, explain_waiting
from nvexplore.explore.explain_words import Explanation, Ref, Tokens, printable
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State

__all__ = [
    "Explanation",
    "Moment",
    "Ref",
    "StepExplanation",
    "Tokens",
    "explain",
    "explain_admissions",
    "explain_preemptions",
    "explain_running",
    "explain_step",
    "explain_unseen",
    "explain_waiting",
    "moment_at",
    "printable",
]


@dataclass(frozen=True)
class StepExplanation:
    """summary: the step itself; the others one a request, of waiting and running ones not more than 64."""

    summary: Explanation
    preempted: list[Explanation]
    admitted: list[Explanation]
    waiting: list[Explanation]
    running: list[Explanation]

    def __str__(self) -> str:
        told = [self.summary, *self.preempted, *self.admitted, *self.waiting, *self.running]
        return "\n".join(map(str, told))


def explain(recorder: Recorder, step: int | None = None, state: State | None = None) -> StepExplanation:
    """``step``, or the newest one. state: the one right after it, if somebody has it.

    Raises ValueError, naming what is kept, if the step is not recorded or none is.
    """
    newest = recorder.last_step
    if step is None and newest is None:
        raise ValueError("nothing is recorded yet: there is no step to explain")
    moment = moment_at(recorder, newest if step is None else step, state)  # type: ignore[arg-type]
    return StepExplanation(
        summary=explain_step(moment.record),
        preempted=explain_preemptions(moment),
        admitted=explain_admissions(moment),
        waiting=explain_waiting(moment),
        running=explain_running(moment),
    )
