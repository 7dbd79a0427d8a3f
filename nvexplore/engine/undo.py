"""The undo log that makes a step a transaction. Knows nothing of what it restores.

Write-ahead: an entry is logged *before* its change is made, and each entry restores an absolute old value (or
checks before it acts). So an interrupt between the two lines does no harm, and ``rollback`` can itself be
interrupted and run again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any


def _truncate(items: list[Any], length: int) -> None:
    del items[length:]


def _remove_last(items: list[Any] | deque[Any], item: object) -> None:
    if items and items[-1] is item:
        items.pop()


class UndoLog:
    """Old values, newest last. ``commit()`` forgets them in one indivisible call; ``rollback()`` restores them."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    def attr(self, obj: object, name: str) -> None:
        """About to assign ``obj.name``."""
        self._entries.append(partial(setattr, obj, name, getattr(obj, name)))

    def item(self, items: list[Any], index: int) -> None:
        """About to assign ``items[index]``."""
        self._entries.append(partial(items.__setitem__, index, items[index]))

    def key(self, mapping: dict[Any, Any], key: object) -> None:
        """About to set or delete ``mapping[key]``."""
        if key in mapping:
            self._entries.append(partial(mapping.__setitem__, key, mapping[key]))
        else:
            self._entries.append(partial(mapping.pop, key, None))

    def length(self, items: list[Any]) -> None:
        """About to append to ``items``."""
        self._entries.append(partial(_truncate, items, len(items)))

    def append(self, items: list[Any] | deque[Any], item: object) -> None:
        """About to append ``item`` itself (not an equal one) to a list or deque."""
        self._entries.append(partial(_remove_last, items, item))

    def call(self, restore: Callable[[], object]) -> None:
        """``restore`` undoes the next change; it must do no harm when called twice or before the change."""
        self._entries.append(restore)

    def rollback(self) -> None:
        """Restore everything logged since the last commit, newest first."""
        entries = self._entries
        while entries:
            entries[-1]()
            entries.pop()

    def commit(self) -> None:
        """Keep the changes."""
        self._entries.clear()
