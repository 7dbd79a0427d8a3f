"""The waiting queue and the running list, with every change undoable. Knows no blocks and decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from typing import overload

from nvexplore.engine.sequence import Sequence
from nvexplore.engine.undo import UndoLog


class QueueView(SequenceOf[Sequence]):
    """A queue to look at, as a list that cannot be changed; it follows the queue. Slices are lists of their own."""

    __slots__ = ("_queue",)

    def __init__(self, queue: deque[Sequence]) -> None:
        self._queue = queue

    def __len__(self) -> int:
        return len(self._queue)

    @overload
    def __getitem__(self, index: int) -> Sequence: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sequence]: ...
    def __getitem__(self, index: int | slice) -> Sequence | list[Sequence]:
        return list(self._queue)[index] if isinstance(index, slice) else self._queue[index]

    # Of these the base class would make do with the two above, item by item.
    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._queue)

    def __contains__(self, seq: object) -> bool:
        return seq in self._queue


class Queues:
    """waiting: by priority (lower first), preempted before new, then arrival; running: oldest admission first.

    view: of the waiting queue, for those who may not change it.
    """

    def __init__(self, undo: UndoLog) -> None:
        self.waiting: deque[Sequence] = deque()
        self.view = QueueView(self.waiting)
        self.running: list[Sequence] = []
        self._undo = undo

    def enqueue(self, seq: Sequence) -> int:
        """Put a new request behind all of its priority; returns its position."""
        waiting = self.waiting
        position = len(waiting)
        while position and waiting[position - 1].priority > seq.priority:
            position -= 1
        self._insert(position, seq)
        return position

    def requeue(self, seq: Sequence) -> int:
        """Put a preempted sequence before all new ones of its priority, and in their order of arrival among those that
        were preempted too; returns its position.
        """
        position = 0
        place = seq.priority, False, seq.seq_id
        for other in self.waiting:
            if (other.priority, other.num_preemptions == 0, other.seq_id) > place:
                break
            position += 1
        self._insert(position, seq)
        return position

    def leave_waiting(self, seq: Sequence) -> None:
        """Take ``seq`` out of the waiting queue, wherever it stands."""
        waiting = self.waiting
        if waiting[0] is seq:
            self._undo.log((_restore_at, waiting, 0, seq))
            waiting.popleft()
            return
        position = next(i for i, other in enumerate(waiting) if other is seq)
        self._undo.log((_restore_at, waiting, position, seq))
        del waiting[position]

    def enter_running(self, seq: Sequence) -> None:
        self._undo.length(self.running)
        self.running.append(seq)

    def leave_running(self, seq: Sequence) -> None:
        """Take ``seq`` out of the running list, in place: a plan that walks it keeps walking the right one."""
        running = self.running
        position = len(running) - 1 if running[-1] is seq else running.index(seq)
        self._undo.log((_restore_at, running, position, seq))
        del running[position]

    def _insert(self, position: int, seq: Sequence) -> None:
        self._undo.log((_remove_from, self.waiting, position, seq))
        self.waiting.insert(position, seq)


def _restore_at(items: deque[Sequence] | list[Sequence], position: int, seq: Sequence) -> None:
    if position >= len(items) or items[position] is not seq:
        items.insert(position, seq)


def _remove_from(items: deque[Sequence], position: int, seq: Sequence) -> None:
    if position < len(items) and items[position] is seq:
        del items[position]
