"""Where a stop string ends a text, and what may yet become one. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """A stop string in a text: where it begins, and which."""

    start: int
    stop: str


def first_match(text: str, stops: Sequence[str], after: int = 0) -> Match | None:
    """The stop string that is complete first, reading from left to right; of those, the longest.

    Only those count that end behind position ``after``.
    """
    found: list[tuple[int, int, str]] = []
    for stop in stops:
        start = text.find(stop, max(0, after - len(stop) + 1))
        if start >= 0:
            found.append((start + len(stop), start, stop))
    if not found:
        return None
    _, start, stop = min(found)
    return Match(start, stop)


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a stop string."""
    most = min(len(text), max(map(len, stops), default=1) - 1)
    return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)
