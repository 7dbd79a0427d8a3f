"""What a picture of a view is made of: panels that stand under each other, each drawn on axes of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from nvexplore.engine.events import StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook.summary import printable, shortened

MAX_CELLS = 50_000
"""Blocks of a pool whose states at several steps are drawn: of a larger one a picture would take a copy."""
LINE = 0.19
"""Inches that a line of words is high."""
DARK, DIM = "#222222", "#5A5A5A"
Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class Scene:
    """One moment. states: of each block its place in ``still.STATES``. told: the answer to the view's own question."""

    step: int
    states: Codes
    recorder: Recorder
    told: dict[str, Any] = field(default_factory=dict)

    def last_records(self, most: int) -> list[StepRecord]:
        """The kept records that end with the step and follow each other, oldest first; none if it is not kept."""
        return [r for r in self.recorder.stretch_of(self.step) if self.step - most < r.step <= self.step]


class Panel(NamedTuple):
    """above, below: room around the axes. height: of the axes. All in inches. left: where they begin, 0-1."""

    above: float
    height: float
    paint: Callable[[Axes], object]
    left: float = 0.07
    below: float = 0.45


def cleared(ax: Axes, num_lines: float) -> None:
    """Make ``ax`` a sheet without a frame, from line 0 at the top to ``num_lines``, and x from 0 to 1."""
    ax.set_axis_off()
    ax.set_xlim(0, 1)
    ax.set_ylim(num_lines, 0)


def write(ax: Axes, x: float, line: float, text: str, **style: Any) -> None:
    """One line of words, whose middle is at ``line``. A text from outside stays as it is: no formula is read in it."""
    style = {"va": "center", "fontsize": 8, "color": DARK, **style}
    ax.text(x, line, text, parse_math=False, **style)


def one_line(text: str, length: int) -> str:
    """``text`` as it can be drawn on one line of at most ``length`` characters."""
    return shortened(printable(text), length)
