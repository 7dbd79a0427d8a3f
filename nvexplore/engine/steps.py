"""Makes steps: plan, run, commit. Knows no request's text and no subscriber's business.

A step is one transaction, or two where steps overlap: taking off (plan, hand it to the runner) and landing (wait for
the tokens, commit). While a step is in the air the next one may be planned and handed over too, ahead of the tokens
that it continues: the runner feeds them. Whatever ends a transaction leaves everything as it was before it.

A plan made ahead of a commit takes free blocks and waiting requests, the commit frees blocks and ends requests: done in
either order they give the same state. So records tell them in the order of the steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from nvexplore.engine.batch import OverlappingRunner, Runner
from nvexplore.engine.commit import Committer
from nvexplore.engine.event_log import Event, EventLog
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.flight import Flight, Plan, count_again, ground, lift, put_back
from nvexplore.engine.output import StepOutput
from nvexplore.engine.record_builder import PlanRecorder, build_before, build_committed, renumbered
from nvexplore.engine.recovery import drop_overwritten, give_up
from nvexplore.engine.requests import Requests
from nvexplore.engine.scheduler import NEEDS_HOST, NotAhead, Scheduler
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.subscription import Hub
from nvexplore.engine.undo import UndoLog


class Steps:
    """The steps of one engine, each change logged for undo before it is made.

    next_step: number of the next one. flights: those in the air, oldest first.
    aborted: requests aborted since the last step. dirty: blocks that an undone step may have overwritten.
    is_doomed: a landing has failed, so all that is in the air must be given up.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        committer: Committer,
        requests: Requests,
        recorder: PlanRecorder,
        hub: Hub,
        undo: UndoLog,
        log: EventLog,
        now: Callable[[], float],
        snapshot: Callable[[], Snapshot],
        overlap: bool,
    ) -> None:
        self.runner = runner
        self._scheduler = scheduler
        self._committer = committer
        self._requests = requests
        self._recorder = recorder
        self._hub = hub
        self._undo = undo
        self._log = log
        self._now = now
        self._snapshot = snapshot
        self._overlapping: OverlappingRunner | None = runner if overlap else None  # type: ignore[assignment]
        self._sync_reason: str | None = None
        self.next_step = 0
        self.aborted: list[Sequence] = []
        self.flights: deque[Flight] = deque()
        self.dirty: list[int] = []
        self.is_doomed = False

    def step(self, *, want_record: bool) -> StepOutput:
        """Plan, run and commit one step; nothing may be in the air."""
        output = self._run(self._plan(want_record or bool(self._hub)))
        self._undo.commit()  # the point of no return, one indivisible call
        return output

    def advance(self) -> bool:
        """Bring one more step to its end, and leave the next one in the air where steps overlap; False: none to do."""
        number = self.next_step
        if not self.flights and not self._take_off():
            return self.next_step > number
        if len(self.flights) == 1:  # an interrupted landing has left two
            self._take_off()
        self.land()
        return True

    def land(self) -> None:
        """Wait for the oldest step in the air, and commit it."""
        flight, undo, log = self.flights[0], self._undo, self._log
        later = log.events  # of a launch that was undone since then: the next record tells them
        try:
            self._land(flight)
        except Exception:
            self.is_doomed = True
            raise
        undo.log((put_back, self.flights, flight))
        self.flights.popleft()
        log.active, log.base, log.events = True, log.next_number + len(flight.plan.events), later
        undo.commit()

    def rewind(
        self, events: list[Event], num_events: int, base: int, step: int, aborted: list[Sequence], reason: str | None
    ) -> None:
        """Undo what is changed here, but for ``dirty``."""
        log = self._log
        log.active, log.events, log.base = True, events, base
        del events[num_events:]
        self.next_step, self.aborted, self._sync_reason = step, aborted, reason

    def recover(self) -> None:
        """Undo an unfinished transaction, and distrust what the runner may have spoilt.

        May itself be interrupted: the next call goes on with it.
        """
        undo, log = self._undo, self._log
        undo.rollback()
        if not self.dirty and not self.is_doomed:
            return
        self._begin()
        drop_overwritten(self.dirty, self._scheduler.blocks, self._scheduler)
        undo.attrs(self, "dirty", "is_doomed", "flights")
        self.dirty = []
        if self.is_doomed:
            self._requests.leave(*give_up(self._scheduler.blocks, self._scheduler))
            # Their numbers are used again; those of their events are not, so that watchers see that all is new.
            self.next_step = self.flights[0].step
            log.base += sum(len(flight.plan.events) for flight in self.flights) + 1
            self.is_doomed, self.flights, self._sync_reason = False, deque(), None
            if self._hub:
                self._tell(self._snapshot())
        undo.commit()

    def _begin(self) -> None:
        """A transaction begins that writes events."""
        events, base = self._log.events, self._log.base
        self._undo.log((self.rewind, events, len(events), base, self.next_step, self.aborted, self._sync_reason))

    def _plan(self, wanted: bool, *, is_ahead: bool = False) -> Plan:
        log, clock = self._log, time.perf_counter_ns
        began, num_before = clock(), len(log.events)
        self._begin()
        log.active = wanted
        sync_reason, self._sync_reason = None if is_ahead else self._sync_reason, None
        batch = self._scheduler.schedule(self.next_step, is_ahead=is_ahead)
        needs_host = self._overlapping is not None and any(seq.needs_host for seq in batch.seqs)
        sync_reason = NEEDS_HOST if needs_host else sync_reason
        if is_ahead and (needs_host or not batch.seqs):
            raise NotAhead(sync_reason)
        planned = None
        if wanted:
            planned = self._recorder.planned(log.events[num_before:], log.base + num_before, batch)
            if is_ahead or sync_reason:
                planned = replace(planned, is_ahead=is_ahead, sync_reason=sync_reason)
        return Plan(began, clock(), batch, needs_host, log.events, num_before, log.base, planned)

    def _run(self, plan: Plan) -> StepOutput:
        """Run what is planned and commit it."""
        log, clock, batch = self._log, time.perf_counter_ns, plan.batch
        mark = len(log.events)
        self.dirty = self._scheduler.blocks.allocated_this_step if batch.seqs else []
        result = self.runner.run(batch) if batch.seqs else []
        ran_at = clock()
        seq_ids, token_ids, finished = self._committer.commit(batch, result)
        self._requests.leave(*finished)
        output = StepOutput(self.next_step, seq_ids, token_ids, self.aborted + finished)
        if plan.planned is not None:
            times = (plan.ready - plan.began, ran_at - plan.ready, clock() - ran_at)
            output.record = StepRecord(
                step=self.next_step,
                time=self._now(),
                event=log.next_number,
                before=build_before(log.events[: plan.num_before], log.base),
                planned=plan.planned,
                committed=build_committed(log.events[mark:], log.base + mark, seq_ids, token_ids, times, result),
            )
        self._has_run()
        # A step that did nothing and has nothing to tell gets no number.
        if batch.seqs or log.events:
            self.next_step += 1
            if output.record is not None and self._hub:
                self._tell(output.record)
        log.active, log.base, log.events = True, log.next_number, []
        return output

    def _take_off(self) -> bool:
        """Hand the next step to the runner; False if it can't be: then it is left, or with nothing in the air, run."""
        is_ahead, runner = bool(self.flights), self._overlapping
        try:
            plan = self._plan(bool(self._hub), is_ahead=is_ahead)
        except NotAhead as why:
            self._undo.rollback()
            self._sync_reason = why.reason
            return False
        if runner is not None and plan.batch.seqs and not plan.needs_host:
            self._launch(runner, plan)
        else:
            self._run(plan)
        self._undo.commit()
        return bool(self.flights)

    def _launch(self, runner: OverlappingRunner, plan: Plan) -> None:
        undo, log, batch = self._undo, self._log, plan.batch
        self.dirty = self._scheduler.blocks.allocated_this_step
        launched = runner.launch(batch, self.flights[-1].launched if self.flights else None)
        undo.log((ground, batch))
        lift(batch)
        flight = Flight(self.next_step, plan, launched)
        undo.append(self.flights, flight)
        self.flights.append(flight)
        self._has_run()
        self.next_step += 1
        log.active, log.events = True, []

    def _land(self, flight: Flight) -> None:
        log, clock, plan = self._log, time.perf_counter_ns, flight.plan
        result, landed = flight.launched.wait(), clock()
        self._begin()
        log.active, log.events = plan.planned is not None, []
        free, num_free = self._scheduler.blocks.free, len(self._scheduler.blocks.free)
        seq_ids, token_ids, finished = self._committer.land(plan.batch, result)
        self._requests.leave(*finished)
        count_again(self.flights, flight, len(free) - num_free, len(finished), self._undo)
        if plan.planned is None:
            return
        first = log.base + len(plan.events)
        times = (plan.ready - plan.began, landed - plan.ready, clock() - landed)
        self._tell(
            StepRecord(
                step=flight.step,
                time=self._now(),
                event=first + len(log.events),
                before=build_before(plan.events[: plan.num_before], log.base),
                planned=renumbered(plan.planned, log.base - plan.base),
                committed=build_committed(log.events, first, seq_ids, token_ids, times, result),
            )
        )

    def _has_run(self) -> None:
        """Nothing is left that an undone step could have spoilt, and aborted requests have been told."""
        if self.dirty:
            self._undo.attr(self, "dirty")
            self.dirty = []
        self.aborted = []

    def _tell(self, item: StepRecord | Snapshot) -> None:
        self._undo.append(self._hub.outbox, item)
        self._hub.outbox.append(item)
