"""Why the search for requests to admit did not come to some of them. Reads the record and the states around it."""

from __future__ import annotations

from nvexplore.explore.explain_blocks import kept_free, num_blocks
from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_words import Explanation, Parts, all_taken, are, counted, fill


def explain_behind(moment: Moment, seq_id: int) -> Explanation:
    """A request that stands behind the one at which the search ended."""
    waiting, after = moment.record.planned.waiting, moment.after
    subject = moment.ref(seq_id)
    if not waiting.seq_id:
        return Explanation(kind="unnamed", subject=subject, what=("is not looked at: the policy did not name it",))
    last, reason = waiting.seq_id[-1], waiting.reason[-1]
    numbers = {"examined": len(waiting.seq_id)}
    where: Parts = ("which the policy put before it",)
    if moment.is_in_order:
        numbers["places_before"] = places = after.waiting.index(seq_id) - after.waiting.index(last)
        where = ("directly before it",) if places == 1 else fill("{places} places before it", places=places)
    who = moment.ref(last)
    if reason == "token_budget":
        what = fill("is not looked at: the token budget is used up, and {who}, {where}, is next", who=who, where=where)
    elif reason == "max_num_seqs":
        template = "is not looked at: {places}, and {who}, {where}, is next"
        what = fill(template, places=all_taken(after.max_num_seqs), who=who, where=where)
    else:
        numbers["short"] = short = waiting.needed[-1] - waiting.available[-1]
        template = "is not looked at: {who}, {where}, lacks {short}{why}"
        what = fill(
            template, who=who, where=where, short=counted(short, "block"), why=_not_passed(moment, last, numbers)
        )
    return Explanation(
        kind="behind", subject=subject, what=what, more=fill("{who} must be admitted first", who=who), numbers=numbers
    )


def _not_passed(moment: Moment, last: int, numbers: dict[str, int]) -> str:
    """Why, as far as records tell: it was passed over often, or others that lack blocks are passed over already."""
    numbers["others"] = others = len(moment.record.planned.waiting.seq_id) - 1
    numbers["passed"] = passed = moment.passed[last] if moment.is_in_order else 0
    times = "once" if passed == 1 else f"{passed:,} times"
    before = f"the {others:,} before it are" if others > 1 else "the one before it is"
    if passed and others:
        return f" and is not passed over: it was {times}, and {before}"
    if passed:
        return f" and, passed over {times} so far, is passed over no more"
    return f", and {before} all that may be passed over in a step" if others else ", and nobody may be passed over"


def explain_preempted(moment: Moment, seq_id: int) -> Explanation:
    """A request that was running until this step."""
    planned, after = moment.record.planned.preempted, moment.after
    cause = planned.cause[planned.seq_id.index(seq_id)]
    seq, now = after.sequences[seq_id], len(after.free)
    what: Parts = ("waits since it gave up its own blocks in this step",)
    if cause != seq_id:
        what = fill("waits since it was preempted for {cause} in this step", cause=moment.ref(cause))
    running = [(other, len(after.sequences[other].block_table)) for other in after.running]
    needed = num_blocks(moment, len(seq.token_ids)) + (kept_free(moment, seq, running) or 0)
    place = after.waiting.index(seq_id)
    numbers = {"needed": needed, "free_now": now, "place": place}
    first = "it is the first in the queue"
    if place:
        first = f"{counted(place, 'request')} {'stands' if place == 1 else 'stand'} before it"
    template = "{first}, and it needs {needed} at most to come back: {now} free now"
    more = fill(template, first=first, needed=counted(needed, "free block"), now=are(now))
    return Explanation(kind="preempted", subject=moment.ref(seq_id), what=what, more=more, numbers=numbers)
