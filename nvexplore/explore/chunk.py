"""Pieces of a recording, each with a snapshot to start from, made when it is first needed. Knows no bound."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import State

Segment = tuple[Snapshot, list[StepRecord]]


class Chunk:
    """Some records without a gap.

    snapshot: the state before the first; None until somebody needs it. follows: the first continues the chunk before.
    """

    __slots__ = ("first_step", "follows", "records", "snapshot")

    def __init__(self, first_step: int, snapshot: Snapshot | None, *, follows: bool = False) -> None:
        self.first_step = first_step
        self.snapshot = snapshot
        self.follows = follows
        self.records: list[StepRecord] = []

    @property
    def next_step(self) -> int:
        return self.first_step + len(self.records)


def folded(state: State, records: Iterable[StepRecord]) -> State:
    """``state`` itself, with the records applied."""
    for record in records:
        state.apply(record)
    return state


def snapshot_of(chunks: list[Chunk], index: int) -> Snapshot:
    """The snapshot of ``chunks[index]``; made now, with those before it that are missing, if it was not there.

    The first chunk, and one that does not follow, must have theirs.
    """
    start = next(i for i in range(index, -1, -1) if chunks[i].snapshot is not None)
    snapshot = chunks[start].snapshot
    assert snapshot is not None
    if start < index:
        state = State(snapshot)
        for chunk, following in pairwise(chunks[start : index + 1]):
            snapshot = following.snapshot = folded(state, chunk.records).snapshot()
    return snapshot


def segments_of(chunks: Iterable[Chunk]) -> list[Segment]:
    """(snapshot, the records that continue it), in lists of their own: chunks that follow each other are one."""
    found: list[Segment] = []
    for chunk in chunks:
        if found and chunk.follows:
            found[-1][1].extend(chunk.records)
        else:
            assert chunk.snapshot is not None  # the first chunk, and one that does not follow
            found.append((chunk.snapshot, list(chunk.records)))
    return found
