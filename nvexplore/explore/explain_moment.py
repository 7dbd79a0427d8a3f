"""One step as its explanations need it: the record, the state after it, and the state in which it was planned.

Reads records only. What is costly to work out is made when it is first asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
