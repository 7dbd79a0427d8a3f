"""Frames and plots of a recording by their names. Knows no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from nvexplore.explore.recorder import Recorder

FRAMES = ("steps", "sequences", "blocks", "slots", "prefix_hits", "schedule")
OF_ONE_STEP = ("blocks", "slots")
# The frame that each plot draws.
PLOTS = {"memory": "steps", "throughput": "steps", "schedule": "schedule"}


def frame(recorder: Recorder, name: str, step: int | None = None) -> pd.DataFrame:
    """One of nvexplore.explore.frames; ``step`` is for those of one step (the last recorded by default)."""
    from nvexplore.explore import frames

    if name not in FRAMES:
        raise ValueError(f"no frame {name!r}: there are {', '.join(FRAMES)}")
    if step is not None and name not in OF_ONE_STEP:
        raise ValueError(f"step={step}: only {' and '.join(OF_ONE_STEP)} are of one step, {name} is of all")
    found: pd.DataFrame = getattr(frames, name)(recorder, **({} if step is None else {"step": step}))
    return found


def plot(recorder: Recorder, name: str) -> Figure:
    """One of nvexplore.explore.plots over all that was recorded, as a figure that a notebook shows."""
    from nvexplore.explore import plots

    if name not in tuple(PLOTS):  # anything can be compared, and not everything hashed
        raise ValueError(f"no plot {name!r}: there are {', '.join(PLOTS)}")
    figure: Figure = getattr(plots, f"plot_{name}")(frame(recorder, PLOTS[name])).figure
    return figure
