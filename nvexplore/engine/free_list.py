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
        undo, before, after = self._undo, self._prev[block], self._next[block]
        undo.item(self._next, before)
        undo.item(self._prev, after)
        undo.attr(self, "size")
        self._next[before] = after
        self._prev[after] = before
        self.size -= 1

    def append(self, block: int) -> None:
        """Put ``block`` at the tail: it is evicted last."""
        undo, sentinel = self._undo, self._sentinel
        last = self._prev[sentinel]
        undo.item(self._next, block)
        undo.item(self._prev, block)
        undo.item(self._next, last)
        undo.item(self._prev, sentinel)
        undo.attr(self, "size")
        self._next[block] = sentinel
        self._prev[block] = last
        self._next[last] = block
        self._prev[sentinel] = block
        self.size += 1
