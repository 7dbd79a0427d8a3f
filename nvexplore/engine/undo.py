"""The undo log that makes a step a transaction. Knows nothing of what it restores.

Write-ahead: an entry is logged *before* its change is made, and each entry restores an absolute old value (or
checks before it acts). So an interrupt between the two lines does no harm, and ``rollback`` can itself be
interrupted and run again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


def _truncate(items: list[Any], length: int) -> None:
    del items[length:]


def _set_attrs(obj: object, names: tuple[str, ...], values: list[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(obj, name, value)


def _set_items(items: list[Any], indices: list[int], values: list[Any]) -> None:
    for index, value in zip(indices, values, strict=True):
        items[index] = value


def _remove_last(items: list[Any] | deque[Any], item: object) -> None:
    if items and items[-1] is item:
        items.pop()


class UndoLog:
    """Old values, newest last. ``commit()`` forgets them in one indivisible call; ``rollback()`` restores them.

    log((restore, *arguments)): ``restore(*arguments)`` undoes the next change; it must do no harm when called twice or
    before the change. One entry for all that a call changes is much cheaper than one for each value, so this is what
    the changes of every step are logged with.
    """

    __slots__ = ("_entries", "log")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, ...]] = []
        self.log: Callable[[tuple[Any, ...]], None] = self._entries.append

    def __bool__(self) -> bool:
        return bool(self._entries)

    def attr(self, obj: object, name: str) -> None:
        """About to assign ``obj.name``."""
        self.log((setattr, obj, name, getattr(obj, name)))

    def attrs(self, obj: object, *names: str) -> None:
        """About to assign several attributes of ``obj``."""
        self.log((_set_attrs, obj, names, [getattr(obj, name) for name in names]))

    def item(self, items: list[Any], index: int) -> None:
        """About to assign ``items[index]``."""
        self.log((items.__setitem__, index, items[index]))

    def items(self, items: list[Any], indices: list[int]) -> None:
        """About to assign ``items[index]`` for any of ``indices``, a list that must stay as it is."""
        self.log((_set_items, items, indices, [items[index] for index in indices]))

    def key(self, mapping: dict[Any, Any], key: object) -> None:
        """About to set or delete ``mapping[key]``."""
        if key in mapping:
            self.log((mapping.__setitem__, key, mapping[key]))
        else:
            self.log((mapping.pop, key, None))

    def length(self, items: list[Any]) -> None:
        """About to append to ``items``."""
        self.log((_truncate, items, len(items)))

    def append(self, items: list[Any] | deque[Any], item: object) -> None:
        """About to append ``item`` itself (not an equal one) to a list or deque."""
        self.log((_remove_last, items, item))

    def rollback(self) -> None:
        """Restore everything logged since the last commit, newest first."""
        entries = self._entries
        while entries:
            restore, *arguments = entries[-1]
            restore(*arguments)
            entries.pop()

    def commit(self) -> None:
        """Keep the changes."""
        self._entries.clear()
