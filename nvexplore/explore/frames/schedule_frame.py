"""The frame of what each sequence did, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.frames._table import Column, Table, flat
from nvexplore.explore.frames._walk import Lengths, Source, as_recorder
from nvexplore.explore.lifecycle import Turn, turns

PHASE = pd.CategoricalDtype(["waiting", "idle", "prefill", "recompute", "decode", "preempted", "finished", "aborted"])
_CODE = {phase: code for code, phase in enumerate(PHASE.categories)}

SCHEDULE = Table(
    step=Column("int64", "the step; the first one of a stretch of waiting or idle steps"),
    num_steps=Column("int64", "steps in a row for which this holds: 1, or more where it waits or idles"),
    seq_id=Column("int64", "sequence"),
    phase=Column(
        PHASE,
        "waiting (in the queue), idle (resident, not scheduled), prefill, recompute (prefill of tokens lost in a "
        "preemption), decode; or an event beside these: preempted, finished, aborted (before the step)",
    ),
    num_tokens=Column("int64", "tokens it ran; 0 unless prefill, recompute or decode"),
)


@SCHEDULE.describes
def schedule(source: Source) -> pd.DataFrame:
    """A row a sequence and step it was scheduled in, a stretch it was not, or an event; by step, then seq_id.

    While it lives a sequence has exactly one of waiting, idle, prefill, recompute and decode in each kept step.

    source: a Recorder, or a Snapshot followed by StepRecords.
    """
    parts: list[tuple[Any, ...]] = []
    for snapshot, records in as_recorder(source).segments:
        parts.append(_scheduled(snapshot, records))
        unscheduled = _Unscheduled(snapshot)
        for record in records:
            unscheduled.see(record)
        parts.append(unscheduled.columns())
    if not parts:
        return SCHEDULE.frame({})
    step, num_steps, seq_id, code, num_tokens = (
        np.concatenate([np.asarray(column, dtype=np.int64) for column in columns])
        for columns in zip(*parts, strict=True)
    )
    order = np.lexsort((code, seq_id, step))
    return SCHEDULE.frame(
        {
            "step": step[order],
            "num_steps": num_steps[order],
            "seq_id": seq_id[order],
            "phase": pd.Categorical.from_codes(code[order], dtype=PHASE),
            "num_tokens": num_tokens[order],
        }
    )


def _scheduled(snapshot: Snapshot, records: list[StepRecord]) -> tuple[Any, ...]:
    """Columns of the rows that ran."""
    lengths, first_event = Lengths(snapshot), snapshot.event
    is_prefill = flat([record.planned.is_prefill for record in records], bool)
    code = np.where(is_prefill, _CODE["prefill"], _CODE["decode"])
    begin = 0
    for record in records:
        lengths.see(turns(record, first_event))
        first_event = 0
        code[[begin + row for row, _, _ in lengths.recomputed(record)]] = _CODE["recompute"]
        begin += len(record.planned.seq_id)
    num_rows = [len(record.planned.seq_id) for record in records]
    step = np.repeat(np.array([record.step for record in records], dtype=np.int64), num_rows)
    seq_id = flat([record.planned.seq_id for record in records], np.int64)
    return step, np.ones(len(step)), seq_id, code, flat([record.planned.count for record in records], np.int64)


class _Unscheduled:
    """Follows who waits, who is resident but idle, and since when."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._step = snapshot.step
        self._first_event = snapshot.event
        self._waiting = dict.fromkeys(snapshot.waiting, snapshot.step)
        self._resident = set(snapshot.running)
        self._idle: dict[int, int] = {}
        self._rows: list[tuple[int, int, int, int, int]] = []

    def see(self, record: StepRecord) -> None:
        self._step = record.step
        found = turns(record, self._first_event)
        self._first_event = 0
        for turn in found:
            if turn.kind != "finished":
                self._turn(turn)
        scheduled = record.planned.seq_id
        if len(scheduled) == len(self._resident):
            for seq_id in list(self._idle):
                self._close(self._idle, seq_id, "idle")
        else:
            self._see_idle(set(scheduled))
        for turn in found:
            if turn.kind == "finished":
                self._resident.discard(turn.seq_id)
                self._mark(turn.seq_id, "finished")

    def columns(self) -> tuple[Any, ...]:
        """Columns of all stretches and events; ends those that are still open with the last step."""
        self._step += 1
        for since, phase in ((self._waiting, "waiting"), (self._idle, "idle")):
            for seq_id in list(since):
                self._close(since, seq_id, phase)
        return tuple(zip(*self._rows, strict=True)) or ((), (), (), (), ())

    def _turn(self, turn: Turn) -> None:
        seq_id = turn.seq_id
        if turn.kind == "admitted":
            self._close(self._waiting, seq_id, "waiting")
            self._resident.add(seq_id)
            return
        if turn.kind != "added":
            self._mark(seq_id, turn.kind)
            self._close(self._waiting, seq_id, "waiting")
            self._close(self._idle, seq_id, "idle")
            self._resident.discard(seq_id)
        if turn.kind != "aborted":
            self._waiting[seq_id] = self._step

    def _see_idle(self, scheduled: set[int]) -> None:
        for seq_id in scheduled & self._idle.keys():
            self._close(self._idle, seq_id, "idle")
        for seq_id in self._resident - scheduled:
            self._idle.setdefault(seq_id, self._step)

    def _close(self, since: dict[int, int], seq_id: int, phase: str) -> None:
        """End a stretch with the step before this one."""
        first = since.pop(seq_id, self._step)
        if first < self._step:
            self._rows.append((first, self._step - first, seq_id, _CODE[phase], 0))

    def _mark(self, seq_id: int, phase: str) -> None:
        self._rows.append((self._step, 1, seq_id, _CODE[phase], 0))
