"""Why a waiting request lacks blocks, and who would have to give them back. Reads records and states only."""

from __future__ import annotations

from collections.abc import Iterable

from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_words import Explanation, Parts, are, counted, fill, listed
from nvexplore.explore.state import SequenceState


def explain_free_blocks(moment: Moment, seq_id: int, needed: int, available: int) -> Explanation:
    """``needed`` and ``available`` as the record has them: its own blocks, and those that must stay free besides."""
    after, seq = moment.after, moment.after.sequences[seq_id]
    tables = _tables(moment, seq_id, available)
    reserve, passed, now = kept_free(moment, seq, tables), moment.passed[seq_id], len(after.free)
    own = needed if reserve is None else needed - reserve
    shared = 0 if reserve is None else num_blocks(moment, len(seq.token_ids)) - own
    need = f"needs {own:,}{f' beside {shared:,} that it can share' if shared else ''}{_besides(seq, reserve)}"
    what = f"waits for {counted(needed - available, 'free block')}: {need}, {are(available)} free"
    if passed:
        what += f" ({counted(passed, 'request')} behind it needed less and went first)"
    again = kept_free(moment, seq, [(i, len(after.sequences[i].block_table)) for i in after.running])
    # Where it is not known what it shares, all its blocks are counted.
    own_now = own if reserve is not None else num_blocks(moment, len(seq.token_ids))
    needed_now = needed if again is None else own_now + again
    is_first = after.waiting[0] == seq_id
    enough = "and the next step can admit it" if is_first else "enough for it unless those before it take them"
    more: Parts = (f"{are(now)} free now, {enough}",)
    if now < needed_now:
        more = _who_frees(moment, seq, needed_now - now)
    numbers = {"needed": needed, "available": available, "short": needed - available, "own": own, "shared": shared}
    numbers |= {"reserve": reserve or 0, "passed": passed, "free_now": now, "needed_now": needed_now}
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


def num_blocks(moment: Moment, num_tokens: int) -> int:
    return -(-num_tokens // moment.after.block_size)


def _who_frees(moment: Moment, seq: SequenceState, short: int) -> Parts:
    """The running requests that end first by their max_tokens and give back ``short`` blocks that they alone hold."""
    after = moment.after
    holders = []
    for seq_id in after.running:
        other = after.sequences[seq_id]
        # What ``seq`` could share is no gain: once nobody holds it any more, it counts among what is needed.
        mine = other.block_table[_num_common(seq, other, after.block_size) :]
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


def _num_common(seq: SequenceState, other: SequenceState, size: int) -> int:
    """Whole blocks in which both begin alike."""
    most = (len(seq.token_ids) - 1) // size * size
    starts = range(0, most, size)
    other_than = (at for at in starts if seq.token_ids[at : at + size] != other.token_ids[at : at + size])
    return next(other_than, most) // size


def kept_free(moment: Moment, seq: SequenceState, tables: Iterable[tuple[int, int]] | None) -> int | None:
    """Blocks that must stay free beside those of ``seq``, as in ``Scheduler``: the more, the oftener it was preempted.

    tables: (seq_id, blocks) of the running requests. None if it can't be known.
    """
    if seq.num_preemptions == 0:
        return 0
    if tables is None:
        return None
    rows = list(tables)
    if seq.num_preemptions == 1:
        return len(rows)
    total = 0
    size = moment.after.block_size
    for seq_id, num_held in [*rows, (seq.seq_id, num_blocks(moment, len(seq.token_ids)))]:
        other = moment.before.sequences.get(seq_id) or moment.after.sequences[seq_id]
        most = moment.params.get(seq_id, {}).get("max_tokens")
        if not isinstance(most, int):
            return None
        total += max(0, -(-(other.num_prompt_tokens + most - 1) // size) - num_held)
    return total


def _tables(moment: Moment, seq_id: int, available: int) -> list[tuple[int, int]] | None:
    """Who ran when the search came to ``seq_id``, and how many blocks each held; None if that is not certain."""
    planned, before = moment.record.planned, moment.before
    if planned.is_ahead or not moment.is_in_order or moment.after.sequences[seq_id].num_preemptions == 0:
        return None
    place, preempted = moment.queue.index(seq_id), planned.preempted.seq_id
    earlier = [other for other in planned.admitted.seq_id if moment.queue.index(other) < place]
    # Decode rows took their blocks, and preempted for them, before the search, or (prompts run first) after it.
    if preempted:
        is_after = not set(preempted).isdisjoint([*planned.waiting.seq_id, *planned.admitted.seq_id])
        if not is_after:
            return None
    else:
        is_after = not (all(planned.is_prefill) or (not earlier and available == len(before.free)))
    tables = {other: len(before.sequences[other].block_table) for other in before.running if other not in preempted}
    for kind, other in zip(planned.blocks.kind, planned.blocks.seq_id, strict=True):
        if kind in ("allocated", "hit") and (other in earlier or (is_after and other in tables)):
            tables[other] = tables.get(other, 0) + 1
    return list(tables.items())
