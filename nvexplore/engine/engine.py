"""The engine: requests in, one batch a step, tokens out. Knows no tensor, no text and no notebook.

A step is a transaction: plan, run, commit. Whatever interrupts it (an exception, Ctrl-C) leaves the engine as it
was before the step; the next step does the same work again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from nvexplore.checks import check_int
from nvexplore.engine.batch import Runner
from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.commit import Committer, StopMatcher
from nvexplore.engine.event_log import EventLog
from nvexplore.engine.events import Planned, Snapshot
from nvexplore.engine.hashing import HashFunction
from nvexplore.engine.limits import LARGEST_INT, EngineLimits
from nvexplore.engine.output import StepOutput
from nvexplore.engine.policy import make_policy
from nvexplore.engine.record_builder import PlanRecorder
from nvexplore.engine.requests import Requests, check_request
from nvexplore.engine.scheduler import Scheduler
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.snapshot import take_snapshot
from nvexplore.engine.steps import Steps
from nvexplore.engine.subscription import Hub, Subscriber, Subscription
from nvexplore.engine.undo import UndoLog
from nvexplore.sampling_params import SamplingParams

T = TypeVar("T")


class Engine:
    """Owns the queues and the block pool; ``runner`` computes.

    eos_token_ids: ids that end a completion. vocab_size: prompt ids must be below it (None: not checked).
    stop_matcher: finds stop strings (see ``StopMatcher``); without one, requests that have some are refused.
    overlap: ``advance`` plans a step while the one before is being computed; ``runner`` must be able to ``launch``.
    Not for use from several threads at once; a call while a step runs raises RuntimeError.
    """

    def __init__(
        self,
        limits: EngineLimits,
        runner: Runner,
        *,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        hash_function: HashFunction | None = None,
        stop_matcher: StopMatcher | None = None,
        overlap: bool = False,
    ) -> None:
        self.limits = limits
        self.vocab_size = vocab_size
        self._undo = UndoLog()
        self._log = EventLog()
        self.blocks = BlockManager(limits, self._undo, self._log, hash_function)
        self.policy = make_policy(limits.policy)
        self.scheduler = Scheduler(limits, self.policy, self.blocks, self._undo, self._log)
        self._committer = Committer(self.scheduler, self._undo, self._log, stop_matcher)
        self._requests = Requests(self._undo, frozenset(eos_token_ids))
        self.live = self._requests.live
        self._start = time.perf_counter()
        self._hub = Hub(self.snapshot)
        self._is_stepping = False
        self._recorder = PlanRecorder(limits, self.scheduler, runner)
        self._steps = Steps(
            runner,
            self.scheduler,
            self._committer,
            self._requests,
            self._recorder,
            self._hub,
            self._undo,
            self._log,
            self._now,
            self._take_snapshot,
            overlap,
        )

    def add_request(
        self,
        token_ids: Iterable[int],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> Sequence:
        """Queue a request; the Sequence returned fills up as the engine steps (with n > 1 its ``siblings`` do too).

        Raises TypeError or ValueError, naming value and limit, for a request that could never run; the engine
        stays as it was.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        prompt = self.check_request(token_ids, params)
        priority = check_int("priority", priority, minimum=-LARGEST_INT - 1, maximum=LARGEST_INT)
        with self._change():
            first = self._requests.add(prompt, params, request_id, self._now(), priority)
            for seq in first.samples:
                self._log.note("added", seq, self.scheduler.queues.enqueue(seq))
        return first

    def check_request(self, token_ids: Iterable[int], sampling_params: SamplingParams) -> list[int]:
        """The prompt as a list of ints if this request could run, else TypeError or ValueError saying why not."""
        knows_text = self._committer.stop_matcher is not None
        return check_request(token_ids, sampling_params, self.limits, self.vocab_size, knows_text)

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is, with all its samples; its blocks return to the pool.

        False if no such request lives.
        """
        with self._change():
            seqs = self._requests.find(request_id)
            self._undo.length(self._steps.aborted)
            for seq in seqs:
                self._requests.leave(seq)
                self.scheduler.finish(seq, "abort")
                self._steps.aborted.append(seq)
        return bool(seqs)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep their blocks."""
        with self._change():
            self._log.note("cache_reset")
            self.blocks.forget_all()

    def _now(self) -> float:
        return time.perf_counter() - self._start

    @property
    def runner(self) -> Runner:
        return self._steps.runner

    @property
    def next_step(self) -> int:
        """The number of the next step to be planned."""
        return self._steps.next_step

    @property
    def has_unfinished(self) -> bool:
        return bool(self.live)

    def step(self, *, want_record: bool = False) -> StepOutput:
        """Run one batch. With nothing to do it returns an empty output (and an empty record, if asked for)."""
        self._enter()
        output = self._step(lambda: self._steps.step(want_record=want_record))
        self._hub.deliver()
        return output

    def advance(self) -> bool:
        """Bring one more step to its end; where steps overlap, the next one is then being computed already.

        What it yields is in the sequences, and subscribers are told. Every other call first waits for that next step
        and commits it. False if there was nothing to do.
        """
        self._enter(waits=False)
        was_made = self._step(self._steps.advance)
        self._hub.deliver()
        return was_made

    def settle(self) -> None:
        """Wait for the step that ``advance`` has left in the air, and commit it."""
        self._enter()

    def _step(self, make: Callable[[], T]) -> T:
        try:
            self._is_stepping = True
            return make()
        except BaseException:
            self._steps.recover()
            raise
        finally:
            self._is_stepping = False

    def plan(self) -> Planned:
        """What the next step would do, and why; changes nothing."""
        self._enter()
        undo, log = self._undo, self._log
        try:
            undo.length(log.events)
            before = len(log.events)
            batch = self.scheduler.schedule(self.next_step)
            return self._recorder.planned(log.events[before:], log.base + before, batch)
        finally:
            undo.rollback()

    def snapshot(self) -> Snapshot:
        """The whole state between two steps; costs time in proportion to the pool."""
        self._enter()
        return self._take_snapshot()

    def _take_snapshot(self) -> Snapshot:
        return take_snapshot(self, self._log, self._now())

    def subscribe(self, callback: Subscriber) -> Subscription:
        """Call ``callback`` with a Snapshot now and with each StepRecord from the next step on.

        Use as a context manager, or ``close()`` it. A callback that raises is detached and logged; the step stands.
        """
        return self._hub.subscribe(callback, self.snapshot())

    @contextmanager
    def _change(self) -> Iterator[None]:
        """A transaction between two steps: it happens wholly or not at all."""
        self._enter()
        try:
            self._undo.length(self._log.events)
            yield
            self._undo.commit()
        except BaseException:
            self._undo.rollback()
            raise

    def _enter(self, *, waits: bool = True) -> None:
        """Every call begins here: what an interrupt left behind is put right, and what is in the air lands."""
        steps = self._steps
        if self._is_stepping:
            raise RuntimeError("the engine is in the middle of a step; call it between steps")
        if self._undo or steps.dirty or steps.is_doomed:
            steps.recover()
        while waits and steps.flights:
            self._step(steps.land)
        self._hub.deliver()  # what an interrupt left behind, or has just landed
