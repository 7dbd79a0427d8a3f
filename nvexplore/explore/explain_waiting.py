"""Why each waiting request waited in a step, and what would let it in. Reads records and states only."""

from __future__ import annotations

from collections.abc import Iterable

from nvexplore.explore.explain_behind import explain_behind, explain_preempted
from nvexplore.explore.explain_blocks import explain_free_blocks
from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_words import Explanation, Parts, Ref, all_taken, are, counted, fill, listed
from nvexplore.explore.state import State

MOST_WAITING = 64


def explain_waiting(moment: Moment, seq_ids: Iterable[int] | None = None) -> list[Explanation]:
    """These waiting requests, or the first 64 in the order of the queue after the step.

    kind: "free_blocks", "max_num_seqs", "token_budget" (what it lacks), "preempted" (in this step), "behind" (not
    looked at, since the search ended before it), "unnamed" (nor did the policy name it).
    """
    planned = moment.record.planned
    columns = zip(planned.waiting.reason, planned.waiting.needed, planned.waiting.available, strict=True)
    told = dict(zip(planned.waiting.seq_id, columns, strict=True))
    found = []
    for seq_id in moment.after.waiting[:MOST_WAITING] if seq_ids is None else seq_ids:
        if seq_id in told:
            reason, needed, available = told[seq_id]
            if reason == "free_blocks":
                found.append(explain_free_blocks(moment, seq_id, needed, available))
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
    more: Parts = ()
    if free > 0:
        is_first = after.waiting[0] == seq_id
        then = "and the next step can give it one" if is_first else "and goes to the first of the queue"
        more = (f"{are(free)} free now, {then}",)
    else:
        more = first_to_end(moment, after.running)
    return Explanation(
        kind="max_num_seqs",
        subject=moment.ref(seq_id),
        what=fill("waits for a place: {taken}", taken=all_taken(taken)),
        more=more,
        numbers={"needed": 1, "available": 0, "places": taken, "free_now": max(0, free)},
    )


def _budget(moment: Moment, seq_id: int) -> Explanation:
    """Prompts take all that decode rows leave: as long as they have more tokens than that, nobody is let in."""
    planned, after = moment.record.planned, moment.after
    budget = planned.max_num_batched_tokens
    decodes = planned.is_prefill.count(False)
    prompts = [seq_id for seq_id in after.running if after.sequences[seq_id].status == "prefill"]
    left = sum(len(after.sequences[i].token_ids) - after.sequences[i].num_computed_tokens for i in prompts)
    decoding = [seq_id for seq_id in after.running if after.sequences[seq_id].status == "decode"]
    room = budget - len(decoding) if decodes else budget  # if they decode first at all
    spent = f"of the step's {budget:,} tokens {decodes:,} went to decoding requests, {budget - decodes:,} to prompts"
    if not decodes or decodes == budget:
        spent = f"all {counted(budget, 'token')} of the step went to {'decoding requests' if decodes else 'prompts'}"
    numbers = {"needed": 1, "available": 0, "budget": budget, "decode": decodes, "prefill": budget - decodes}
    more: Parts = ("the next step can take it",)
    if room <= 0:
        more = first_to_end(moment, decoding)
    elif left >= room:
        earliest = moment.step + 1 + left // room
        template = "{left} of {names} come first, so that it can begin in step {earliest} at the earliest"
        names = listed([moment.ref(i) for i in prompts])
        more = fill(template, left=counted(left, "token"), names=names, earliest=earliest)
        numbers |= {"left": left, "earliest": earliest}
    return Explanation(
        kind="token_budget",
        subject=moment.ref(seq_id),
        what=fill("waits for the token budget: {spent}", spent=spent),
        more=more,
        numbers=numbers,
    )


def first_to_end(moment: Moment, seq_ids: list[int]) -> Parts:
    """Which of these running requests ends first, by its max_tokens."""
    known = [(left, seq_id) for seq_id in seq_ids if (left := moment.tokens_left(seq_id)) is not None]
    if not known:
        one = f"one of the {len(seq_ids):,} that run" if len(seq_ids) > 1 else moment.ref(seq_ids[0])
        return fill("{one} must end first", one=one)
    left, seq_id = min(known)
    return fill("{who} ends in {left} at the latest", who=moment.ref(seq_id), left=counted(left, "token"))
