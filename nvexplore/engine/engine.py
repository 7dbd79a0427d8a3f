"""The engine: requests in, one batch a step, tokens out. Knows no tensor, no text and no notebook.

A step is a transaction: plan, run, commit. Whatever interrupts it (an exception, Ctrl-C) leaves the engine as it
was before the step; the next step does the same work again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from nvexplore.checks import check_int
from nvexplore.engine.batch import Dispatch, Runner, Sampled, ScheduledBatch
from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.commit import Committer, StopMatcher
from nvexplore.engine.event_log import Event, EventLog
from nvexplore.engine.events import Planned, Snapshot, StepRecord
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.output import StepOutput
from nvexplore.engine.policy import make_policy
from nvexplore.engine.prefix_cache import HashFunction
from nvexplore.engine.record_builder import PlanRecorder, build_before, build_committed
from nvexplore.engine.recovery import drop_overwritten
from nvexplore.engine.requests import Requests, check_request
from nvexplore.engine.scheduler import Scheduler
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.snapshot import take_snapshot
from nvexplore.engine.subscription import Hub, Subscriber, Subscription
from nvexplore.engine.undo import UndoLog
from nvexplore.sampling_params import SamplingParams


class Engine:
    """Owns the queues and the block pool; ``runner`` computes.

    eos_token_ids: ids that end a completion. vocab_size: prompt ids must be below it (None: not checked).
    stop_matcher: finds stop strings (see ``StopMatcher``); without one, requests that have some are refused.
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
    ) -> None:
        self.limits = limits
        self.runner = runner
        self.vocab_size = vocab_size
        self._undo = UndoLog()
        self._log = EventLog()
        self.blocks = BlockManager(limits, self._undo, self._log, hash_function)
        self.policy = make_policy(limits.policy)
        self.scheduler = Scheduler(limits, self.policy, self.blocks, self._undo, self._log)
        self._committer = Committer(self.scheduler, self._undo, self._log, stop_matcher)
        self._requests = Requests(self._undo, frozenset(eos_token_ids))
        self.live = self._requests.live
        self.next_step = 0
        self._recorder = PlanRecorder(limits, self.scheduler)
        self._start = time.perf_counter()
        self._hub = Hub(self._take_snapshot)
        self._aborted: list[Sequence] = []
        self._is_stepping = False
        # Blocks that a step which was undone may have overwritten; see _recover.
        self._dirty: list[int] = []

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
        check_int("priority", priority)
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
            self._undo.length(self._aborted)
            for seq in seqs:
                self._requests.leave(seq)
                self.scheduler.finish(seq, "abort")
                self._aborted.append(seq)
        return bool(seqs)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep their blocks."""
        with self._change():
            self._log.note("cache_reset")
            self.blocks.forget_all()

    def _now(self) -> float:
        return time.perf_counter() - self._start

    @property
    def has_unfinished(self) -> bool:
        return bool(self.live)

    def step(self, *, want_record: bool = False) -> StepOutput:
        """Run one batch. With nothing to do it returns an empty output (and an empty record, if asked for)."""
        self._enter()
        try:
            self._is_stepping = True
            output = self._transaction(want_record)
            self._undo.commit()  # the point of no return, one indivisible call
        except BaseException:
            self._recover()
            raise
        finally:
            self._is_stepping = False
        self._hub.deliver()
        return output

    def _transaction(self, want_record: bool) -> StepOutput:
        undo, log, clock = self._undo, self._log, time.perf_counter_ns
        wanted = want_record or bool(self._hub.subscriptions)
        begin, before = clock(), len(log.events)
        undo.log((self._rewind, log.events, before, log.base, self.next_step, self._aborted))
        log.active = wanted
        batch = self.scheduler.schedule(self.next_step)
        planned = self._build_planned(batch, before) if wanted else None
        mark = len(log.events)
        planned_at = clock()
        result: list[int] | Sampled = []
        if batch.seqs:
            self._dirty = self.blocks.allocated_this_step
            result = self.runner.run(batch)
        ran_at = clock()
        seq_ids, token_ids, finished = self._committer.commit(batch, result)
        for seq in finished:
            self._requests.leave(seq)
        output = StepOutput(self.next_step, seq_ids, token_ids, self._aborted + finished)
        if planned is not None:
            times = (planned_at - begin, ran_at - planned_at, clock() - ran_at)
            output.record = StepRecord(
                step=self.next_step,
                time=self._now(),
                event=log.next_number,
                before=build_before(log.events[:before], log.base),
                planned=planned,
                committed=build_committed(log.events[mark:], log.base + mark, seq_ids, token_ids, times),
            )
        if self._dirty:
            undo.attr(self, "_dirty")
            self._dirty = []
        self._aborted = []
        # A step that did nothing and has nothing to tell gets no number.
        if batch.seqs or log.events:
            self.next_step += 1
            if output.record is not None and self._hub:
                undo.append(self._hub.outbox, output.record)
                self._hub.outbox.append(output.record)
        log.active, log.base, log.events = True, log.next_number, []
        return output

    def _rewind(self, events: list[Event], num_events: int, base: int, step: int, aborted: list[Sequence]) -> None:
        """Undo what ``_transaction`` itself changes, but for ``_dirty``."""
        log = self._log
        log.active, log.events, log.base = True, events, base
        del events[num_events:]
        self.next_step, self._aborted = step, aborted

    def plan(self) -> Planned:
        """What the next step would do, and why; changes nothing."""
        self._enter()
        undo, log = self._undo, self._log
        try:
            undo.length(log.events)
            before = len(log.events)
            batch = self.scheduler.schedule(self.next_step)
            return self._build_planned(batch, before)
        finally:
            undo.rollback()

    def _build_planned(self, batch: ScheduledBatch, before: int) -> Planned:
        dispatch = self.runner.dispatch(batch) if batch.seqs else Dispatch()
        return self._recorder.planned(self._log.events[before:], self._log.base + before, batch, dispatch)

    def snapshot(self) -> Snapshot:
        """The whole state between two steps; costs time in proportion to the pool."""
        self._enter()
        return self._take_snapshot()

    def _take_snapshot(self) -> Snapshot:
        return take_snapshot(self, self._log.next_number, self._now())

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

    def _enter(self) -> None:
        if self._is_stepping:
            raise RuntimeError("the engine is in the middle of a step; call it between steps")
        if self._undo or self._dirty:
            self._recover()
        self._hub.deliver()  # what an interrupt left behind

    def _recover(self) -> None:
        """Undo an unfinished step. May itself be interrupted: the next call goes on with it."""
        undo = self._undo
        undo.rollback()
        if not self._dirty:
            return
        undo.length(self._log.events)
        drop_overwritten(self._dirty, self.blocks, self.scheduler)
        undo.attr(self, "_dirty")
        self._dirty = []
        undo.commit()
