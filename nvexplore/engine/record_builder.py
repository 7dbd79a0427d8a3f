"""Turns a step's events and its batch into a StepRecord. Decides nothing, and keeps nothing."""

from __future__ import annotations

from operator import add
from typing import Any

from msgspec.structs import replace

from nvexplore.engine.batch import Dispatch, Runner, Sampled, ScheduledBatch
from nvexplore.engine.event_log import NO_BLOCKS, NO_PREEMPTED, Columns, Event
from nvexplore.engine.events import Added, Before, Committed, Planned, SlotSpans, Waiting
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.policy import Policy
from nvexplore.engine.scheduler import Scheduler
from nvexplore.engine.sequence import Sequence

# What most steps have to tell, shared: records are never changed.
NOTHING = Columns([], 0)
NONE_FINISHED: list[list[Any]] = [[], [], []]
NOBODY_WAITS = Waiting()
NO_BEFORE = Before(added=Added(), blocks=NO_BLOCKS, preempted=NO_PREEMPTED)


def build_before(events: list[Event], first: int) -> Before:
    """Columns of what happened between two steps."""
    if not events:
        return NO_BEFORE
    columns = Columns(events, first)
    numbers, seqs, positions = columns.of("added", 3)
    aborted_number, aborted_seq_id, _ = columns.of("aborted", 3)
    (reset_number,) = columns.of("cache_reset", 1)
    return Before(
        added=Added(
            number=numbers,
            seq_id=[seq.seq_id for seq in seqs],
            request_id=[seq.request_id for seq in seqs],
            arrival=[seq.arrival for seq in seqs],
            token_ids=[seq.prompt_token_ids for seq in seqs],
            priority=[seq.priority for seq in seqs],
            position=positions,
            sampling_params=[seq.sampling_params.to_dict() for seq in seqs],
        ),
        aborted_number=aborted_number,
        aborted_seq_id=aborted_seq_id,
        cache_reset_number=reset_number,
        blocks=columns.blocks(),
        preempted=columns.preempted(),
    )


class PlanRecorder:
    """Builds the Planned of each step, and remembers what decode steps over the same sequences have in common.

    A list costs more to make than the few numbers in it, and most steps decode the same sequences as the one before:
    such steps share the columns that did not change. (Records are never changed, so sharing is safe.)
    """

    def __init__(self, limits: EngineLimits, scheduler: Scheduler, runner: Runner) -> None:
        self._runner = runner
        self._limits = limits
        self._scheduler = scheduler
        self._seqs: list[Sequence] = []
        self._num_admitted = -1
        self._seq_id: list[int] = []
        self._num_cached: list[int] = []
        self._row: list[int] = []
        self._num_allocated = -1
        self._block_id: list[int] = []

    def planned(self, events: list[Event], first: int, batch: ScheduledBatch) -> Planned:
        """Columns of one plan; called before the runner and the commit change the sequences."""
        dispatch = self._runner.dispatch(batch) if batch.seqs else Dispatch()
        limits, queues = self._limits, self._scheduler.queues
        num_waiting = len(queues.waiting)
        # What a sequence took from the cache changes only when it is admitted again.
        if batch.seqs != self._seqs or self._scheduler.num_admitted != self._num_admitted:
            self._num_admitted = -1  # an interrupt on the next lines must not leave half of this to be used
            self._seqs = batch.seqs
            self._seq_id = [seq.seq_id for seq in batch.seqs]
            self._num_cached = [seq.num_cached_tokens for seq in batch.seqs]
            self._row = list(range(len(batch.seqs)))
            self._block_id = []
            self._num_admitted = self._scheduler.num_admitted
        columns = NOTHING if len(events) == 1 else Columns(events, first)
        decodes = not any(batch.is_prefill)
        admitted = columns.admitted()
        spans = self._decode_spans(batch, limits.block_size) if decodes else slot_spans(batch, limits.block_size)
        return Planned(
            number=first + len(events) - 1 if events else None,  # the last event of a plan that runs anything
            seq_id=self._seq_id,
            start=batch.starts,
            count=batch.counts,
            num_cached_tokens=self._num_cached,
            is_prefill=batch.is_prefill,
            samples=batch.samples,
            context_len=list(map(add, batch.starts, batch.counts)),
            spans=spans,
            blocks=columns.blocks(),
            admitted=admitted,
            preempted=columns.preempted(),
            waiting=_waiting(batch, num_waiting, len(admitted.seq_id), self._scheduler.policy),
            max_num_batched_tokens=limits.max_num_batched_tokens,
            num_free_blocks=len(self._scheduler.blocks.free),
            num_running=len(queues.running),
            num_waiting=num_waiting,
            graph_size=dispatch.graph_size,
            padding=dispatch.padding,
            eager_reason=dispatch.eager_reason,
            prefill_backend=dispatch.prefill_backend,
            decode_backend=dispatch.decode_backend,
        )

    def _decode_spans(self, batch: ScheduledBatch, block_size: int) -> SlotSpans:
        """One slot a row, in the last block of its table: a table holds none beyond that of the newest token."""
        num_allocated = self._scheduler.blocks.num_allocated
        if not self._block_id or num_allocated != self._num_allocated:
            self._block_id = [seq.block_table[-1] for seq in batch.seqs]
            self._num_allocated = num_allocated
        return SlotSpans(
            row=self._row,
            block_id=self._block_id,
            offset=[position % block_size for position in batch.starts],
            length=batch.counts,
        )


def _waiting(batch: ScheduledBatch, num_waiting: int, num_admitted: int, policy: Policy) -> Waiting:
    if not num_waiting:
        return NOBODY_WAITS
    blocked = batch.blocked
    rows = zip(*blocked, strict=True) if blocked else [()] * 7
    seq_id, reason, needed, available, passed_before, admitted_before, reserve = map(list, rows)
    return Waiting(
        seq_id=seq_id,
        reason=reason,
        needed=needed,
        available=available,
        num_not_examined=num_waiting - len(blocked),
        reserve=reserve,
        # Whoever was admitted after it was looked at was admitted past it.
        num_passed=[n + num_admitted - before for n, before in zip(passed_before, admitted_before, strict=True)],
        num_admitted_before=admitted_before,
        search_end=batch.search_end,
        is_queue_order=getattr(policy.admission_order, "__func__", None) is Policy.admission_order,
        decodes_first=bool(policy.decodes_first),
    )


def slot_spans(batch: ScheduledBatch, block_size: int) -> SlotSpans:
    """The slots that a batch which is not empty writes, one span a block touched."""
    starts, counts = batch.starts, batch.counts
    spans: list[tuple[int, int, int, int]] = []
    for row, seq in enumerate(batch.seqs):
        position, end = starts[row], starts[row] + counts[row]
        while position < end:
            offset = position % block_size
            length = min(block_size - offset, end - position)
            spans.append((row, seq.block_table[position // block_size], offset, length))
            position += length
    row_, block_id, offset_, length_ = zip(*spans, strict=True)
    return SlotSpans(row=list(row_), block_id=list(block_id), offset=list(offset_), length=list(length_))


def renumbered(planned: Planned, by: int) -> Planned:
    """The plan with all its event numbers greater by so many."""
    if not by:
        return planned

    def moved(columns: Any) -> Any:
        return replace(columns, number=[number + by for number in columns.number]) if columns.number else columns

    assert planned.number is not None  # only plans that run something are made ahead
    return replace(
        planned,
        number=planned.number + by,
        blocks=moved(planned.blocks),
        admitted=moved(planned.admitted),
        preempted=moved(planned.preempted),
    )


def build_committed(
    events: list[Event],
    first: int,
    seq_id: list[int],
    token_id: list[int],
    times: tuple[int, int, int],
    result: list[int] | Sampled,
) -> Committed:
    """Columns of one commit; ``times``: plan, run, commit in ns; ``result``: what the runner gave."""
    if len(events) == 1:  # nothing but that the step was committed
        columns, finished = NOTHING, NONE_FINISHED
    else:
        columns = Columns(events, first)
        finished = columns.of("finished", 3)
    return Committed(
        number=first if events else None,  # the first event of a commit
        seq_id=seq_id,
        token_id=token_id,
        blocks=columns.blocks(),
        finished_number=finished[0],
        finished_seq_id=finished[1],
        finish_reason=finished[2],
        plan_ns=times[0],
        run_ns=times[1],
        commit_ns=times[2],
        device_ns=result.device_ns if isinstance(result, Sampled) else None,
    )
