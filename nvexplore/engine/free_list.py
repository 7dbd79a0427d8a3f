"""The free blocks in eviction order: a doubly linked list in two arrays. Knows nothing of what blocks hold."""

from __future__ import annotations

from collections.abc import Iterator

from nvexplore.engine.undo import UndoLog


class FreeList:
    """Blocks 0 .. num_blocks-1 in a queue; every operation is O(1) and can be undone.

    A linked list, since a prefix hit takes a block out of the middle and an undo puts it back exactly there.
    Entry ``num_blocks`` of both arrays is the sentinel: its next is the head, its prev the tail.
    """

    __slots__ = ("_next", "_prev", "_sentinel", "_undo", "size")

    def __init__(self, num_blocks: int, undo: UndoLog) -> None:
        ring = num_blocks + 1
        self._next = [(i + 1) % ring for i in range(ring)]
        self._prev = [(i - 1) % ring for i in range(ring)]
        # The sentinel sits at num_blocks, so the ring above already runs 0, 1, ... num_blocks - 1.
        self._sentinel = num_blocks
        self._undo = undo
        self.size = num_blocks

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._sentinel]
        while block != self._sentinel:
            yield block
            block = self._next[block]

    def head(self) -> int:
        """The block that is allocated next. The caller knows that the list is not empty."""
        return self._next[self._sentinel]

    def remove(self, block: int) -> None:
        """Take ``block`` out, wherever it stands. Its own links stay, so that the undo finds its place again."""
        before, after = self._prev[block], self._next[block]
        self._undo.log((self._link, before, block, block, after, self.size))
        self._next[before] = after
        self._prev[after] = before
        self.size -= 1

    def take(self, count: int) -> list[int]:
        """Take out the ``count`` blocks at the head, first of all the one there. They are known to be there."""
        links, sentinel = self._next, self._sentinel
        taken, after = [], links[sentinel]
        for _ in range(count):
            taken.append(after)
            after = links[after]
        self._undo.log((self._link, sentinel, taken[0], taken[-1], after, self.size))
        links[sentinel] = after
        self._prev[after] = sentinel
        self.size -= count
        return taken

    def extend(self, blocks: list[int]) -> None:
        """Put ``blocks`` at the tail: the last of them is evicted last."""
        after, before, sentinel = self._next, self._prev, self._sentinel
        tail = before[sentinel]
        old_links = [after[block] for block in blocks], [before[block] for block in blocks]
        self._undo.log((self._cut, tail, blocks, *old_links, self.size))
        last = tail
        for block in blocks:
            after[last] = block
            before[block] = last
            last = block
        after[last] = sentinel
        before[sentinel] = last
        self.size += len(blocks)

    def _link(self, before: int, first: int, last: int, after: int, size: int) -> None:
        """Undo ``remove`` and ``take``: what lay between the two lies there again, its inner links are intact."""
        self._next[before] = first
        self._prev[after] = last
        self.size = size

    def _cut(self, tail: int, blocks: list[int], after: list[int], before: list[int], size: int) -> None:
        """Undo ``extend``: each block gets its own old links, by which a ``remove`` before it is undone."""
        for block, next_, prev in zip(blocks, after, before, strict=True):
            self._next[block] = next_
            self._prev[block] = prev
        self._next[tail] = self._sentinel
        self._prev[self._sentinel] = tail
        self.size = size
