"""The last steps of a run, in columns that a browser reads without a loop over sequences. Knows no widget.

A column is one step: a head of numbers, and an entry for each sequence that ran or was preempted in it. The other
states of a row (waiting, resident but idle, gone) follow from these and are not repeated step after step.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from nvexplore.engine.events import Preempted, StepRecord

PREFILL, RECOMPUTE, DECODE, PREEMPTED = 1, 2, 3, 4
"""What an entry tells. RECOMPUTE is a prefill chunk with tokens that a preemption had thrown away."""
ADMITTED, SAMPLES = 16, 32
"""Flags of an entry: the sequence left the waiting queue in this step; the step gave it a token."""
PLANNED_AHEAD, GRAPH, EAGER = 1, 2, 4
"""Flags of a step: planned while the one before ran; one CUDA graph; launched without one though graphs are in use."""
NO_GRAPHS = (None, "cpu", "enforce_eager")
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Column:
    """One step. count: tokens of the entry; of a preemption, its victim's lost tokens (start: who caused it)."""

    step: int
    head: tuple[int, ...]
    seq_id: list[int]
    kind: list[int]
    start: list[int]
    count: list[int]

    @cached_property
    def packed(self) -> bytes:
        """The entries as int32, one list after the other; made at the first use, since many columns are never sent."""
        return array("i", [*self.seq_id, *self.kind, *self.start, *self.count]).tobytes()


class Timeline:
    """The newest ``max_steps`` columns, fewer if they have more than ``max_entries`` entries together."""

    def __init__(self, max_steps: int, max_entries: int) -> None:
        self.max_steps, self.max_entries = max_steps, max_entries
        self.columns: deque[Column] = deque()
        self._num_entries = 0
        # Tokens of a preempted sequence that had been computed once: below this position a chunk computes again.
        self._lost: dict[int, int] = {}

    def append(self, record: StepRecord) -> None:
        """Add one step's column."""
        column = self._column(record)
        self.columns.append(column)
        self._num_entries += len(column.seq_id)
        while len(self.columns) > 1 and (len(self.columns) > self.max_steps or self._num_entries > self.max_entries):
            self._num_entries -= len(self.columns.popleft().seq_id)

    def clear(self) -> None:
        """Forget the columns: what comes next does not follow them."""
        self.columns.clear()
        self._num_entries = 0

    def since(self, step: int) -> Iterator[Column]:
        """The columns of ``step`` and of the steps after it, oldest first."""
        newer = len(self.columns)
        while newer and self.columns[newer - 1].step >= step:
            newer -= 1
        return (self.columns[i] for i in range(newer, len(self.columns)))

    def _column(self, record: StepRecord) -> Column:
        planned = record.planned
        preempted: list[list[int]] = [[], [], [], []]
        self._preempted(record.before.preempted, preempted)  # a step that failed did this, before the plan
        kinds, recomputed = self._kinds(record)
        self._preempted(planned.preempted, preempted)
        prefill = 0
        if True in planned.is_prefill:  # most steps have none
            prefill = sum(count for count, is_one in zip(planned.count, planned.is_prefill, strict=True) if is_one)
        times = record.committed
        head = (
            record.step,
            prefill - recomputed,
            recomputed,
            sum(planned.count) - prefill,
            planned.max_num_batched_tokens,
            planned.num_free_blocks,
            planned.num_running,
            planned.num_waiting,
            min(LARGEST, (times.plan_ns + times.run_ns + times.commit_ns) // 1000),
            min(LARGEST, int(record.time * 1000)),
            _flags(record),
        )
        seq_id, kind, start, count = preempted
        return Column(
            record.step,
            (*head, len(seq_id) + len(kinds)),
            seq_id + planned.seq_id,
            kind + kinds,
            start + planned.start,
            count + planned.count,
        )

    def _kinds(self, record: StepRecord) -> tuple[list[int], int]:
        """Each scheduled row's kind and flags, and how many tokens of the step are computed again."""
        planned = record.planned
        if True not in planned.is_prefill:
            return [DECODE | SAMPLES] * len(planned.seq_id), 0
        admitted = set(planned.admitted.seq_id)
        kinds, again = [], 0
        for row, seq_id in enumerate(planned.seq_id):
            kind = PREFILL if planned.is_prefill[row] else DECODE
            lost = self._lost.get(seq_id, 0) - planned.start[row]
            if lost > 0 and kind == PREFILL:
                kind = RECOMPUTE
                again += min(lost, planned.count[row])
                if planned.count[row] >= lost:
                    del self._lost[seq_id]
            kinds.append(kind | (ADMITTED if seq_id in admitted else 0) | (SAMPLES if planned.samples[row] else 0))
        return kinds, again

    def _preempted(self, events: Preempted, columns: list[list[int]]) -> None:
        for seq_id, cause, num_lost in zip(events.seq_id, events.cause, events.num_lost, strict=True):
            self._lost[seq_id] = max(num_lost, self._lost.get(seq_id, 0))
            for column, value in zip(columns, (seq_id, PREEMPTED, cause, num_lost), strict=True):
                column.append(value)

    def forget(self, seq_id: int) -> None:
        """The sequence has left the engine."""
        self._lost.pop(seq_id, None)


def _flags(record: StepRecord) -> int:
    planned = record.planned
    flags = PLANNED_AHEAD if planned.is_ahead else 0
    if planned.graph_size is not None:
        return flags | GRAPH
    return flags if planned.eager_reason in NO_GRAPHS else flags | EAGER
