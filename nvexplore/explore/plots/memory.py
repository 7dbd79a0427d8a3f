"""The plot of block use over steps. Takes the ``steps`` frame and knows no record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from nvexplore.explore.plots._figure import (
    COLOURS,
    check_columns,
    legend_above,
    new_axes,
    say_nothing_recorded,
    step_axis,
)

NEEDED = ("step", "num_used_blocks", "num_shared_blocks", "num_free_blocks", "num_cached_blocks")


def plot_memory(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how many blocks were shared, used by one sequence, cached and free while each step ran.

    frame: ``steps``. The areas add up to the pool; ticks above them mark steps with evictions, triangles those with
    preemptions. Steps that were not recorded are left white.

    Without ``ax`` a new Figure is made outside of pyplot: end a cell with ``plot_memory(...).figure`` to show it.
    """
    check_columns(frame, (*NEEDED, "num_evicted", "num_preempted"), "steps")
    if ax is None:
        ax = new_axes()
    ax.set_xlabel("step")
    ax.set_ylabel("KV blocks")
    if frame.empty:
        say_nothing_recorded(ax)
        return ax
    step, used, shared, free, cached = (frame[name].to_numpy() for name in NEEDED)
    pool = int((used + free).max())
    x, row = _outline(step)
    bottom = np.zeros(len(x))
    handles: list[Artist] = []
    for label, height, state, hatch in (
        ("shared", shared, "shared", "\\\\\\\\"),
        ("used by one", used - shared, "used", None),
        ("cached (can be hit)", cached, "cached", "////"),
        ("free", free - cached, "free", None),
    ):
        top = bottom + height[row]
        style: dict[str, Any] = {"facecolor": COLOURS[state], "edgecolor": "white", "hatch": hatch, "linewidth": 0}
        # All edges are horizontal or vertical: without antialiasing no seam shows between the areas.
        ax.fill_between(x, bottom, top, antialiased=False, **style)
        handles.append(Patch(label=label, **style))
        bottom = top
    for label, name, marker, colour, y in (
        ("evictions", "num_evicted", "|", ax.xaxis.label.get_color(), 1.035 * pool),
        ("preemptions", "num_preempted", "v", COLOURS["preempted"], 1.085 * pool),
    ):
        count = frame[name].to_numpy()
        if count.any():
            at = step[count > 0]
            (marks,) = ax.plot(at, np.full(len(at), y), linestyle="none", marker=marker, color=colour)
            marks.set_label(f"{label} ({count.sum():,})")
            handles.append(marks)
    step_axis(ax, step[0], step[-1])
    ax.set_ylim(0, pool * 1.12)
    ticks = MaxNLocator(5, integer=True).tick_values(0, pool)
    ax.set_yticks([*(tick for tick in ticks if 0 <= tick < 0.93 * pool), pool])
    legend_above(ax, handles)
    return ax


def _outline(step: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """x of the left and the right edge of each step, NaN between steps with a gap; and the row of each x."""
    row = np.repeat(np.arange(len(step)), 2)
    x = step[row] + np.tile([-0.5, 0.5], len(step))
    gaps = 2 * np.flatnonzero(np.diff(step) > 1) + 2
    return np.insert(x, gaps, np.nan), np.insert(row, gaps, 0)
