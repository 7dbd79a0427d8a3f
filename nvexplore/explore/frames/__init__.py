"""Recorded steps as pandas DataFrames: one function a frame, one table of its columns (dtype, meaning with unit).

Each takes a Recorder, or an iterable of a Snapshot followed by StepRecords, and leaves it as it is. With nothing
recorded a frame is empty but has its columns and dtypes. Knows no engine and no notebook.
"""

from nvexplore.explore.frames._table import Column, Table
from nvexplore.explore.frames._walk import Source
from nvexplore.explore.frames.block_frame import BLOCKS, blocks
from nvexplore.explore.frames.prefix_hit_frame import PREFIX_HITS, prefix_hits
from nvexplore.explore.frames.schedule_frame import SCHEDULE, schedule
from nvexplore.explore.frames.sequence_frame import SEQUENCES, sequences
from nvexplore.explore.frames.slot_frame import SLOTS, slots
from nvexplore.explore.frames.step_frame import STEPS, steps

COLUMNS = {
    "steps": STEPS,
    "sequences": SEQUENCES,
    "blocks": BLOCKS,
    "slots": SLOTS,
    "prefix_hits": PREFIX_HITS,
    "schedule": SCHEDULE,
}
"""Frame name -> its columns, in order: name -> Column(dtype, meaning)."""

__all__ = [
    "COLUMNS",
    "Column",
    "Source",
    "Table",
    "blocks",
    "prefix_hits",
    "schedule",
    "sequences",
    "slots",
    "steps",
]
