"""What an undone step has spoilt for good. Knows no runner; the undo itself is the UndoLog's."""

from __future__ import annotations

from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.scheduler import Scheduler


def drop_overwritten(dirty: list[int], blocks: BlockManager, scheduler: Scheduler) -> None:
    """Distrust the blocks that a runner which had started may have overwritten; call after the rollback.

    dirty: the blocks the undone step had allocated. What the undo brought back of them is false: cached content is
    forgotten, and a sequence that held one of them (the step had preempted it) is preempted after all.
    """
    for block in dirty:
        blocks.evict(block)
    spoilt = set(dirty)
    for seq in scheduler.queues.running[::-1]:  # newest first, so that the oldest ends up at the head of the queue
        if not spoilt.isdisjoint(seq.block_table):
            scheduler.preempt(seq, cause=-1)
