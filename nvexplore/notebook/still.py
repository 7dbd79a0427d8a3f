"""A picture of one moment, for where no widget is shown. Knows no widget and no Jupyter."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from nvexplore.explore.frames import schedule
from nvexplore.explore.plots import plot_schedule
from nvexplore.explore.plots._figure import COLOURS, legend_above
from nvexplore.notebook.still_panel import MAX_CELLS, Codes, Panel, Scene
from nvexplore.notebook.still_rates import memory_panel, throughput_panel
from nvexplore.notebook.still_tables import prefix_panel, slots_panel

WIDTH, DPI = 7.6, 80
"""Inches of the image, and pixels of each."""
MAX_STEPS, MAX_ROWS = 64, 24
"""Steps and sequences of the schedule; of more the last ones are drawn."""
STATES = {name: COLOURS[name] for name in ("free", "cached", "used", "shared")}
HATCHES = ("", "////", "", "\\\\\\\\")
Image = NDArray[np.uint8]


def draw(scene: Scene, parts: tuple[str, ...]) -> bytes | None:
    """A PNG of ``parts``, names of ``PANELS``, under each other; None where nothing is left to be drawn."""
    panels = [panel for part in parts if (panel := PANELS[part](scene)) is not None]
    if not panels:
        return None
    total = top = sum(panel.above + panel.height + panel.below for panel in panels)
    # Placed by hand: a layout engine would draw everything twice.
    figure = Figure(figsize=(WIDTH, total), dpi=DPI)
    for panel in panels:
        top -= panel.above + panel.height
        panel.paint(figure.add_axes((panel.left, top / total, 0.97 - panel.left, panel.height / total)))
        top -= panel.below
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # of a script that matplotlib's font has not: a box stands for each character
        warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)
        figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


def schedule_panel(scene: Scene) -> Panel | None:
    """Who ran in the last kept steps; None if the step is not kept, or the pool is so large that it takes long."""
    frame = _last_steps(scene) if len(scene.states) <= MAX_CELLS else None
    if frame is None:
        return None
    return Panel(0.55, 0.35 + 0.16 * max(5, frame["seq_id"].nunique()), lambda ax: plot_schedule(frame, ax))


def _last_steps(scene: Scene) -> Any:
    records = scene.last_records(MAX_STEPS)
    if not records:
        return None
    frame = schedule([scene.recorder.state_before(records[0].step).snapshot(), *records])
    newest = np.unique(frame["seq_id"].to_numpy())[-MAX_ROWS:]
    return frame[frame["seq_id"].isin(newest)]


def blocks_panel(scene: Scene) -> Panel:
    """The map of all blocks."""
    pixels, a_cell = block_map(scene.states)
    height = 0.9 * WIDTH * pixels.shape[0] / pixels.shape[1]
    return Panel(0.35, height, lambda ax: _draw_blocks(ax, scene.step, scene.states, pixels, a_cell))


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
    labels = zip(STATES.items(), counts, HATCHES, strict=True)
    legend_above(
        ax,
        [
            Patch(facecolor=colour, edgecolor="white", hatch=hatch, linewidth=0, label=f"{name} {count:,}")
            for (name, colour), count, hatch in labels
        ],
    )
    many = f"; a cell is {a_cell:,} blocks, in the state of most of them" if a_cell > 1 else ""
    ax.set_xlabel(f"{len(states):,} KV blocks after step {step:,}, row by row{many}")


PANELS: dict[str, Callable[[Scene], Panel | None]] = {
    "schedule": schedule_panel,
    "blocks": blocks_panel,
    "memory": memory_panel,
    "throughput": throughput_panel,
    "slots": slots_panel,
    "prefix": prefix_panel,
}
