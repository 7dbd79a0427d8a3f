"""What makes a session's model go: a step, a run, a run that goes on while other cells work, or a look at a plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nvexplore.checks import check_int, check_number
from nvexplore.notebook.describe import PlanSummary, StepSummary, describe_plan, describe_step
from nvexplore.notebook.errors import NO_MODEL, Interrupted, SessionError, there
from nvexplore.notebook.looking import Looking
from nvexplore.notebook.requests import RequestLog
from nvexplore.notebook.runner import TaskRunner
from nvexplore.notebook.settings import NvExplore
from nvexplore.notebook.stops import Condition
from nvexplore.notebook.summary import counted
from nvexplore.notebook.tally import RunSummary, Tally, describe_run

if TYPE_CHECKING:
    from nvexplore.llm import LLM


class Running(Looking):
    """The part of a ``Session`` that runs; the session sets what stands here."""

    settings: NvExplore
    llm: LLM | None
    log: RequestLog
    _runner: TaskRunner | None

    def step(self) -> StepSummary:
        """Run one batch. A live run is paused first. An interrupt undoes it: Interrupted."""
        llm = self._loaded()
        self.runner.pause()
        self.runner.found = None
        try:
            record = llm.step()
        except KeyboardInterrupt:
            raise self._interrupted("interrupted", "%nvx_step") from None
        self.display.show(self.runner.status)
        return describe_step(record, self.log)

    def peek(self) -> PlanSummary:
        """What the next step would do, and why; changes nothing."""
        return describe_plan(self._loaded().plan(), self.log)

    def run(self, *, max_steps: int | None = None, until: Condition | None = None) -> RunSummary:
        """Step until all requests are finished, ``max_steps`` were made, or a step was one to stop at.

        until: a text such as "preempt,miss" (``nvexplore.explore.until.Until.of`` tells them all), or a function of the
        Tally of this run. The summary says what was found, and in which step. Raises UntilError, SessionError,
        TypeError or ValueError (``max_steps``: an integer of at least 0), Interrupted.
        """
        llm, runner, tally = self._loaded(), self.runner, Tally()
        max_steps = None if max_steps is None else check_int("max_steps", max_steps, minimum=0)
        llm.settle()  # what a live run has begun is no step of this one
        self.stops.begin(until, next_step=llm.engine.next_step, tally=tally)
        started = time.perf_counter()
        try:
            runner.run_blocking(max_steps=max_steps)
        except KeyboardInterrupt:
            raise self._interrupted(f"interrupted after {counted(tally.num_steps, 'step')}", "%nvx_run") from None
        return describe_run(tally, time.perf_counter() - started, self.log, found=runner.found, until=until)

    def run_live(self, *, hz: float | None = None, until: Condition | None = None) -> TaskRunner:
        """Start a run that goes on while other cells work, return at once; ``await session.runner.done()``.

        hz: steps a second at most, 0 is no limit; None: what the settings say.
        until: as in ``run``; the runner's status says what was found.
        """
        hz = self.settings.live_hz if hz is None else check_number("hz", hz, minimum=0)
        self.stops.begin(until, next_step=self._loaded().engine.next_step)
        runner = self.runner
        runner.slice_s = self.settings.live_slice_ms / 1e3
        runner.max_hz = hz or None
        runner.run()
        return runner

    def pause(self) -> None:
        """Pause a live run."""
        self.runner.pause()

    @property
    def runner(self) -> TaskRunner:
        return there(self._runner)

    def _loaded(self) -> LLM:
        if self.llm is None or self.llm.is_closed:
            raise SessionError(NO_MODEL)
        return self.llm

    def _interrupted(self, what: str, magic: str) -> Interrupted:
        return Interrupted(f"{what}; {len(self.log.unfinished())} unfinished: {magic} goes on")
