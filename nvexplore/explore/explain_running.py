"""What each running request did in a step, or why nothing. Reads the step's record and the state after it."""

from __future__ import annotations

from collections.abc import Iterable

from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_words import Explanation, Parts, are, counted, fill, listed

MOST_RUNNING = 64


def explain_running(moment: Moment, seq_ids: Iterable[int] | None = None) -> list[Explanation]:
    """These running requests, or the first 64, oldest admission first. kind: "decode", "prefill", "idle"."""
    rows = {seq_id: row for row, seq_id in enumerate(moment.record.planned.seq_id)}
    return [
        _ran(moment, seq_id, rows[seq_id]) if seq_id in rows else _idle(moment, seq_id)
        for seq_id in (moment.after.running[:MOST_RUNNING] if seq_ids is None else seq_ids)
    ]


def _ran(moment: Moment, seq_id: int, row: int) -> Explanation:
    planned, seq = moment.record.planned, moment.after.sequences[seq_id]
    start, count, end = planned.start[row], planned.count[row], planned.context_len[row]
    got = len(seq.token_ids) - seq.num_prompt_tokens
    left = moment.tokens_left(seq_id)
    numbers = {"start": start, "count": count, "generated": got}
    token: Parts = fill("got its token {got}", got=got)
    if left is not None:
        numbers["left"] = left
        token = fill("{token} of at most {most}", token=token, most=got + left)
    if not planned.is_prefill[row]:
        return Explanation(kind="decode", subject=moment.ref(seq_id), what=token, numbers=numbers)
    total = end if planned.samples[row] else len(seq.token_ids)
    numbers |= {"total": total, "cached": planned.num_cached_tokens[row]}
    verb = "computed again" if seq.num_preemptions else "computed"
    if not planned.samples[row]:
        cached = planned.num_cached_tokens[row]
        after = f", after {cached:,} from the cache" if cached and cached == start else ""
        what: Parts = (f"{verb} {count:,} of its {total:,} tokens{after}: {are(total - end)} left",)
    elif count == total:
        all_ = f"all of its {total:,} tokens" if total > 1 else "its only token"
        what = fill("{verb} {all} and {token}", verb=verb, all=all_, token=token)
    else:
        template = "{verb} the last {count} of its {total} tokens and {token}"
        what = fill(template, verb=verb, count=count, total=total, token=token)
    return Explanation(kind="prefill", subject=moment.ref(seq_id), what=what, numbers=numbers)


def _idle(moment: Moment, seq_id: int) -> Explanation:
    """A resident request without a row: prompts went first, or the budget was used up."""
    planned = moment.record.planned
    used, budget = sum(planned.count), planned.max_num_batched_tokens
    prompts = [other for other, is_prefill in zip(planned.seq_id, planned.is_prefill, strict=True) if is_prefill]
    numbers = {"used": used, "budget": budget}
    if moment.after.sequences[seq_id].status == "decode" and prompts and all(planned.is_prefill):
        names = listed([moment.ref(other) for other in prompts])
        what = fill("did not run: prompts run first, and this step ran those of {names}", names=names)
    else:
        others = "another request" if len(planned.seq_id) == 1 else f"{len(planned.seq_id):,} others"
        what = (f"did not run: {others} took all of the budget of {counted(budget, 'token')}",)
    return Explanation(kind="idle", subject=moment.ref(seq_id), what=what, numbers=numbers)
