"""Why each waiting request waited in a step, and what would let it in. Reads records and states only."""

from __future__ import annotations

from collections.abc import Iterable

from nvexplore.explore.explain_behind import explain_behind, explain_preempted
from nvexplore.explore.explain_blocks import explain_free_blocks
from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_outlook import can_admit, first_obstacle
from nvexplore.explore.explain_words import Explanation, Parts, Ref, all_taken, are, counted, fill
from nvexplore.explore.state import State

MOST_WAITING = 64


def explain_waiting(moment: Moment, seq_ids: Iterable[int] | None = None) -> list[Explanation]:
    """These waiting requests, or the first 64 in the order of the queue after the step.

    kind: "free_blocks", "max_num_seqs", "token_budget" (what it lacks), "preempted" (in this step), "behind" (not
    looked at, since the search ended before it), "unnamed" (nor did the policy name it).
    """
    planned = moment.record.planned
    told = {seq_id: row for row, seq_id in enumerate(planned.waiting.seq_id)}
    found = []
    for seq_id in moment.after.waiting[:MOST_WAITING] if seq_ids is None else seq_ids:
        if seq_id in told:
            reason = planned.waiting.reason[told[seq_id]]
            if reason == "free_blocks":
                found.append(explain_free_blocks(moment, told[seq_id]))
            elif reason == "max_num_seqs":
                found.append(_place(moment, seq_id))
            else:
                found.append(_budget(moment, seq_id))
        elif seq_id in planned.preempted.seq_id:
            found.append(explain_preempted(moment, seq_id))
        else:
            found.append(explain_behind(moment, seq_id))
    return found


def explain_unseen(state: State, seq_ids: Iterable[int]) -> list[Explanation]:
    """Waiting requests that no step has looked at yet. kind: "new"."""
    what: Parts = ("came after the last step: the next one will look at it",)
    names = ((seq_id, state.sequences[seq_id].request_id) for seq_id in seq_ids)
    return [Explanation(kind="new", subject=Ref("sequence", *name), what=what) for name in names]


def _place(moment: Moment, seq_id: int) -> Explanation:
    after = moment.after
    taken, free = after.max_num_seqs, after.max_num_seqs - len(after.running)
    numbers = {"needed": 1, "available": 0, "places": taken, "free_now": max(0, free)}
    more = first_obstacle(moment, seq_id, "max_num_seqs", numbers)
    if free > 0:
        but = "but " if more else "and "
        more = fill("{free} free now, {but}{more}", free=are(free), but=but, more=more or can_admit(moment, seq_id))
    return Explanation(
        kind="max_num_seqs",
        subject=moment.ref(seq_id),
        what=fill("waits for a place: {taken}", taken=all_taken(taken)),
        more=more,
        numbers=numbers,
    )


def _budget(moment: Moment, seq_id: int) -> Explanation:
    planned = moment.record.planned
    budget, decodes = planned.max_num_batched_tokens, planned.is_prefill.count(False)
    spent = f"of the step's {budget:,} tokens {decodes:,} went to decoding requests, {budget - decodes:,} to prompts"
    if not decodes or decodes == budget:
        spent = f"all {counted(budget, 'token')} of the step went to {'decoding requests' if decodes else 'prompts'}"
    numbers = {"needed": 1, "available": 0, "budget": budget, "decode": decodes, "prefill": budget - decodes}
    more = first_obstacle(moment, seq_id, "token_budget", numbers)
    return Explanation(
        kind="token_budget",
        subject=moment.ref(seq_id),
        what=fill("waits for the token budget: {spent}", spent=spent),
        more=more or (can_admit(moment, seq_id),),
        numbers=numbers,
    )
