"""Past steps, made again from what the recorder keeps: mirrors of them, and frames. Knows no Jupyter and no page."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from nvexplore.engine.events import StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook.messages import Message, Writer
from nvexplore.notebook.mirror import Ended, Mirror
from nvexplore.notebook.timeline import Timeline

WINDOW = 64
"""The columns around a step that lies before those a page has begin and end at multiples of so many steps."""
KEPT = 2
"""Mirrors that are kept: a page asks several things about one step, and a large pool takes a tenth of a second."""


@dataclass(frozen=True)
class Known:
    """What the live mirror knows that a recorder does not keep.

    first_column: the oldest step that a page has a column of; None: it has none.
    """

    born: dict[int, int] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    first_column: int | None = None

    @classmethod
    def of(cls, mirror: Mirror) -> Known:
        columns = mirror.timeline.columns
        return cls(dict(mirror.born), dict(mirror.ended), columns[0].step if columns else None)


class Past:
    """The kept steps of one recorder. limits: as a ``Mirror`` has them."""

    def __init__(self, recorder: Recorder, limits: dict[str, int]) -> None:
        self.recorder, self.limits = recorder, limits
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[int, bool], Mirror] = OrderedDict()

    def check(self, step: int) -> None:
        """Raise ValueError, which names what is kept, for a step that is not."""
        first, last = self.recorder.first_step, self.recorder.last_step
        if first is None or last is None:
            raise ValueError(f"step {step} can't be shown: nothing has been recorded yet")
        if step < first:
            raise ValueError(f"step {step} is no longer kept; the oldest is {first}")
        if step > last:
            raise ValueError(f"step {step} has not been made yet; the newest is {last}")
        self.recorder.record_of(step)  # a gap

    def mirror(self, step: int, known: Known) -> Mirror:
        """The mirror as it was right after ``step``; not to be changed. ValueError for a step that is not kept."""
        self.check(step)
        is_far = known.first_column is None or step < known.first_column
        with self._lock:
            mirror = self._kept.pop((step, is_far), None)
            if mirror is None:
                mirror = self._far(step) if is_far else self._from(step, step)
                if not is_far:
                    mirror.timeline.clear()  # a page has these columns
                self._complete(mirror, step, known)
            self._kept[step, is_far] = mirror
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return mirror

    def frame(self, step: int, known: Known, run: int) -> Message:
        """A frame as it would have been sent right after ``step``; with columns only where a page has none of it."""
        return Writer(self.mirror(step, known), run).frame(0)

    def block_tokens(self, block: int, mirror: Mirror) -> list[int] | None:
        """The token ids whose KV a block held then; None if it was filled before the oldest kept step."""
        tokens = mirror.block_tokens(block)
        if tokens is not None:
            return tokens
        for record in reversed(self._records(0, mirror.state.step)):
            if _hashes(record, block):
                return self._from(record.step, record.step).block_tokens(block)
        return None

    def _records(self, start: int, end: int) -> list[StepRecord]:
        """The kept records of the steps from ``start`` up to ``end``, that one not included."""
        return [record for record in self.recorder.records if start <= record.step < end]

    def _from(self, first: int, step: int) -> Mirror:
        """A mirror that began before ``first`` and has followed up to ``step``."""
        mirror = Mirror(self.recorder.state_before(first), **self.limits)
        for number in range(first, step + 1):
            mirror.apply(self.recorder.record_of(number))
        return mirror

    def _far(self, step: int) -> Mirror:
        """The same with the columns around ``step``, later ones too: a page draws them beside the cursor."""
        first = (step // WINDOW - 1) * WINDOW
        stretch = self._stretch_around(step, first, first + 3 * WINDOW)
        mirror = self._from(stretch[0].step, step)
        mirror.timeline = timeline = Timeline(self.limits["max_steps"], self.limits["max_entries"])
        # What was lost to a preemption before decides what is computed again in these steps.
        for record in self._records(0, stretch[0].step):
            if record.before.preempted.number or record.planned.preempted.number:
                timeline.append(record)
        timeline.clear()
        entries, end = timeline.max_entries // 2, step + timeline.max_steps // 2
        for record in stretch:
            # Later columns drive the oldest ones out: not so many that the step's own would go.
            entries -= _num_entries(record) if record.step > step else 0
            if record.step <= step or (entries >= 0 and record.step <= end):
                timeline.append(record)
        return mirror

    def _stretch_around(self, step: int, start: int, end: int) -> list[StepRecord]:
        """The records from ``start`` to ``end`` that follow each other without a gap and have ``step`` among them."""
        return [record for record in self.recorder.stretch_of(step) if start <= record.step < end]

    def _complete(self, mirror: Mirror, step: int, known: Known) -> None:
        """Add when each sequence came, and who had ended before."""
        before = {seq_id: ended for seq_id, ended in known.ended.items() if ended.step <= step}
        ended = {seq_id: one for seq_id, one in mirror.ended.items() if seq_id not in before} | before
        mirror.ended = OrderedDict(islice(ended.items(), max(0, len(ended) - mirror.max_finished), None))
        unborn = [seq_id for seq_id in (*mirror.state.sequences, *mirror.ended) if seq_id not in known.born]
        born = known.born if not unborn else self._births(step) | known.born
        oldest = self.recorder.first_step or 0
        mirror.born = {seq_id: born.get(seq_id, oldest) for seq_id in (*mirror.state.sequences, *mirror.ended)}

    def _births(self, step: int) -> dict[int, int]:
        records = self._records(0, step + 1)
        return {seq_id: record.step for record in records for seq_id in record.before.added.seq_id}


def _num_entries(record: StepRecord) -> int:
    planned = record.planned
    return sum(map(len, (planned.seq_id, planned.preempted.seq_id, record.before.preempted.seq_id)))


def _hashes(record: StepRecord, block: int) -> bool:
    """Whether the record has the block become full and cached."""
    for events in (record.before.blocks, record.planned.blocks, record.committed.blocks):
        if block in events.block_id:
            rows = zip(events.kind, events.block_id, strict=True)
            if any(kind == "hashed" and block_id == block for kind, block_id in rows):
                return True
    return False
