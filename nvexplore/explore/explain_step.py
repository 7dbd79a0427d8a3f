"""A step in one sentence: what ran, how much of the budget it took, and how it was launched. Reads its record only."""

from __future__ import annotations

from nvexplore.engine.events import Planned, StepRecord
from nvexplore.engine.scheduler import NEEDS_HOST, NO_BLOCKS_AHEAD
from nvexplore.explore.explain_words import Explanation, Parts, counted, fill, step_ref

EAGER = {
    "prefill": "it has prompt tokens",
    "cpu": "a CPU has none",
    "enforce_eager": "enforce_eager is set",
    "log probabilities": "log probabilities are asked for",
}
"""Why a step is not one CUDA graph; other reasons stand for themselves."""
NOT_AHEAD = {
    NO_BLOCKS_AHEAD: "it needed blocks that the step before might free",
    NEEDS_HOST: "penalties or log probabilities need each token on the host first",
}


def explain_step(record: StepRecord) -> Explanation:
    """kind: "step", or "idle" where nothing ran."""
    planned, subject = record.planned, step_ref(record.step)
    if record.is_empty:
        waiting = planned.num_waiting
        what = (
            fill("ran nothing: {n} wait", n=counted(waiting, "request")) if waiting else ("ran nothing: nobody waits",)
        )
        return Explanation(kind="idle", subject=subject, what=what, numbers={"waiting": waiting})
    chunks = planned.is_prefill.count(True)
    decodes, used, budget = len(planned.seq_id) - chunks, sum(planned.count), planned.max_num_batched_tokens
    numbers = {"used": used, "budget": budget, "chunks": chunks, "decodes": decodes, "prefill": used - decodes}
    parts = []
    if decodes:
        parts.append(counted(decodes, "decode row"))
    if chunks:
        parts.append(f"{counted(chunks, 'prompt chunk')} of {counted(used - decodes, 'token')}")
    return Explanation(
        kind="step",
        subject=subject,
        what=(f"ran {' and '.join(parts)}: {used:,} of the budget's {counted(budget, 'token')}",),
        more=_launch(planned, record.step, numbers),
        numbers=numbers,
    )


def _launch(planned: Planned, step: int, numbers: dict[str, int]) -> Parts:
    how: Parts = ()
    if planned.graph_size is not None:
        numbers["graph_size"], numbers["padding"] = planned.graph_size, planned.padding or 0
        padding = f", {planned.padding:,} of them padding" if planned.padding else ""
        how = fill("one CUDA graph of {size}{padding}", size=counted(planned.graph_size, "row"), padding=padding)
    elif planned.eager_reason is not None:
        reason = EAGER.get(planned.eager_reason, planned.eager_reason)
        how = fill("launched without a CUDA graph: {reason}", reason=reason)
    then: Parts = ()
    if planned.is_ahead:
        then = fill("planned while {before} was being computed", before=step_ref(step - 1))
    elif planned.sync_reason is not None:
        reason = NOT_AHEAD.get(planned.sync_reason, planned.sync_reason)
        then = fill("not planned ahead: {reason}", reason=reason)
    return fill("{how}; {then}", how=how, then=then) if how and then else how or then
