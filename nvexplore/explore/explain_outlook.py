"""What stands in the way of a waiting request after a step, or that nothing does. Reads records and states only.

Told is what a step would do that is planned from this very state: the next one may have been planned before it.
"""

from __future__ import annotations

from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_needs import needed_now, num_blocks
from nvexplore.explore.explain_words import Parts, are, counted, fill, listed

CAN = "a step planned now can admit it"


def first_obstacle(moment: Moment, seq_id: int, lacked: str, numbers: dict[str, int]) -> Parts:
    """Why no step planned now can admit it; empty where that is not certain. Adds to ``numbers``.

    lacked: what it lacked in the step, the reason as ``Waiting`` has it; whether it still does is looked at first.
    """
    checks = {"max_num_seqs": _places, "token_budget": _budget, "free_blocks": _blocks}
    for check in (checks[lacked], *checks.values()):
        if found := check(moment, seq_id, numbers):
            return found
    return ()


def can_admit(moment: Moment, seq_id: int) -> str:
    """That nothing is known to be in the way, with what it depends on."""
    waiting, seq, conditions = moment.record.planned.waiting, moment.after.sequences[seq_id], []
    room = len(moment.after.free) - _due(moment)
    most = needed_now(moment, seq)[1]
    if most is None:
        conditions.append("enough is free with what is kept for others")
    elif most > room:
        total = num_blocks(moment, len(seq.token_ids))
        conditions.append(f"it can share {most - room:,} of its {counted(total, 'block')}")
    if moment.after.waiting[0] != seq_id or not waiting.is_queue_order or waiting.decodes_first is None:
        conditions.append("its turn comes")
    return f"{CAN} if {' and '.join(conditions)}" if conditions else CAN


def first_to_end(moment: Moment, seq_ids: list[int]) -> Parts:
    """Which of these running requests ends first, by its max_tokens."""
    known = [(left, seq_id) for seq_id in seq_ids if (left := moment.tokens_left(seq_id)) is not None]
    if not known:
        one = f"one of the {len(seq_ids):,} that run" if len(seq_ids) > 1 else moment.ref(seq_ids[0])
        return fill("{one} must end or give way first", one=one)
    left, seq_id = min(known)
    return fill("{who} ends in {left} at the latest", who=moment.ref(seq_id), left=counted(left, "token"))


def _with_status(moment: Moment, status: str) -> list[int]:
    return [seq_id for seq_id in moment.after.running if moment.after.sequences[seq_id].status == status]


def _due(moment: Moment) -> int:
    """Free blocks that decoding requests take before anybody is admitted, if they decode first."""
    if not moment.record.planned.waiting.decodes_first:
        return 0
    size, seqs = moment.after.block_size, moment.after.sequences
    decoding = (seqs[seq_id] for seq_id in _with_status(moment, "decode"))
    return sum(seq.num_computed_tokens == len(seq.block_table) * size for seq in decoding)


def _places(moment: Moment, seq_id: int, numbers: dict[str, int]) -> Parts:
    after = moment.after
    return first_to_end(moment, after.running) if len(after.running) >= after.max_num_seqs else ()


def _budget(moment: Moment, seq_id: int, numbers: dict[str, int]) -> Parts:
    """Prompts that have begun come before others: as long as they take all of the budget, nobody is let in."""
    after, planned = moment.after, moment.record.planned
    budget, decodes_first = planned.max_num_batched_tokens, planned.waiting.decodes_first
    prompts, decoding = _with_status(moment, "prefill"), _with_status(moment, "decode")
    if decodes_first and len(decoding) >= budget:
        return first_to_end(moment, decoding)
    left = sum(len(after.sequences[i].token_ids) - after.sequences[i].num_computed_tokens for i in prompts)
    names = listed([moment.ref(i) for i in prompts])
    if left < budget:
        if not decodes_first or left + len(decoding) < budget:
            return ()
        numbers["left"] = left
        rows = counted(len(decoding), "decode row")
        return fill("{left} of {names} and {rows} come first", left=counted(left, "token"), names=names, rows=rows)
    # Decode rows take some of the budget as long as they go on, which may be no longer than the next step.
    numbers["left"], numbers["earliest"] = left, moment.step + 1 + left // budget
    steps = left // budget + 1
    most_taken = len(decoding) * (steps // after.block_size + 1)
    unless: Parts = ()
    if decodes_first is not False and most_taken > len(after.free):
        unless = (" unless one of them is preempted",)
        if len(prompts) == 1:
            unless = fill(" unless {names} is preempted", names=names)
    template = "{left} of {names} come first, so that it can begin in step {earliest} at the earliest{unless}"
    return fill(template, left=counted(left, "token"), names=names, earliest=numbers["earliest"], unless=unless)


def _blocks(moment: Moment, seq_id: int, numbers: dict[str, int]) -> Parts:
    seq, now, due = moment.after.sequences[seq_id], len(moment.after.free), _due(moment)
    least, most = needed_now(moment, seq)
    if least <= now - due:
        return ()
    numbers["needed_now"] = least
    at_least = "" if least == most else "at least "
    first = f", of which decoding requests need {due:,} first" if least <= now else ""
    return (f"it needs {at_least}{counted(least, 'free block')}, and {are(now)} free{first}",)
