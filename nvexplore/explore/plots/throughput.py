"""The plot of tokens a second. Takes the ``steps`` frame and knows no record."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from nvexplore.explore.plots._figure import (
    COLOURS,
    check_columns,
    legend_above,
    new_axes,
    say_nothing_recorded,
)

Array = NDArray[np.float64]
NEEDED = ("time_s", "num_prefill_tokens", "num_decode_tokens", "work_us")
MAX_BINS = 80
STEPS_A_BIN = 4


def plot_throughput(frame: pd.DataFrame, ax: Axes | None = None, *, clock: str = "wall") -> Axes:
    """Draw prefill and decode tokens a second over time.

    frame: ``steps``.
    clock: "wall", seconds since the engine started; "busy", seconds spent in steps, which leaves out the pauses
    between them (of somebody who steps by hand).

    Smoothing: time is cut into equal bins, one for every 4 steps and 80 at most. A step's tokens count as evenly
    spread over the time it took (its plan, run and commit, of a step that overlaps with the one before what came after
    that; where these are not recorded, the time since the step before), so the area under a curve is its number of
    tokens.

    Without ``ax`` a new Figure is made outside of pyplot: end a cell with ``plot_throughput(...).figure`` to show it.
    """
    check_columns(frame, NEEDED, "steps")
    if clock not in ("wall", "busy"):
        raise ValueError(f"clock={clock!r}: must be 'wall' or 'busy'")
    if ax is None:
        ax = new_axes()
    ax.set_xlabel("time since the engine started (s)" if clock == "wall" else "time spent in steps (s)")
    ax.set_ylabel("tokens/s")
    if frame.empty:
        say_nothing_recorded(ax)
        return ax
    begin, end = intervals(frame, clock)
    edges = np.linspace(begin.min(), end.max(), num_bins(len(frame)) + 1)
    handles = []
    for label, name, style in (("prefill", "num_prefill_tokens", "--"), ("decode", "num_decode_tokens", "-")):
        tokens = frame[name].to_numpy()
        rate = binned_rate(begin, end, tokens, edges)
        mean = tokens.sum() / (edges[-1] - edges[0])
        ax.stairs(rate, edges, color=COLOURS[label], fill=True, alpha=0.15, linewidth=0)
        line = ax.stairs(rate, edges, color=COLOURS[label], linestyle=style, linewidth=1.5)
        line.set_label(f"{label}: {tokens.sum():,} tokens, {mean:,.{0 if mean >= 10 else 1}f}/s on average")
        handles.append(line)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    legend_above(ax, handles)
    return ax


def num_bins(num_steps: int) -> int:
    """How many bins a run of that many steps is drawn in."""
    return min(MAX_BINS, max(1, num_steps // STEPS_A_BIN))


def intervals(frame: pd.DataFrame, clock: str) -> tuple[Array, Array]:
    """When each step began and ended, in seconds, none before the end of the last; each lasts a nanosecond at least."""
    end = frame["time_s"].to_numpy(dtype=np.float64)
    took = frame["work_us"].to_numpy(dtype=np.float64) / 1e6
    took = np.where(took > 0, took, np.diff(end, prepend=end[0]))
    took = np.maximum(took, 1e-9)
    if clock == "busy":
        end = np.cumsum(took)
    return end - took, end


def binned_rate(begin: Array, end: Array, tokens: Array, edges: Array) -> Array:
    """Mean tokens a second in each bin, of tokens spread evenly from ``begin`` to ``end``."""
    # The number of tokens run by time t is piecewise linear: its slope changes where a step begins or ends.
    times = np.concatenate([begin, end])
    slope = np.concatenate([tokens / (end - begin), -tokens / (end - begin)])
    order = np.argsort(times, kind="stable")
    times, rate = times[order], np.cumsum(slope[order])
    done = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(times))])
    return np.asarray(np.diff(np.interp(edges, times, done)) / np.diff(edges), dtype=np.float64)
