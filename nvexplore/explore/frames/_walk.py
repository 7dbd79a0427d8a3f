"""What several frames need on their way through the records. Knows no frame."""

from __future__ import annotations

from collections.abc import Iterable

from nvexplore.checks import check_int
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.lifecycle import Turn
from nvexplore.explore.recorder import Recorder

Source = Recorder | Iterable[Snapshot | StepRecord]


def as_recorder(source: Source) -> Recorder:
    """``source`` itself, or a Recorder of all its items, of which the first must be a Snapshot."""
    if isinstance(source, Recorder):
        return source
    items = list(source)
    recorder = Recorder(len(items) + 256)  # room for the chunk that is being filled
    for item in items:
        recorder.push(item)
    return recorder


def checked_step(recorder: Recorder, step: int | None) -> int | None:
    """``step``, or the newest if None; None if nothing is recorded. Raises ValueError if it is not kept."""
    if step is None:
        return recorder.last_step
    recorder.record_of(check_int("step", step))
    return step


class Lengths:
    """How far each sequence has come, followed from record to record without folding the whole state.

    num_tokens:      prompt and completion; exact whenever the sequence waits.
    num_ever:        tokens whose KV it had when it was last preempted: running those again is recomputation.
    num_preemptions: so far.
    A sequence that waits in the snapshot after a preemption in its prefill has lost an unknown number: taken as 0.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        columns = snapshot.sequences
        self.num_tokens = dict(zip(columns.seq_id, map(len, columns.token_ids), strict=True))
        self.num_preemptions = dict(zip(columns.seq_id, columns.num_preemptions, strict=True))
        self.num_ever: dict[int, int] = {}
        for seq_id, num_preemptions, num_prompt_tokens in zip(
            columns.seq_id, columns.num_preemptions, columns.num_prompt_tokens, strict=True
        ):
            num_tokens = self.num_tokens[seq_id]
            if num_preemptions and num_tokens > num_prompt_tokens:
                self.num_ever[seq_id] = num_tokens - 1  # of the token sampled last, KV was never computed

    def see(self, record_turns: Iterable[Turn]) -> None:
        """Follow a record up to its plan."""
        for turn in record_turns:
            if turn.kind == "added":
                self.num_tokens[turn.seq_id] = turn.amount
            elif turn.kind == "preempted":
                self._preempt(turn.seq_id, turn.amount)

    def recomputed(self, record: StepRecord) -> list[tuple[int, int, int]]:
        """(row, seq_id, tokens) of the record's rows that compute tokens again; ``see`` comes first."""
        planned = record.planned
        if not self.num_ever or True not in planned.is_prefill:
            return []
        found = []
        for row, (seq_id, start, end) in enumerate(
            zip(planned.seq_id, planned.start, planned.context_len, strict=True)
        ):
            again = min(end, self.num_ever.get(seq_id, 0)) - start
            if again > 0 and planned.is_prefill[row]:
                found.append((row, seq_id, again))
        return found

    def _preempt(self, seq_id: int, num_lost: int) -> None:
        self.num_preemptions[seq_id] = self.num_preemptions.get(seq_id, 0) + 1
        self.num_ever[seq_id] = max(num_lost, self.num_ever.get(seq_id, 0))
        # All but its last token were computed if it was decoding; otherwise its length has not changed.
        self.num_tokens[seq_id] = max(num_lost + 1, self.num_tokens[seq_id])
