"""%nvx_peek, %nvx_step, %nvx_run and %nvx_pause: what the engine does, one batch at a time or all at once."""

from __future__ import annotations

import argparse

from IPython.core.error import UsageError
from IPython.core.magic import magics_class

from nvexplore.explore.until import EVENTS, Until, UntilError
from nvexplore.notebook.decorators import argument, line_magic, magic_arguments
from nvexplore.notebook.describe import PlanSummary, StepSummary
from nvexplore.notebook.magics import SessionMagics, one_line_errors, positive
from nvexplore.notebook.runner import TaskRunner
from nvexplore.notebook.tally import RunSummary

UNTIL = f"stop after a step with one of these, commas between: {', '.join(EVENTS)}, step==N, a Python expression"


def _until(text: str) -> Until:
    """An argparse type."""
    try:
        return Until.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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

        Example::

            plan = %nvx_peek
        """
        self.arguments(self.nvx_peek, line)
        with one_line_errors():
            return self.session.peek()

    @magic_arguments
    @argument("-n", type=positive, metavar="N", help="make N steps (fewer where all is done before)")
    @argument("--until", type=_until, metavar="WHEN", help=UNTIL)
    @line_magic
    def nvx_step(self, line: str) -> StepSummary | RunSummary:
        """Run one batch, or a few, and tell what happened.

        A live run is paused first. %nvx_run? tells of --until.
        In Python: ``session.step()``, ``session.run(max_steps=5)`` and ``session.run(until="finish")``.

        Example::

            %nvx_step -n 20 --until finish
        """
        args = self.arguments(self.nvx_step, line)
        with one_line_errors(UntilError):
            if args.n is None and args.until is None:
                return self.session.step()
            return self.session.run(max_steps=args.n, until=args.until)

    @magic_arguments
    @argument("--until", type=_until, metavar="WHEN", help=UNTIL)
    @argument("--live", action="store_true", help="return at once and run while other cells work")
    @argument("--hz", type=_pace, metavar="N", help="with --live: N steps a second at most, for watching")
    @line_magic
    def nvx_run(self, line: str) -> RunSummary | TaskRunner:
        """Run until all requests are finished, or until something happens, and tell what came of it.

        The cell blocks and views follow; an interrupt stops it between two steps, and a later run goes on. With
        --live the cell ends at once: the views' buttons, %nvx_pause and every other cell work meanwhile, and
        ``await session.runner.done()`` waits.

        --until stops right after the step in which it happens: preempt (a request was sent back to wait), miss and
        hit (of the prefix cache, by a request that was admitted), finish (a request ended), evict (cached content was
        forgotten to make room), graph-miss (decode rows ran without the CUDA graph that they could have had), or what
        a Python expression in quotes says of the step: its numbers have the names of the columns of
        ``%nvx_frame steps``, and record, planned, committed and before are the record and its parts. Boxes ticked in
        the views, or ``session.stops.breakpoints``, stop every run.

        In Python: ``session.run()``, ``session.run(until="preempt,miss")``, ``session.run_live()``.

        Example::

            %nvx_run --until preempt,evict
            %nvx_run --live --hz 20 --until "num_waiting > 2 and num_free_blocks < 4"
        """
        args = self.arguments(self.nvx_run, line)
        if args.hz is not None and not args.live:
            raise UsageError("--hz is the pace of a live run: add --live")
        with one_line_errors(UntilError):
            if not args.live:
                return self.session.run(until=args.until)
            try:
                return self.session.run_live(hz=args.hz, until=args.until)
            except RuntimeError as error:
                raise UsageError(str(error)) from None

    @magic_arguments
    @line_magic
    def nvx_pause(self, line: str) -> TaskRunner:
        """Pause a live run between two steps; %nvx_run goes on.

        In Python: ``session.pause()``.

        Example::

            %nvx_pause
        """
        self.arguments(self.nvx_pause, line)
        with one_line_errors():
            self.session.pause()
            return self.session.runner
