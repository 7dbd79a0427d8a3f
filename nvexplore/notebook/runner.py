"""Run, pause and step an engine while the notebook stays usable. Knows a few functions and no engine.

A button's callback may arrive on any thread (the main one under ipykernel 6 and 7.4, a subshell's under 7.0
to 7.3), so ``run``, ``pause`` and ``step`` only set flags. The steps are made in one place: by an asyncio task on
the loop's own thread, in slices, so that a cell always finds the engine standing between two steps.

Interrupt (the notebook's stop button, Ctrl-C) reaches what a cell waits for:

* in ``run_blocking`` it raises KeyboardInterrupt in that cell; the step it hit is undone by the engine, the
  requests stay, and the next run goes on from there;
* in ``await runner.done()`` it pauses the run and ends the cell;
* a live run with no cell waiting for it is not stopped by it: that is what ``pause`` is for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from nvexplore.checks import check_int
from nvexplore.collector import few_collections

NO_LOOP = "no event loop runs here (this is not a notebook): use a blocking run"
ROUNDS = 10
"""Of the event loop between two slices. Each polls the sockets; with three, a click waits for another slice."""
REST_EVERY = 8
"""After so many slices a real millisecond, for what needs more than rounds: an event loop that polls on a thread."""


async def _give_way(seconds: float) -> None:
    """Let the kernel work between two slices. To ask for a millisecond may cost two, so mostly it is rounds alone."""
    for each in [seconds] if seconds > 0 else [0.0] * ROUNDS:
        await asyncio.sleep(each)


class TaskRunner:
    """Calls ``step()`` while ``has_work()``, as long as it is told to.

    advance:   instead of ``step`` where no step is special, so that the next may begin before one ends.
    settle:    brings what has begun to its end; whether that was a step. Called when a run stops, and before ``step``.
    why_stop:  asked after each step; the answer ends the run, and so does an error.
    is_picky:  whether ``why_stop`` may answer, so that no step may begin before it was asked about the one before.
    on_change: called after the state has changed, on the thread that steps.
    slice_s:   a live run makes as many steps as fit in so many seconds, then lets the kernel work.
    max_hz:    steps a second at most in a live run, for watching; None is no limit.
    error:     what ended the last live run, or None.
    found:     why the last run stopped before its end, or None.
    """

    def __init__(
        self,
        step: Callable[[], object],
        has_work: Callable[[], bool],
        *,
        advance: Callable[[], object] | None = None,
        settle: Callable[[], bool] = lambda: False,
        why_stop: Callable[[], str | None] = lambda: None,
        is_picky: Callable[[], bool] = lambda: False,
        on_change: Callable[[TaskRunner], object] = lambda _: None,
        slice_s: float = 0.030,
    ) -> None:
        self._step, self._has_work, self._on_change = step, has_work, on_change
        self._advance, self._settle = advance or step, settle
        self._why_stop, self._is_picky = why_stop, is_picky
        self.slice_s = slice_s
        self.max_hz: float | None = None
        self.num_steps = 0
        self.error: BaseException | None = None
        self.found: str | None = None
        self._flags = threading.Lock()
        self._running = self._closed = self._blocking = False
        self._todo = 0
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._find_loop()

    @property
    def is_running(self) -> bool:
        """A run goes on, or single steps are still to be made."""
        return (self._running or self._todo > 0) and not self._closed

    @property
    def status(self) -> str:
        """In a word or two: closed, running, idle, paused, or stopped and why."""
        if self._closed:
            return "closed"
        if self.is_running:
            return "running"
        if self.error is not None:
            return f"stopped: {type(self.error).__name__}: {self.error}"
        if self.found is not None:
            return f"stopped at {self.found}"
        return "paused" if self._has_work() else "idle"

    def __repr__(self) -> str:
        return f"TaskRunner({self.status}, {self.num_steps} steps made)"

    # Commands, from any thread.

    def run(self) -> None:
        """Go on until nothing is left to do. Raises RuntimeError where no event loop runs."""
        self._command(running=True)

    def pause(self) -> None:
        """Stop before the next step; a blocking run stops too."""
        self._command(running=False)

    def step(self, n: int = 1) -> None:
        """Make ``n`` more steps, an integer of at least 0, then pause; clicks add up."""
        self._command(running=False, more=check_int("n", n, minimum=0))

    def close(self) -> None:
        """Make no further step; called on the loop's thread, none is under way either. Idempotent."""
        with self._flags:
            self._closed, self._running, self._todo = True, False, 0
        task = self._task
        if task is not None and not task.done() and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(task.cancel)

    # Steps, on one thread.

    def run_blocking(self, *, max_steps: int | None = None) -> int:
        """Step here and now: until nothing is left, ``max_steps`` were made, something stops it, or somebody pauses.

        Needs no event loop; a live run ends with it. Returns how many steps were made; passes on what they raise, and
        a TypeError or ValueError for a ``max_steps`` that is no number of steps.
        """
        most = None if max_steps is None else check_int("max_steps", max_steps, minimum=0)
        if self._closed:
            raise RuntimeError("this runner is closed")
        with self._flags:
            self._running, self._todo, self.error, self.found = True, 0, None, None
        self._blocking = True
        self._on_change(self)
        before = self.num_steps
        try:
            with few_collections():
                while self._running and self.num_steps - before != most and self._has_work():
                    self._make_one(most is not None)
            self.num_steps += self._settle()
        finally:
            self._blocking = self._running = False
            self._on_change(self)
        return self.num_steps - before

    async def done(self) -> None:
        """Wait until the live run has ended or is paused; raise what ended it. An interrupt pauses it."""
        try:
            while self.is_running or (self._task is not None and not self._task.done()):
                if self._task is None or self._task.done():
                    await asyncio.sleep(0)  # the command was given; its task starts in the loop's next round
                else:
                    await asyncio.wait({self._task})
        except BaseException:
            self.pause()
            raise
        if self.error is not None:
            raise self.error

    async def aclose(self) -> None:
        """``close()``, then wait for the task to be gone."""
        self.close()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _command(self, *, running: bool, more: int = 0) -> None:
        if running or more:
            if self._closed:
                raise RuntimeError("this runner is closed")
            self._find_loop()
            if self._loop is None:
                raise RuntimeError(NO_LOOP)
        with self._flags:
            self._running = running
            self._todo = self._todo + more if more else 0
            if running or more:
                self.error = self.found = None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ensure)

    def _find_loop(self) -> None:
        if self._loop is None or self._loop.is_closed():
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                self._loop = None

    def _ensure(self) -> None:
        """On the loop's thread: a task exists exactly while there is something to do."""
        if self._loop is None or self._blocking:
            return
        if self.is_running and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._main())
        self._on_change(self)

    async def _main(self) -> None:
        num_slices = 0
        with few_collections():
            while self.is_running and not self._blocking:
                pause = self._slice()
                if self.is_running:
                    num_slices += 1
                    await _give_way(max(pause, 0.0 if num_slices % REST_EVERY else 0.001))
        try:
            self.num_steps += self._settle()
        except BaseException as error:
            self.error = error
        self._on_change(self)

    def _make_one(self, is_special: bool) -> None:
        """One step more, and whether to stop after it. Where that matters, what has begun is the step."""
        if not is_special and not self._is_picky():
            self._advance()
        elif not self._settle():
            self._step()
        self.num_steps += 1
        self.found = self._why_stop()
        if self.found is not None:
            with self._flags:
                self._running, self._todo = False, 0

    def _slice(self) -> float:
        """Make the steps that fit into one slice; return how long to wait for the pace asked for."""
        started = now = time.monotonic()
        longest = 0.0
        while self.is_running:
            try:
                if not self._has_work():
                    with self._flags:
                        self._running, self._todo = False, 0
                    break
                self._make_one(bool(self._todo or self.max_hz))
            except BaseException as error:  # a task must not die silently: pause, and show it
                with self._flags:
                    self._running, self._todo, self.error = False, 0, error
                break
            with self._flags:
                self._todo = max(0, self._todo - 1)
            before, now = now, time.monotonic()
            longest = max(longest, now - before)
            if self.max_hz is not None:
                return 1 / self.max_hz - (now - started)
            if now - started + longest > self.slice_s:
                break
        return 0.0
