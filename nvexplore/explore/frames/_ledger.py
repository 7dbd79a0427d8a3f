"""Counts the blocks in each state from block events alone, which is much cheaper than folding. Knows no sequence."""

from __future__ import annotations

from nvexplore.engine.events import BlockEvents, Snapshot, StepRecord


class BlockLedger:
    """num_used, num_shared (of these: ref count 2 or more), num_cached (held by nobody, but can be hit), num_free."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._ref_count = list(snapshot.ref_count)
        self._is_hashed = [hash_ is not None for hash_ in snapshot.hash]
        self.num_used = sum(count > 0 for count in self._ref_count)
        self.num_shared = sum(count > 1 for count in self._ref_count)
        pairs = zip(self._ref_count, self._is_hashed, strict=True)
        self.num_cached = sum(count == 0 and is_hashed for count, is_hashed in pairs)

    @property
    def num_free(self) -> int:
        """Held by nobody, those that can be hit included."""
        return len(self._ref_count) - self.num_used

    def plan(self, record: StepRecord, first_event: int = 0) -> None:
        """Follow the record up to its plan: the counts are then those under which the step ran."""
        before = record.before
        resets = [number for number in before.cache_reset_number if number >= first_event]
        for events in (before.blocks, record.planned.blocks):
            for number, kind, block in zip(events.number, events.kind, events.block_id, strict=True):
                while resets and resets[0] < number:
                    del resets[0]
                    self._reset()
                if number >= first_event:
                    self._apply(kind, block)
        if resets:
            self._reset()

    def commit(self, record: StepRecord) -> None:
        """Follow the record to its end."""
        blocks: BlockEvents = record.committed.blocks
        for kind, block in zip(blocks.kind, blocks.block_id, strict=True):
            self._apply(kind, block)

    def _reset(self) -> None:
        self._is_hashed = [False] * len(self._is_hashed)
        self.num_cached = 0

    def _apply(self, kind: str, block: int) -> None:
        count = self._ref_count[block]
        if kind == "allocated" or kind == "hit":
            self._ref_count[block] = count + 1
            if count == 0:
                self.num_used += 1
                self.num_cached -= self._is_hashed[block]
            elif count == 1:
                self.num_shared += 1
        elif kind == "freed":
            self._ref_count[block] = count - 1
            if count == 1:
                self.num_used -= 1
                self.num_cached += self._is_hashed[block]
            elif count == 2:
                self.num_shared -= 1
        else:
            is_hashed = kind == "hashed"
            self.num_cached += (is_hashed - self._is_hashed[block]) * (count == 0)
            self._is_hashed[block] = is_hashed
