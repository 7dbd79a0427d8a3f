"""What a step returns. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from nvexplore.engine.batch import Sampled, ScheduledBatch
from nvexplore.engine.events import StepRecord
from nvexplore.engine.sequence import Sequence


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


def check_sampled(result: list[int] | Sampled, batch: ScheduledBatch) -> list[int]:
    """The token ids of a run; RuntimeError unless there is one for each row that samples."""
    token_ids = result.token_ids if isinstance(result, Sampled) else result
    expected = sum(batch.samples)
    if len(token_ids) != expected:
        raise RuntimeError(f"the runner returned {len(token_ids)} token ids for {expected} sampling rows")
    return token_ids
