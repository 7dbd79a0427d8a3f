"""Why a request lost its blocks in a step: who needed one, why this one gave way, what it lost. Reads records only."""

from __future__ import annotations

from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_words import Explanation, are, counted, fill


def explain_preemptions(moment: Moment) -> list[Explanation]:
    """The step's preemptions in their order.

    kind: "preempted" for another, "gave_way" for itself, "failed_step" (its blocks may have been overwritten).
    """
    before, planned = moment.record.before.preempted, moment.record.planned.preempted
    found = [_failed(moment, *row) for row in zip(before.seq_id, before.num_lost, strict=True)]
    return found + [_preempted(moment, place) for place in range(len(planned.seq_id))]


def _failed(moment: Moment, seq_id: int, num_lost: int) -> Explanation:
    return Explanation(
        kind="failed_step",
        subject=moment.ref(seq_id),
        what=("was preempted before the step: a step that failed may have overwritten its blocks",),
        more=fill("{lost} must be computed again", lost=counted(num_lost, "token")),
        numbers={"lost": num_lost},
    )


def _preempted(moment: Moment, place: int) -> Explanation:
    events, before, after = moment.record.planned.preempted, moment.before, moment.after
    seq_id, cause, num_lost = events.seq_id[place], events.cause[place], events.num_lost[place]
    size, decodes = (
        before.block_size,
        [s for s in map(before.sequences.__getitem__, before.running) if s.status == "decode"],
    )
    needing = sum(seq.num_computed_tokens == len(seq.block_table) * size for seq in decodes)
    had = len(before.free)
    table = before.sequences[seq_id].block_table
    kept = sum(before.hash[block] is not None and before.hash[block] == after.hash[block] for block in table)
    candidates = _candidates(moment, place)
    numbers = {
        "lost": num_lost,
        "blocks": len(table),
        "kept": kept,
        "needing": needing,
        "free": had,
        "short": needing - had,
        "candidates": len(candidates),
    }
    free = "none was" if had == 0 else "1 was" if had == 1 else f"{had:,} were"
    need = f"{counted(needing, 'request')} needed a block and {free} free"
    if cause == seq_id:
        what = fill("gave up its blocks since it needed one more itself: {need}", need=need)
    else:
        what = fill("was preempted for {cause}, which needed a block: {need}", cause=moment.ref(cause), need=need)
    lost = f"{counted(num_lost, 'token')} must be computed again, less what it finds in the cache"
    cached = f"{are(kept)} left there of its {counted(len(table), 'block')}"
    return Explanation(
        kind="gave_way" if cause == seq_id else "preempted",
        subject=moment.ref(seq_id),
        what=what,
        more=(f"{_rule(moment, candidates, seq_id)}; {lost}: {cached}",),
        numbers=numbers,
    )


def _candidates(moment: Moment, place: int) -> list[int]:
    """Whom the policy could choose from: who ran, but for those that the step had scheduled or preempted before."""
    planned, running = moment.record.planned, moment.before.running
    gone = set(planned.preempted.seq_id[:place])
    decodes = {s for s, is_prefill in zip(planned.seq_id, planned.is_prefill, strict=True) if not is_prefill}
    reached = running.index(planned.preempted.cause[place])
    safe = {seq_id for seq_id in running[:reached] if seq_id in decodes}
    return [seq_id for seq_id in running if seq_id not in gone and seq_id not in safe]


def _rule(moment: Moment, candidates: list[int], victim: int) -> str:
    """What tells the victim from the others: the default policy's rule where it fits."""
    priority = {seq_id: moment.before.sequences[seq_id].priority for seq_id in candidates}
    worst = max(priority.values())
    last = [seq_id for seq_id in candidates if priority[seq_id] == worst]
    number = len(candidates)
    if number == 1:
        return "nobody else could give way"
    if victim != last[-1]:
        return f"the policy chose it among {number:,} that could give way"
    if len(last) == number:
        return f"of {number:,} that could give way it was admitted last"
    ties = ", and was admitted last of those" if len(last) > 1 else ""
    return f"of {number:,} that could give way it has the worst priority ({worst}){ties}"
