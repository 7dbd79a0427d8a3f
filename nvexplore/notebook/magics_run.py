"""%nvx_peek, %nvx_step, %nvx_run and %nvx_pause: what the engine does, one batch at a time or all at once."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from IPython.core.error import UsageError
from IPython.core.magic import magics_class

from nvexplore.notebook.decorators import argument, line_magic, magic_arguments
from nvexplore.notebook.describe import PlanSummary, StepSummary
from nvexplore.notebook.magics import SessionMagics, one_line_errors, positive
from nvexplore.notebook.runner import TaskRunner
from nvexplore.notebook.tally import RunSummary, Tally


@dataclass(frozen=True)
class Until:
    """When a run of steps ends: after the first in which a request finished, or was preempted, or after ``step``."""

    event: str
    step: int = -1

    def __call__(self, tally: Tally) -> bool:
        if self.event == "finish":
            return bool(tally.finished)
        if self.event == "preempt":
            return tally.num_preemptions > 0
        return tally.last_step >= self.step


def _until(text: str) -> Until:
    """An argparse type."""
    found = re.fullmatch(r"step==(\d+)", text)
    if found is not None:
        return Until("step", int(found[1]))
    if text not in ("finish", "preempt"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of finish, preempt and step==N")
    return Until(text)


def _pace(text: str) -> float:
    """An argparse type: steps a second."""
    try:
        hz = float(text)
    except ValueError:
        hz = 0.0
    if not 0 < hz < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps a second")
    return hz


@magics_class
class RunMagics(SessionMagics):
    """What the engine does."""

    @magic_arguments
    @line_magic
    def nvx_peek(self, line: str) -> PlanSummary:
        """Say what the next step would do and why, without doing it.

        Which requests get how many tokens, which blocks would be taken, hit and evicted, who would be preempted,
        and who waits for what. Everything stays as it is. In Python: ``session.peek()``.
        """
        self.arguments(self.nvx_peek, line)
        with one_line_errors():
            return self.session.peek()

    @magic_arguments
    @argument("-n", type=positive, metavar="N", help="make N steps (fewer where all is done before)")
    @argument("--until", type=_until, metavar="WHEN", help="finish, preempt (it happened to a request) or step==N")
    @line_magic
    def nvx_step(self, line: str) -> StepSummary | RunSummary:
        """Run one batch, or a few, and tell what happened.

        A live run is paused first. In Python: ``session.step()``, ``session.run(max_steps=5)`` and
        ``session.run(until=lambda tally: tally.finished)``.
        """
        args = self.arguments(self.nvx_step, line)
        with one_line_errors():
            if args.n is None and args.until is None:
                return self.session.step()
            self._still_to_come(args.until)
            return self.session.run(max_steps=args.n, until=args.until)

    @magic_arguments
    @argument("--live", action="store_true", help="return at once and run while other cells work")
    @argument("--hz", type=_pace, metavar="N", help="with --live: N steps a second at most, for watching")
    @line_magic
    def nvx_run(self, line: str) -> RunSummary | TaskRunner:
        """Run until all requests are finished, and tell what came of it.

        The cell blocks and views follow; an interrupt stops it between two steps, and a later run goes on. With
        --live the cell ends at once: the views' buttons, %nvx_pause and every other cell work meanwhile, and
        ``await session.runner.done()`` waits. In Python: ``session.run()``, ``session.run_live()``.
        """
        args = self.arguments(self.nvx_run, line)
        if args.hz is not None and not args.live:
            raise UsageError("--hz is the pace of a live run: add --live")
        with one_line_errors():
            if not args.live:
                return self.session.run()
            try:
                return self.session.run_live(hz=args.hz)
            except RuntimeError as error:
                raise UsageError(str(error)) from None

    @magic_arguments
    @line_magic
    def nvx_pause(self, line: str) -> TaskRunner:
        """Pause a live run between two steps; %nvx_run goes on.

        In Python: ``session.pause()``.
        """
        self.arguments(self.nvx_pause, line)
        with one_line_errors():
            self.session.pause()
            return self.session.runner

    def _still_to_come(self, until: Until | None) -> None:
        llm = self.session.llm
        if llm is not None and not llm.is_closed and until is not None and until.event == "step":
            following = llm.engine.next_step
            if until.step < following:
                raise UsageError(f"--until step=={until.step}: the next step is already {following}")
