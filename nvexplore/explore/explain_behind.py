"""Why the search for requests to admit did not come to some of them. Reads the record and the states around it."""

from __future__ import annotations

from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_needs import needed_now
from nvexplore.explore.explain_words import Explanation, Parts, all_taken, are, counted, fill


def explain_behind(moment: Moment, seq_id: int) -> Explanation:
    """A request that the search did not come to, since it ended before or the policy named nobody else."""
    waiting, after = moment.record.planned.waiting, moment.after
    subject = moment.ref(seq_id)
    # A search that was stopped by nobody has come to all whom the policy named.
    if waiting.search_end == "order" or not waiting.seq_id:
        return Explanation(kind="unnamed", subject=subject, what=("is not looked at: the policy did not name it",))
    last, reason = waiting.seq_id[-1], waiting.reason[-1]
    # The search may have gone on and admitted others, or found that the policy named nobody else.
    if reason == "free_blocks" and waiting.search_end is None:
        return Explanation(kind="behind", subject=subject, what=("is not looked at: the record does not say why",))
    numbers, who = {"examined": len(waiting.seq_id)}, moment.ref(last)
    if reason == "free_blocks":
        numbers["short"] = short = waiting.needed[-1] - waiting.available[-1]
        lacks = f"lacks {counted(short, 'block')}{_not_passed(moment, numbers)}"
        template, in_order = "is not looked at: the search ended at {who}, which {why}", "{who}, {where}, {why}"
    else:
        lacks = "the token budget is used up" if reason == "token_budget" else all_taken(after.max_num_seqs)
        template, in_order = "is not looked at: the search ended at {who}: {why}", "{why}, and {who}, {where}, is next"
    # Only of the queue's own order is it known who comes next.
    if not waiting.is_queue_order:
        return Explanation(kind="behind", subject=subject, what=fill(template, who=who, why=lacks), numbers=numbers)
    numbers["places_before"] = places = after.waiting.index(seq_id) - after.waiting.index(last)
    where: Parts = ("directly before it",) if places == 1 else fill("{places} places before it", places=places)
    is_passable = reason != "free_blocks" or (waiting.search_end == "lookahead" and numbers["others"] > 0)
    return Explanation(
        kind="behind",
        subject=subject,
        what=fill(f"is not looked at: {in_order}", who=who, where=where, why=lacks),
        more=fill(
            "{who} must be admitted{or_passed} first", who=who, or_passed=" or passed over" if is_passable else ""
        ),
        numbers=numbers,
    )


def _not_passed(moment: Moment, numbers: dict[str, int]) -> str:
    """Why the last one was not passed over: it was so often before, or others are."""
    waiting = moment.record.planned.waiting
    if waiting.search_end == "max_passed":
        numbers["passed"] = passed = waiting.num_passed[-1]
        times = "once" if passed == 1 else f"{passed:,} times"
        return f" and, passed over {times} so far, is passed over no more" if passed else " and may not be passed over"
    numbers["others"] = others = len(waiting.seq_id) - 1
    before = f"the {others:,} before it are" if others > 1 else "the one before it is"
    return f", and {before} all that may be passed over in a step" if others else ", and nobody may be passed over"


def explain_preempted(moment: Moment, seq_id: int) -> Explanation:
    """A request that was running until this step."""
    planned, after = moment.record.planned.preempted, moment.after
    cause = planned.cause[planned.seq_id.index(seq_id)]
    now, place = len(after.free), after.waiting.index(seq_id)
    what: Parts = ("waits since it gave up its own blocks in this step",)
    if cause != seq_id:
        what = fill("waits since it was preempted for {cause} in this step", cause=moment.ref(cause))
    first = "it is the first in the queue"
    if place:
        first = f"{counted(place, 'request')} {'stands' if place == 1 else 'stand'} before it"
    least, most = needed_now(moment, after.sequences[seq_id])
    needed = least if most is None else most
    need = f"{counted(needed, 'free block')} at most to come back"
    if most is None:
        need = f"at least {counted(needed, 'free block')} to come back, with what is kept free for others"
    numbers = {"needed": needed, "free_now": now, "place": place}
    more = (f"{first}, and as things stand it needs {need}: {are(now)} free now",)
    return Explanation(kind="preempted", subject=moment.ref(seq_id), what=what, more=more, numbers=numbers)
