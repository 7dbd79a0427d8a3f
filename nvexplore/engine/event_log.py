"""Collects a step's events as they happen and sorts them into columns. Decides nothing."""

from __future__ import annotations

from typing import Any

from nvexplore.engine.events import Admitted, BlockEvents, Preempted

Event = tuple[Any, ...]


class EventLog:
    """Events since the last record; ``base`` is the number of the first.

    What happens between steps (adds, aborts) is always noted, since it is rare and the next record must tell it.
    What a step does is noted only while ``active``, that is, when somebody wants the record.
    """

    __slots__ = ("active", "base", "events")

    def __init__(self) -> None:
        self.active = True
        self.base = 0
        self.events: list[Event] = []

    @property
    def next_number(self) -> int:
        return self.base + len(self.events)

    def note(self, *event: Any) -> None:
        """Note an event: its kind, then what the kind needs."""
        if self.active:
            self.events.append(event)


class Columns:
    """One phase's events, sorted into columns."""

    __slots__ = ("_blocks", "_rows")

    def __init__(self, events: list[Event], first: int) -> None:
        self._rows: dict[str, list[Event]] = {}
        self._blocks: list[Event] = []
        for number, event in enumerate(events, first):
            kind = event[0]
            if kind in _BLOCK_KINDS:
                self._blocks.append((number, *event))
            elif kind not in _MARKS:
                self._rows.setdefault(kind, []).append((number, *event[1:]))

    def of(self, kind: str, width: int) -> list[list[Any]]:
        rows = self._rows.get(kind)
        return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]

    def blocks(self) -> BlockEvents:
        if not self._blocks:
            return NO_BLOCKS
        number, kind, block_id, seq_id, hash_ = map(list, zip(*self._blocks, strict=True))
        return BlockEvents(number=number, kind=kind, block_id=block_id, seq_id=seq_id, hash=hash_)

    def preempted(self) -> Preempted:
        if "preempted" not in self._rows:
            return NO_PREEMPTED
        number, seq_id, cause, num_lost, position = self.of("preempted", 5)
        return Preempted(number=number, seq_id=seq_id, cause=cause, num_lost=num_lost, position=position)

    def admitted(self) -> Admitted:
        if "admitted" not in self._rows:
            return NO_ADMITTED
        number, seq_id, num_cached, cause, position, block_id, step = self.of("admitted", 7)
        return Admitted(
            number=number,
            seq_id=seq_id,
            num_cached_tokens=num_cached,
            miss_cause=cause,
            miss_position=position,
            miss_block_id=block_id,
            miss_step=step,
        )


# Most steps have nothing to say under most headings; these are shared, never changed.
NO_BLOCKS, NO_PREEMPTED, NO_ADMITTED = BlockEvents(), Preempted(), Admitted()

_BLOCK_KINDS = frozenset({"allocated", "hit", "freed", "evicted", "hashed"})
_MARKS = frozenset({"scheduled", "committed"})
