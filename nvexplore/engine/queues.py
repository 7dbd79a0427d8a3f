"""The waiting queue and the running list, with every change undoable. Knows no blocks and decides nothing."""

from __future__ import annotations

from collections import deque

from nvexplore.engine.sequence import Sequence
from nvexplore.engine.undo import UndoLog


class Queues:
    """waiting: by priority (lower first), preempted before new, then arrival; running: oldest admission first."""

    def __init__(self, undo: UndoLog) -> None:
        self.waiting: deque[Sequence] = deque()
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
        """Put a preempted sequence before all of its priority; returns its position."""
        position = 0
        for other in self.waiting:
            if other.priority >= seq.priority:
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
