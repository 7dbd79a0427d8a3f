"""Figures and colours that all plots share. Changes no global state: no pyplot, no rcParams, no backend."""

from __future__ import annotations

import io
import math
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito: these can be told apart with every common kind of colour blindness.
ORANGE = "#E69F00"
SKY = "#56B4E9"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#777777"
LIGHT = "#E2E2E2"

COLOURS: Final = {
    "prefill": "#2A78B8",
    "decode": "#1A9A76",
    "preempted": "#CF5A12",
    "waiting": "#B4BCC6",
    "idle": "#C9D0D8",
    "free": "#EEF1F4",
    "cached": "#E8A33A",
    "used": "#4F9FD6",
    "shared": "#B35C93",
}
"""What a colour means, in every plot and in every view: these are those of a light page in widgets/paint.js."""

MIN_STEPS = 10
"""A run shorter than this is drawn as if on its way there, so that one step does not fill the whole width."""


class NotebookFigure(Figure):
    """A Figure that any notebook shows as the value of a cell, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=self.dpi)
        return buffer.getvalue()


def new_axes(width: float = 8.0, height: float = 3.6) -> Axes:
    """The axes of a new figure, in inches."""
    return NotebookFigure(figsize=(width, height), dpi=100, layout="constrained").add_subplot()


def step_axis(ax: Axes, first: int, last: int) -> None:
    """Make x an axis of steps, each from step - 0.5 to step + 0.5."""
    ax.set_xlabel("step")
    ax.set_xlim(first - 0.5, max(last, first + MIN_STEPS - 1) + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def legend_above(ax: Axes, handles: list[Any]) -> None:
    """A legend over the axes, where it covers no data."""
    if handles:
        # In inches, at this font size; what does not fit into one line is broken into several.
        needed = sum(0.42 + 0.064 * len(str(handle.get_label())) for handle in handles)
        num_lines = math.ceil(needed / (ax.bbox.width / ax.figure.dpi))
        ax.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.01),
            ncols=math.ceil(len(handles) / num_lines),
            frameon=False,
            borderaxespad=0.2,
            fontsize="small",
            handlelength=1.3,
            handletextpad=0.5,
            columnspacing=1.2,
        )


def say_nothing_recorded(ax: Axes) -> None:
    """What an empty frame looks like."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, "no steps recorded", transform=ax.transAxes, ha="center", va="center", color="#707070")


def check_columns(frame: Any, needed: tuple[str, ...], name: str) -> None:
    """Raise ValueError naming the columns that are missing from a frame that should be ``name``'s."""
    missing = [column for column in needed if column not in frame]
    if missing:
        raise ValueError(f"the frame lacks {', '.join(missing)}: this plot takes the frame of nvexplore's {name}()")
