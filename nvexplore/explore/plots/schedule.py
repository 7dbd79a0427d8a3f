"""The plot of what each sequence did in each step. Takes the ``schedule`` frame and knows no record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nvexplore.explore.plots._figure import (
    COLOURS,
    check_columns,
    legend_above,
    new_axes,
    say_nothing_recorded,
    step_axis,
)

NEEDED = ("step", "num_steps", "seq_id", "phase", "num_tokens")
# phase: colour, hatch, height of the cell where a row is 1 high
CELLS = {
    "waiting": (COLOURS["waiting"], None, 0.36),
    "idle": (COLOURS["idle"], None, 0.16),
    "prefill": (COLOURS["prefill"], None, 0.84),
    "recompute": (COLOURS["preempted"], "////", 0.84),
    "decode": (COLOURS["decode"], None, 0.6),
}
EDGES = {"recompute": COLOURS["prefill"]}  # and of its stripes: prefill of what a preemption threw away; else white
# event: marker, colour (None: that of the text), which edge of the step it stands on
MARKS = {
    "preempted": ("v", COLOURS["preempted"], -0.5),
    "finished": ("|", None, 0.5),
    "aborted": ("x", COLOURS["preempted"], -0.5),
}
# Up to these sizes the single steps and the tokens of each prefill can be told apart.
DETAIL_STEPS = 40
DETAIL_ROWS = 24


def plot_schedule(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw a row a sequence and a column a step: waiting, idle, prefill, recompute, decode, and what ended them.

    frame: ``schedule``. Rows are in order of seq_id; numbers in cells (of a small run) are tokens prefilled.

    Without ``ax`` a new Figure is made outside of pyplot: end a cell with ``plot_schedule(...).figure`` to show it.
    """
    check_columns(frame, NEEDED, "schedule")
    seq_ids = np.unique(frame["seq_id"].to_numpy())
    if ax is None:
        ax = new_axes(height=min(1.3 + 0.22 * max(len(seq_ids), 5), 8.0))
    ax.set_xlabel("step")
    ax.set_ylabel("seq_id")
    if frame.empty:
        say_nothing_recorded(ax)
        return ax
    step, num_steps, seq_id = (frame[name].to_numpy() for name in NEEDED[:3])
    row, phase = np.searchsorted(seq_ids, seq_id), frame["phase"].to_numpy()
    first, last = int(step.min()), int((step + num_steps).max()) - 1
    is_detailed = last - first < DETAIL_STEPS and len(seq_ids) <= DETAIL_ROWS
    handles: list[Artist] = []
    for name, (colour, hatch, height) in CELLS.items():
        chosen = phase == name
        if not chosen.any():
            continue
        cells = row[chosen], step[chosen], step[chosen] + num_steps[chosen]
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": EDGES.get(name, "white"), "hatch": hatch}
        corners = _corners(*(cells if is_detailed else merged(*cells)), height)
        ax.add_collection(PolyCollection(corners, linewidth=0.5 if is_detailed else 0, **style), autolim=False)
        handles.append(Patch(label=name, linewidth=0, **style))
        if is_detailed and name in ("prefill", "recompute"):
            for y, x, num_tokens in zip(*cells[:2], frame["num_tokens"].to_numpy()[chosen], strict=True):
                text = ax.text(x, y, num_tokens, ha="center", va="center", fontsize=6.5, weight="bold")
                text.set_color("white" if name == "prefill" else "black")
                text.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 0.6})
    for name, (marker, mark_colour, side) in MARKS.items():
        chosen = phase == name
        if chosen.any():
            (marks,) = ax.plot(step[chosen] + side, row[chosen], linestyle="none", marker=marker, label=name)
            marks.set_color(mark_colour or ax.xaxis.label.get_color())
            marks.set_markersize(_mark_size(ax, len(seq_ids)))
            handles.append(marks)
    step_axis(ax, first, last)
    ax.set_ylim(len(seq_ids) - 0.5, -0.5)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _label(seq_ids, y)))
    legend_above(ax, handles)
    return ax


def merged(row: Any, start: Any, end: Any) -> tuple[Any, Any, Any]:
    """The same cells as (row, start, end) where those that touch in a row are one."""
    order = np.lexsort((start, row))
    row, start, end = row[order], start[order], end[order]
    is_new = np.append(True, (row[1:] != row[:-1]) | (start[1:] != end[:-1]))
    is_last = np.append(is_new[1:], True)
    return row[is_new], start[is_new], end[is_last]


def _corners(row: Any, start: Any, end: Any, height: float) -> Any:
    left, right, top, bottom = start - 0.5, end - 0.5, row - height / 2, row + height / 2
    x = np.stack([left, right, right, left], axis=1)
    y = np.stack([top, top, bottom, bottom], axis=1)
    return np.stack([x, y], axis=2)


def _mark_size(ax: Axes, num_rows: int) -> float:
    """In points: as high as a row, between what can be seen and what does not shout."""
    points_a_row = ax.bbox.height / ax.figure.dpi * 72 / num_rows
    return min(max(0.6 * points_a_row, 2.5), 7.0)


def _label(seq_ids: Any, y: float) -> str:
    return str(seq_ids[round(y)]) if 0 <= y < len(seq_ids) and y == round(y) else ""
