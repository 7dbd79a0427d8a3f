"""The engine: requests in, one batch a step, tokens out. Knows no tensor, no text and no notebook.

A step is a transaction: plan, run, commit. Whatever interrupts it (an exception, Ctrl-C) leaves the engine as it
was before the step; the next step does the same work again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nvexplore.checks import check_int
from nvexplore.engine.batch import Dispatch, Runner, ScheduledBatch
from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.event_log import EventLog, build_before, build_committed, build_planned
from nvexplore.engine.events import Planned, Snapshot, StepRecord
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.prefix_cache import HashFunction, chain_hash
from nvexplore.engine.scheduler import Scheduler
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.snapshot import take_snapshot
from nvexplore.engine.subscription import Hub, Subscriber, Subscription
from nvexplore.engine.undo import UndoLog
from nvexplore.sampling_params import SamplingParams


@dataclass(slots=True)
class StepOutput:
    """What a step produced: ``token_ids[i]`` was appended to ``seq_ids[i]``.

    finished: sequences that ended in this step, or were aborted since the last one.
    record: the step's StepRecord, if it was asked for or anybody subscribes.
    """

    step: int
    seq_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    record: StepRecord | None = None


class Engine:
    """Owns the queues and the block pool; ``runner`` computes.

    eos_token_ids: ids that end a completion. vocab_size: prompt ids must be below it (None: not checked).
    Not for use from several threads at once; a call while a step runs raises RuntimeError.
    """

    def __init__(
        self,
        limits: EngineLimits,
        runner: Runner,
        *,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        hash_function: HashFunction = chain_hash,
    ) -> None:
        self.limits = limits
        self.runner = runner
        self.vocab_size = vocab_size
        self._undo = UndoLog()
        self._log = EventLog()
        self.blocks = BlockManager(limits, self._undo, self._log, hash_function)
        self.scheduler = Scheduler(limits, self.blocks, self._undo, self._log, frozenset(eos_token_ids))
        self.live: dict[str, Sequence] = {}
        self.next_step = 0
        self._next_seq_id = 0
        self._start = time.perf_counter()
        self._hub = Hub(self._take_snapshot)
        self._aborted: list[Sequence] = []
        self._is_stepping = False
        # Blocks that a step which was undone may have overwritten; see _recover.
        self._dirty: list[int] = []

    # ---------------------------------------------------------------- requests

    def add_request(
        self,
        token_ids: Iterable[int],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> Sequence:
        """Queue a request; the Sequence returned fills up as the engine steps.

        Raises TypeError or ValueError, naming value and limit, for a request that could never run; the engine
        stays as it was.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        prompt = self._checked_prompt(token_ids, params)
        self._enter()
        if request_id is None:
            request_id = str(self._next_seq_id)
            while request_id in self.live:
                request_id += "'"
        elif not isinstance(request_id, str):
            raise TypeError(f"request_id={request_id!r}: must be a str, not {type(request_id).__name__}")
        elif request_id in self.live:
            raise ValueError(
                f"request_id={request_id!r}: a live request has this id; ids of live requests are unique"
            )
        try:
            seq = Sequence(
                self._next_seq_id,
                prompt,
                params,
                request_id=request_id,
                arrival=time.perf_counter() - self._start,
            )
            self._undo.attr(self, "_next_seq_id")
            self._undo.key(self.live, request_id)
            self._undo.call(lambda: _remove_last(self.scheduler.waiting, seq))
            self._undo.length(self._log.events)
            self._next_seq_id += 1
            self.live[request_id] = seq
            self.scheduler.waiting.append(seq)
            self._log.events.append(("added", seq))
            self._undo.commit()
        except BaseException:
            self._undo.rollback()
            raise
        return seq

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is; its blocks return to the pool. False if no such request lives."""
        self._enter()
        seq = self.live.get(request_id)
        if seq is None:
            return False
        try:
            self._undo.length(self._log.events)
            self._undo.key(self.live, request_id)
            self._undo.length(self._aborted)
            del self.live[request_id]
            self.scheduler.finish(seq, "abort")
            self._aborted.append(seq)
            self._undo.commit()
        except BaseException:
            self._undo.rollback()
            raise
        return True

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep their blocks."""
        self._enter()
        try:
            self._undo.length(self._log.events)
            self._log.events.append(("cache_reset",))
            for block in range(self.limits.num_blocks):
                self.blocks.forget(block)
            self._undo.commit()
        except BaseException:
            self._undo.rollback()
            raise

    @property
    def has_unfinished(self) -> bool:
        return bool(self.live)

    # ---------------------------------------------------------------- stepping

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
        wanted = want_record or bool(self._hub)
        undo.attr(log, "active")
        undo.length(log.events)
        log.active = wanted
        begin = clock()
        before = len(log.events)
        batch = self.scheduler.schedule()
        planned = self._build_planned(batch, before) if wanted else None
        mark = len(log.events)
        planned_at = clock()
        token_ids: list[int] = []
        if batch.seqs:
            self._dirty = self.blocks.allocated_this_step
            token_ids = self.runner.run(batch)
            _check_sampled(token_ids, batch)
        ran_at = clock()
        sampled, finished = self.scheduler.commit(batch, token_ids) if batch.seqs else ([], [])
        for seq in finished:
            undo.key(self.live, seq.request_id)
            del self.live[seq.request_id]
        output = StepOutput(self.next_step, sampled, token_ids, self._aborted + finished)
        record = None
        if planned is not None:
            events = log.events
            record = StepRecord(
                step=self.next_step,
                time=time.perf_counter() - self._start,
                event=log.next_number,
                before=build_before(events[:before], log.base),
                planned=planned,
                committed=build_committed(
                    events[mark:],
                    log.base + mark,
                    sampled,
                    token_ids,
                    (planned_at - begin, ran_at - planned_at, clock() - ran_at),
                ),
            )
            output.record = record
        for name in ("_dirty", "_aborted", "next_step"):
            undo.attr(self, name)
        undo.attr(log, "events")
        undo.attr(log, "base")
        self._dirty = []
        self._aborted = []
        # A step that did nothing and has nothing to tell gets no number.
        if batch.seqs or log.events:
            self.next_step += 1
            if record is not None and self._hub:
                undo.call(lambda: _remove_last(self._hub.outbox, record))
                self._hub.outbox.append(record)
        log.base += len(log.events)
        log.events = []
        log.active = True
        return output

    def plan(self) -> Planned:
        """What the next step would do, and why; changes nothing."""
        self._enter()
        undo, log = self._undo, self._log
        try:
            undo.length(log.events)
            before = len(log.events)
            batch = self.scheduler.schedule()
            return self._build_planned(batch, before)
        finally:
            undo.rollback()

    def _build_planned(self, batch: ScheduledBatch, before: int) -> Planned:
        log, scheduler = self._log, self.scheduler
        return build_planned(
            log.events[before:],
            log.base + before,
            batch,
            self.runner.dispatch(batch) if batch.seqs else Dispatch(),
            block_size=self.limits.block_size,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            num_free_blocks=len(self.blocks.free),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
        )

    # ---------------------------------------------------------------- looking

    def snapshot(self) -> Snapshot:
        """The whole state between two steps; costs time in proportion to the pool."""
        self._enter()
        return self._take_snapshot()

    def _take_snapshot(self) -> Snapshot:
        return take_snapshot(self, self._log.next_number, time.perf_counter() - self._start)

    def subscribe(self, callback: Subscriber) -> Subscription:
        """Call ``callback`` with a Snapshot now and with each StepRecord from the next step on.

        Use as a context manager, or ``close()`` it. A callback that raises is detached and logged; the step stands.
        """
        return self._hub.subscribe(callback, self.snapshot())

    # ---------------------------------------------------------------- recovery

    def _enter(self) -> None:
        if self._is_stepping:
            raise RuntimeError("the engine is in the middle of a step; call it between steps")
        if self._undo or self._dirty:
            self._recover()
        self._hub.deliver()  # what an interrupt left behind

    def _recover(self) -> None:
        """Undo an unfinished step. May itself be interrupted: the next call goes on with it.

        A runner that had started may have overwritten the blocks the step had allocated. What the undo brought
        back of them is false: their cached content is forgotten, and a sequence that held one of them (the step
        had preempted it) is preempted for good.
        """
        undo = self._undo
        undo.rollback()
        if not self._dirty:
            return
        undo.length(self._log.events)
        self._drop_overwritten()
        undo.attr(self, "_dirty")
        self._dirty = []
        undo.commit()

    def _drop_overwritten(self) -> None:
        dirty = set(self._dirty)
        for block in self._dirty:
            if self.blocks.hash_of(block) is not None:
                self.blocks.forget(block)
                self._log.note("evicted", block, -1, None)
        for seq in self.scheduler.running[::-1]:
            if not dirty.isdisjoint(seq.block_table):
                self.scheduler.preempt(seq, cause=-1)

    def _checked_prompt(self, token_ids: Iterable[int], params: SamplingParams) -> list[int]:
        if not isinstance(params, SamplingParams):
            raise TypeError(
                f"sampling_params={params!r}: must be a SamplingParams, not {type(params).__name__}"
            )
        if isinstance(token_ids, (str, bytes)):
            raise TypeError(f"token_ids={token_ids!r}: must be integers; text is for LLM.add_request")
        top = None if self.vocab_size is None else self.vocab_size - 1
        prompt = [check_int(f"token_ids[{i}]", t, minimum=0, maximum=top) for i, t in enumerate(token_ids)]
        if not prompt:
            raise ValueError("the prompt is empty: it must have at least 1 token")
        limits, total = self.limits, len(prompt) + params.max_tokens
        if total > limits.max_model_len:
            raise ValueError(
                f"prompt of {len(prompt)} tokens + max_tokens={params.max_tokens} is {total}: "
                f"must be at most max_model_len={limits.max_model_len}"
            )
        needed = limits.blocks_for(total - 1)  # the last token is never stored
        if needed > limits.num_blocks:
            raise ValueError(
                f"prompt of {len(prompt)} tokens + max_tokens={params.max_tokens} needs {needed} KV blocks of "
                f"{limits.block_size}: the pool has num_blocks={limits.num_blocks}"
            )
        return prompt


def _check_sampled(token_ids: list[int], batch: ScheduledBatch) -> None:
    expected = sum(batch.samples)
    if len(token_ids) != expected:
        raise RuntimeError(f"the runner returned {len(token_ids)} token ids for {expected} sampling rows")


def _remove_last(items: Any, item: object) -> None:
    """Undo an append that may not have happened yet."""
    if items and items[-1] is item:
        items.pop()
