"""What one may want to stop at: whether a record tells of it, and in which words. Reads records only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from nvexplore.engine.events import StepRecord

Who = Callable[[int], str]
NO_MISS = ("partial", "disabled", "bypassed")
"""Causes (see ``nvexplore.engine.miss.Miss``) for which the cache is not to blame: nothing was left to hit, or it was
not to be asked."""
NOT_WANTED = ("cpu", "enforce_eager")
"""Reasons for running without a graph that hold for every step of an engine."""
MISSES = {
    "in_flight": "another request is about to compute the same tokens",
    "evicted": "the next block was evicted in step {step}",
    "orphaned": "block {block} has the next tokens, but goes on from a block that was evicted",
    "differs": "block {block} begins alike, but position {position} is another token",
    "unseen": "nothing in it goes on like this",
}


class Event(NamedTuple):
    """meaning: when a step counts. find: the words for each time it happened in a record."""

    meaning: str
    find: Callable[[StepRecord, Who], list[str]]


def _preempted(record: StepRecord, who: Who) -> list[str]:
    found = []
    for part in (record.before.preempted, record.planned.preempted):
        for victim, cause in zip(part.seq_id, part.cause, strict=True):
            if cause < 0:
                found.append(f"{who(victim)} starts again: a failed step spoilt its blocks")
            elif cause == victim:
                found.append(f"{who(victim)} was preempted, since it needed a block itself")
            else:
                found.append(f"{who(victim)} was preempted for {who(cause).removeprefix('request ')}")
    return found


def _missed(record: StepRecord, who: Who) -> list[str]:
    admitted, found = record.planned.admitted, []
    if not admitted.miss_cause:  # nobody was admitted, or the records say nothing of it
        return []
    columns = zip(
        admitted.seq_id, admitted.miss_cause, admitted.miss_position, admitted.miss_block_id, admitted.miss_step,
        strict=True,
    )  # fmt: skip
    for seq_id, cause, position, block, step in columns:
        if cause not in NO_MISS:
            why = MISSES.get(cause, cause).format(position=position, block=block, step=step)
            found.append(f"{who(seq_id)} missed the prefix cache: {why}")
    return found


def _hit(record: StepRecord, who: Who) -> list[str]:
    admitted = record.planned.admitted
    columns = zip(admitted.seq_id, admitted.num_cached_tokens, strict=True)
    return [f"{who(seq_id)} took {tokens:,} tokens from the prefix cache" for seq_id, tokens in columns if tokens]


def _finished(record: StepRecord, who: Who) -> list[str]:
    columns = zip(record.committed.finished_seq_id, record.committed.finish_reason, strict=True)
    return [f"{who(seq_id)} finished ({reason})" for seq_id, reason in columns]


def _evicted(record: StepRecord, who: Who) -> list[str]:
    blocks = record.planned.blocks
    if "evicted" not in blocks.kind:
        return []
    rows = zip(blocks.kind, blocks.block_id, blocks.seq_id, strict=True)
    # What is forgotten for another reason is not allocated right after.
    return [
        f"block {block:,} was evicted for {who(seq_id)}"
        for (kind, block, _), (following, same, seq_id) in pairwise(rows)
        if (kind, following) == ("evicted", "allocated") and block == same
    ]


def _without_graph(record: StepRecord, _: Who) -> list[str]:
    planned = record.planned
    why = planned.eager_reason
    if record.is_empty or any(planned.is_prefill) or planned.graph_size is not None or why in (None, *NOT_WANTED):
        return []
    rows = len(planned.seq_id)
    return [f"{rows:,} decode row{'' if rows == 1 else 's'} ran without a graph: {why}"]


FINDERS = {
    "preempt": Event(
        "a request was sent back to wait: its blocks were needed, or a failed step spoilt them", _preempted
    ),
    "miss": Event(
        "a request was admitted and the prefix cache could have held more of it: the tokens are new, differ, were "
        "evicted or are under way",
        _missed,
    ),
    "hit": Event("a request was admitted with tokens from the prefix cache", _hit),
    "finish": Event("a request ended: stop, length or error", _finished),
    "evict": Event("a block was allocated whose cached content had to be forgotten for it", _evicted),
    "graph-miss": Event(
        "decode rows alone ran without a CUDA graph, though the engine has graphs or wanted them", _without_graph
    ),
}
