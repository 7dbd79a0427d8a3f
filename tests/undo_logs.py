"""Undo logs that bring about the worst moments for an interrupt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvexplore.engine.undo import UndoLog

Entry = tuple[Any, ...]


class Hasty(UndoLog):
    """Undoes each change before it is made, and twice afterwards: neither may do harm."""

    def __init__(self) -> None:
        super().__init__()
        note = self.log

        def log(entry: Entry) -> None:
            _call(entry)
            note((_twice, entry))

        self.log = log


def _call(entry: Entry) -> None:
    restore, *arguments = entry
    restore(*arguments)


def _twice(entry: Entry) -> None:
    _call(entry)
    _call(entry)


class Stop(Exception):
    """What ``Stopping`` raises."""


class Stopping(UndoLog):
    """Raises Stop instead of taking an entry once ``left`` entries are taken: the changes before it stand half-made."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1_000_000
        note = self.log

        def log(entry: Entry) -> None:
            self.left -= 1
            if self.left < 0:
                raise Stop
            note(entry)

        self.log = log


def stop_at_each_entry(undo: Stopping, change: Callable[[], object], look: Callable[[], object]) -> int:
    """Stop ``change`` at its first entry, its second, ... and undo it: ``look()`` must see what it saw before.

    Then make it wholly and undo that. Returns the number of entries.
    """
    before, entries = look(), 0
    while True:
        undo.left = entries
        try:
            change()
        except Stop:
            undo.rollback()
            assert look() == before, f"stopped at entry {entries}"
            entries += 1
            continue
        undo.left = 1_000_000
        assert look() != before
        undo.rollback()
        assert look() == before
        return entries
