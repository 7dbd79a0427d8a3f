"""What an undone step has spoilt for good. Knows no runner; the undo itself is the UndoLog's."""

from __future__ import annotations

from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.commit import reason_of_ending
from nvexplore.engine.scheduler import Scheduler
from nvexplore.engine.sequence import Sequence


def drop_overwritten(dirty: list[int], blocks: BlockManager, scheduler: Scheduler) -> None:
    """Distrust the blocks that a runner which had started may have overwritten; call after the rollback.

    dirty: the blocks the undone step had allocated. What the undo brought back of them is false: cached content is
    forgotten, and a sequence that held one of them (the step had preempted it) is preempted after all.
    """
    for block in dirty:
        blocks.evict(block)
    spoilt = set(dirty)
    for seq in scheduler.queues.running[::-1]:  # newest first, so that the blocks of the oldest are evicted last
        if not spoilt.isdisjoint(seq.block_table):
            scheduler.preempt(seq, cause=-1)


def give_up(blocks: BlockManager, scheduler: Scheduler) -> list[Sequence]:
    """Lose what is in the air: nobody knows what of it was computed, so all that is resident is computed again.

    Returns the sequences that had ended already and only waited for their last row to land.
    """
    ended = []
    for seq in scheduler.queues.running[::-1]:
        for block in seq.block_table:
            blocks.evict(block)
        if seq.num_computed_tokens > seq.ends_at:
            scheduler.finish(seq, reason_of_ending(seq))
            ended.append(seq)
        else:
            scheduler.preempt(seq, cause=-1)
    return ended
