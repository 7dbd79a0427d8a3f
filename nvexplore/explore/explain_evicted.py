"""How a prefix that a request could have hit left the cache: which block, when, for whom. Reads records only."""

from __future__ import annotations

from nvexplore.engine.events import BlockEvents, StepRecord
from nvexplore.explore.contents import Contents
from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_words import Parts, block_ref, fill, step_ref
from nvexplore.explore.state import SequenceState


def evicted_why(
    moment: Moment, contents: Contents, seq: SequenceState, index: int, step: int | None, numbers: dict[str, int]
) -> Parts:
    """Full block ``index`` of ``seq`` was evicted in ``step``, or between steps where the whole cache was forgotten."""
    here = the_block(index, moment.after.block_size)
    if step is None:
        return fill("{here} was in the cache and has been evicted", here=here)
    numbers["step"] = step
    # What happens after a step, before the next is planned, counts as that step's.
    records = [record for record in map(moment.find, (step, step + 1)) if record is not None]
    for record in records:
        block, taker = _evicted(record, contents, seq, index, record.step == step)
        if block is None:
            continue
        numbers["evicted_block"] = block
        template = "{here} was in {block}, which was evicted in {step}"
        words = fill(template, here=here, block=block_ref(block), step=step_ref(record.step))
        return words if taker is None else fill("{words} for {taker}", words=words, taker=moment.ref(taker))
    for record in records:
        if record.before.cache_reset_number:
            return fill("{here} was in the cache, which was reset before {step}", here=here, step=step_ref(record.step))
    return fill("{here} was in the cache and was evicted in {step}", here=here, step=step_ref(step))


def the_block(index: int, size: int) -> str:
    """Full block ``index`` of a sequence, by its positions: numbers of blocks are those of the pool."""
    start, end = index * size, (index + 1) * size
    return f"the block of positions {start:,} to {end - 1:,}" if size > 1 else f"the block of position {start:,}"


def _evicted(
    record: StepRecord, contents: Contents, seq: SequenceState, index: int, is_own: bool
) -> tuple[int | None, int | None]:
    """The block that held full block ``index`` of ``seq`` and lost it in this record, and who was given it then.

    is_own: the eviction counts as this step's; else only what happened before its plan is looked at.
    """
    columns = (record.before.blocks, record.planned.blocks, record.committed.blocks)
    for events in columns if is_own else columns[:1]:
        for place, kind in enumerate(events.kind):
            if kind != "evicted":
                continue
            block = events.block_id[place]
            filled = contents.content(block, events.number[place])
            if filled is not None and filled.node.depth == index and filled.node.is_prefix_of(seq.token_ids):
                return block, _taker(events, place)
    return None, None


def _taker(events: BlockEvents, place: int) -> int | None:
    for later in range(place + 1, len(events.kind)):
        if events.kind[later] == "allocated" and events.block_id[later] == events.block_id[place]:
            return events.seq_id[later]
    return None
