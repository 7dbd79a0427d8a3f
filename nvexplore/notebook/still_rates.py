"""The pictures of the memory and the throughput view: the last kept steps, as curves."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from nvexplore.engine.events import StepRecord
from nvexplore.explore.frames import steps
from nvexplore.explore.plots import plot_memory, plot_throughput
from nvexplore.explore.step_times import own
from nvexplore.notebook.still_panel import MAX_CELLS, Panel, Scene
from nvexplore.notebook.summary import counted

MEMORY_STEPS, RATE_STEPS = 256, 1024
GB = 1e9


def memory_panel(scene: Scene) -> Panel | None:
    """The pool's blocks in the last steps; below it the ledger of the engine's memory, if there is one."""
    records = scene.last_records(MEMORY_STEPS)
    if not records or len(scene.states) > MAX_CELLS:
        return None
    frame = steps([scene.recorder.state_before(records[0].step).snapshot(), *records])

    def paint(ax: Axes) -> None:
        plot_memory(frame, ax)
        ax.set_xlabel(f"step, up to {scene.step:,}; blocks while each ran{_bytes_of(scene)}")

    return Panel(0.55, 2.6, paint, left=0.1)


def _bytes_of(scene: Scene) -> str:
    pool = (scene.told.get("ledger") or {}).get("pool")
    return f"; the pool takes {pool / GB:.2f} GB" if pool else ""


def throughput_panel(scene: Scene) -> Panel | None:
    """Tokens a second in the last steps. Needs no state, so that a pool of any size will do."""
    records = scene.last_records(RATE_STEPS + 1)  # one more tells when the first of them could begin
    if not records:
        return None
    frame = rates(records)[-RATE_STEPS:]

    def paint(ax: Axes) -> None:
        plot_throughput(frame, ax, clock="busy")
        ax.set_xlabel(f"seconds spent in the last {counted(len(frame), 'step')}, up to step {scene.step:,}")

    return Panel(0.35, 2.4, paint, left=0.12)


def rates(records: list[StepRecord]) -> pd.DataFrame:
    """Of the ``steps`` frame the columns that a plot of tokens a second takes."""
    rows, before = [], float("-inf")
    for record in records:
        is_prefill, count = np.array(record.planned.is_prefill, bool), np.array(record.planned.count, np.int64)
        tokens = int(count[is_prefill].sum()), int(count[~is_prefill].sum())
        rows.append((record.time, *tokens, own(record, before) * 1e6))
        before = record.time
    return pd.DataFrame(rows, columns=["time_s", "num_prefill_tokens", "num_decode_tokens", "work_us"])
