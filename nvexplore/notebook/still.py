"""An image of one moment: the last steps' schedule above a map of the blocks. Knows no widget and no Jupyter."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from nvexplore.explore.frames import schedule
from nvexplore.explore.plots import plot_schedule
from nvexplore.explore.plots._figure import BLUE, LIGHT, ORANGE, SKY, legend_above
from nvexplore.explore.recorder import Recorder

WIDTH, BELOW, DPI = 7.6, 0.45, 80
"""Inches: of the image, and below each part for the words of its axis."""
MAX_STEPS, MAX_ROWS = 64, 24
"""Steps and sequences of the schedule; of more the last ones are drawn."""
MAX_CELLS = 50_000
"""Cells of the map: of a larger pool each stands for several blocks. Nor is its schedule drawn, which needs a copy."""
STATES = {"free": LIGHT, "cached": ORANGE, "used": SKY, "shared": BLUE}
Codes = NDArray[np.uint8]
Image = NDArray[np.uint8]


def draw(step: int, states: Codes, recorder: Recorder, parts: tuple[str, ...]) -> bytes | None:
    """A PNG of ``parts`` ("schedule", "blocks") right after ``step``; None where nothing is left to be drawn.

    states: of each block its place in ``STATES``.
    """
    panels: list[tuple[float, float, Callable[[Axes], object]]] = []  # room above it and its height, in inches
    frame = _last_steps(step, recorder) if "schedule" in parts and len(states) <= MAX_CELLS else None
    if frame is not None:
        panels.append((0.55, 0.35 + 0.16 * max(5, frame["seq_id"].nunique()), lambda ax: plot_schedule(frame, ax)))
    if "blocks" in parts:
        pixels, a_cell = block_map(states)
        height = 0.9 * WIDTH * pixels.shape[0] / pixels.shape[1]
        panels.append((0.35, height, lambda ax: _draw_blocks(ax, step, states, pixels, a_cell)))
    if not panels:
        return None
    total = top = sum(above + height + BELOW for above, height, _ in panels)
    # Placed by hand: a layout engine would draw everything twice.
    figure = Figure(figsize=(WIDTH, total), dpi=DPI)
    for above, height, paint in panels:
        top -= above + height
        paint(figure.add_axes((0.07, top / total, 0.9, height / total)))
        top -= BELOW
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


def _last_steps(last: int, recorder: Recorder) -> Any:
    """The schedule frame of the kept steps that end with ``last``; None if that one is not kept."""
    kept = {record.step: record for record in recorder.records if last - MAX_STEPS < record.step <= last}
    first = last
    while first - 1 in kept:
        first -= 1
    if last not in kept:
        return None
    start = recorder.state_before(first).snapshot()
    frame = schedule([start, *(kept[step] for step in range(first, last + 1))])
    newest = np.unique(frame["seq_id"].to_numpy())[-MAX_ROWS:]
    return frame[frame["seq_id"].isin(newest)]


def block_map(states: Codes) -> tuple[Image, int]:
    """The map as RGB, and how many blocks a cell stands for: such a cell has the state that most of them have."""
    a_cell = math.ceil(len(states) / MAX_CELLS)
    if a_cell > 1:
        padded = np.append(states, np.full(-len(states) % a_cell, 255, np.uint8)).reshape(-1, a_cell)
        states = np.stack([(padded == code).sum(axis=1) for code in range(len(STATES))]).argmax(axis=0).astype(np.uint8)
    columns = next((c for c in (16, 32, 48, 64, 96, 128) if len(states) <= c * c / 3), 300)
    rows = math.ceil(len(states) / columns)
    side = max(1, min(36, 600 // columns))
    colours = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (*STATES.values(), "#FFFFFF")], np.uint8)
    cells = np.append(states, np.full(rows * columns - len(states), len(STATES), np.uint8)).reshape(rows, columns)
    pixels = colours[cells].repeat(side, axis=0).repeat(side, axis=1)
    if side >= 4:  # a pattern beside the colour, and a gap between the cells
        codes = cells.repeat(side, axis=0).repeat(side, axis=1)
        y, x = np.indices(codes.shape)
        pixels[(codes == 1) & ((x + y) % 6 < 2)] = 255
        pixels[(codes == 3) & ((x - y) % 6 < 2)] = colours[2]
        pixels[(x % side == 0) | (y % side == 0)] = 255
    return pixels, a_cell


def _draw_blocks(ax: Axes, step: int, states: Codes, pixels: Image, a_cell: int) -> None:
    ax.imshow(pixels, interpolation="nearest", aspect="auto")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    counts = np.bincount(states, minlength=len(STATES))
    hatches = ("", "////", "", "\\\\\\\\")
    labels = zip(STATES.items(), counts, hatches, strict=True)
    legend_above(
        ax,
        [
            Patch(facecolor=colour, edgecolor="white", hatch=hatch, linewidth=0, label=f"{name} {count:,}")
            for (name, colour), count, hatch in labels
        ],
    )
    many = f"; a cell is {a_cell:,} blocks" if a_cell > 1 else ""
    ax.set_xlabel(f"{len(states):,} KV blocks after step {step:,}, row by row{many}")
