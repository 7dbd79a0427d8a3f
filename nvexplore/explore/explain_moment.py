"""One step as its explanations need it: the record, the state after it, and the state in which it was planned.

Reads records only. What is costly to work out is made when it is first asked for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from msgspec.structs import replace

from nvexplore.engine.events import Admitted, BlockEvents, Committed, Planned, Preempted, StepRecord, Waiting
from nvexplore.explore.explain_words import Ref
from nvexplore.explore.lifecycle import RequestInfo
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State


@dataclass(frozen=True)
class Moment:
    """``step``, which ``recorder`` has, as it was planned and after it. ``after`` is not to be changed."""

    recorder: Recorder
    record: StepRecord
    after: State

    @property
    def step(self) -> int:
        return self.record.step

    @cached_property
    def before(self) -> State:
        """The state in which the plan began: requests that came since the last step are in it."""
        state = self.recorder.state_before(self.step)
        told = self.record.before
        columns = (told.added.number, told.aborted_number, told.cache_reset_number)
        numbers = [number for column in (*columns, told.blocks.number, told.preempted.number) for number in column]
        begin = max(numbers, default=state.event - 1) + 1
        state.apply(replace(self.record, planned=_nothing(self.record.planned), committed=_NO_TOKENS, event=begin))
        return state

    @cached_property
    def params(self) -> dict[int, dict[str, object]]:
        """seq_id -> sampling parameters of those that were added while it was recorded."""
        found: dict[int, dict[str, object]] = {}
        for record in self.recorder.records:
            added = record.before.added
            if added.seq_id:
                found.update(zip(added.seq_id, added.sampling_params, strict=True))
        return found

    @cached_property
    def queue(self) -> list[int]:
        """The waiting requests as the plan's search for requests to admit met them, in the queue's own order.

        Where decode rows come first, those that they preempted stand in it already.
        """
        queue, preempted = list(self.before.waiting), self.record.planned.preempted
        examined = {*self.record.planned.waiting.seq_id, *self.record.planned.admitted.seq_id}
        if not examined.isdisjoint(preempted.seq_id):
            for seq_id, position in zip(preempted.seq_id, preempted.position, strict=True):
                queue.insert(position, seq_id)
        return queue

    @cached_property
    def is_in_order(self) -> bool:
        """The search went through the queue from its head on; False: the policy has an order of its own."""
        told, preempted = self.record.planned.waiting.seq_id, self.record.planned.preempted.seq_id
        met = (seq_id for seq_id in self.after.waiting if seq_id in told or seq_id not in preempted)
        return list(islice(met, len(told))) == told

    @cached_property
    def passed(self) -> Counter[int]:
        """How often each waiting request has been passed over, this step included, in the steps that are recorded."""
        return count_passed(self.recorder, self.step)

    def find(self, step: int) -> StepRecord | None:
        """The record of a step that is not after this one, if it is kept."""
        try:
            return self.recorder.record_of(step) if step <= self.step else None
        except ValueError:
            return None

    @cached_property
    def _requests(self) -> dict[int, RequestInfo]:
        return self.recorder.requests

    def ref(self, seq_id: int) -> Ref:
        """A sequence by its request id, also one that has left."""
        seq = self.after.sequences.get(seq_id)
        if seq is not None:
            return Ref("sequence", seq_id, seq.request_id)
        info = self._requests.get(seq_id)
        return Ref("sequence", seq_id, f"sequence {seq_id}" if info is None else info.request_id)

    def tokens_left(self, seq_id: int) -> int | None:
        """Tokens that a live sequence may yet get, by its max_tokens; None where those are not recorded."""
        most = self.params.get(seq_id, {}).get("max_tokens")
        seq = self.after.sequences[seq_id]
        return None if not isinstance(most, int) else seq.num_prompt_tokens + most - len(seq.token_ids)


def moment_at(recorder: Recorder, step: int, state: State | None = None) -> Moment:
    """``step`` of the recorder; ValueError if it is not kept. state: the one right after it, if somebody has it."""
    record = recorder.record_of(step)
    if state is None or state.event != record.event:
        state = recorder.state_at(step)
    return Moment(recorder, record, state)


_NO_TOKENS = Committed(number=None, seq_id=[], token_id=[], blocks=BlockEvents())


def _nothing(planned: Planned) -> Planned:
    """A plan that runs nothing and changes nothing."""
    return replace(
        planned,
        number=None,
        seq_id=[],
        start=[],
        count=[],
        num_cached_tokens=[],
        is_prefill=[],
        samples=[],
        context_len=[],
        spans=replace(planned.spans, row=[], block_id=[], offset=[], length=[]),
        blocks=BlockEvents(),
        admitted=Admitted(),
        preempted=Preempted(),
        waiting=Waiting(),
    )


LEFT, ADMITTED = -1, -2  # in place of a position


def count_passed(recorder: Recorder, step: int) -> Counter[int]:
    """seq_id -> how often a request behind it in the queue was admitted while it lacked blocks, up to ``step``.

    Counted where the search followed the queue, and from the first record on: what was before is not known.
    """
    passed: Counter[int] = Counter()
    segments = recorder.segments
    snapshot, records = next(s for s in segments if s[0].step <= step < s[0].step + len(s[1]))
    waiting, first_event = list(snapshot.waiting), snapshot.event
    for record in records[: step - snapshot.step + 1]:
        before, planned = record.before, record.planned
        moves = [
            *zip(before.added.number, before.added.position, before.added.seq_id, strict=True),
            *((n, LEFT, s) for n, s in zip(before.aborted_number, before.aborted_seq_id, strict=True)),
            *zip(before.preempted.number, before.preempted.position, before.preempted.seq_id, strict=True),
            *zip(planned.preempted.number, planned.preempted.position, planned.preempted.seq_id, strict=True),
            *((n, ADMITTED, s) for n, s in zip(planned.admitted.number, planned.admitted.seq_id, strict=True)),
        ]
        if not moves:
            continue
        blocked = {s for s, r in zip(planned.waiting.seq_id, planned.waiting.reason, strict=True) if r == "free_blocks"}
        for number, position, seq_id in sorted(moves):
            if number < first_event:
                continue
            if position >= 0:
                waiting.insert(position, seq_id)
            elif seq_id in waiting:
                if position == ADMITTED:
                    passed.update(blocked.intersection(waiting[: waiting.index(seq_id)]))
                waiting.remove(seq_id)
    return passed
