"""Why a waiting request lacks blocks, and who would have to give them back. Reads records and states only."""

from __future__ import annotations

from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_needs import needed_now, num_blocks, num_common
from nvexplore.explore.explain_outlook import can_admit, first_obstacle
from nvexplore.explore.explain_words import Explanation, Parts, are, counted, fill, listed
from nvexplore.explore.state import SequenceState


def explain_free_blocks(moment: Moment, row: int) -> Explanation:
    """Row ``row`` of ``Waiting``: its own blocks, those that must stay free besides, and how it is now."""
    waiting, after = moment.record.planned.waiting, moment.after
    seq_id, needed, available = waiting.seq_id[row], waiting.needed[row], waiting.available[row]
    seq, now = after.sequences[seq_id], len(after.free)
    numbers = {"needed": needed, "available": available, "short": needed - available, "free_now": now}
    # Who was never preempted keeps nothing free: of others an older record does not tell it.
    reserve = waiting.reserve[row] if waiting.reserve else 0 if seq.num_preemptions == 0 else None
    own, shared = needed, 0
    if reserve is not None:
        own = needed - reserve
        shared = num_blocks(moment, len(seq.token_ids)) - own
        numbers |= {"own": own, "shared": shared, "reserve": reserve}
    need = f"needs {own:,}{f' beside {shared:,} that it can share' if shared else ''}{_besides(seq, reserve)}"
    what = f"waits for {counted(needed - available, 'free block')}: {need}, {are(available)} free"
    if waiting.num_passed:
        numbers["passed"] = passed = waiting.num_passed[row]
        if passed == 1:
            what += " (passed over once for a request that needed less)"
        elif passed:
            what += f" (passed over {passed:,} times for requests that needed less)"
    numbers["needed_now"] = needed_now(moment, seq)[0]
    if now < numbers["needed_now"]:
        more = _who_frees(moment, seq, numbers["needed_now"] - now)
    else:
        more = first_obstacle(moment, seq_id, "free_blocks", numbers)
        but = "but " if more else "and "
        more = fill("{now} free now, {but}{more}", now=are(now), but=but, more=more or can_admit(moment, seq_id))
    return Explanation(kind="free_blocks", subject=moment.ref(seq_id), what=(what,), more=more, numbers=numbers)


def _besides(seq: SequenceState, reserve: int | None) -> str:
    """What must stay free beside its own blocks, and why."""
    times = seq.num_preemptions
    if times == 0 or reserve == 0:
        return ""
    kept = " with what is kept free for others"
    if reserve is not None:
        kept = f" and {reserve:,} kept free for " + (
            "those that run" if times == 1 else "what all of them may yet need"
        )
    return f"{kept} (it was preempted {'once' if times == 1 else f'{times:,} times'})"


def _who_frees(moment: Moment, seq: SequenceState, short: int) -> Parts:
    """The running requests that end first by their max_tokens and give back ``short`` blocks that they alone hold."""
    after = moment.after
    holders = []
    for seq_id in after.running:
        other = after.sequences[seq_id]
        # What ``seq`` could share is no gain: once nobody holds it any more, it counts among what is needed.
        mine = other.block_table[num_common(seq, other, after.block_size) :]
        alone = sum(after.ref_count[block] == 1 for block in mine)
        left = moment.tokens_left(seq_id)
        if alone:
            holders.append((left is None, left or 0, seq_id, alone))
    holders.sort()
    total, latest, names, is_known = 0, 0, [], True
    for is_unknown, left, seq_id, alone in holders:
        total, latest, is_known = total + alone, max(latest, left), is_known and not is_unknown
        names.append(moment.ref(seq_id))
        if total >= short:
            break
    if not names:
        return ("no running request holds blocks alone",)
    s = "s" if len(names) == 1 else ""
    held = fill("{names} hold{s} {total} alone", names=listed(names), s=s, total=counted(total, "block"))
    if not is_known:
        return held
    return fill("{held} and end{s} in {latest} at the latest", held=held, s=s, latest=counted(latest, "token"))
