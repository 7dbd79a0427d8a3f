"""Figures of the hot path: where the time of steps goes, what a step consists of, padding. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from nvexplore.bench.hot_path_census import KINDS, REST
from nvexplore.bench.hot_path_results import HotPath
from nvexplore.explore.plots._figure import BLUE, GREY, LIGHT, ORANGE, PURPLE, SKY, VERMILLION, NotebookFigure

SMALL: Final = 8.5
GREEN: Final = "#009E73"  # Okabe and Ito's
PHASES: Final[dict[str, dict[str, Any]]] = {
    "plan": {"facecolor": BLUE},
    "launch": {"facecolor": ORANGE, "hatch": "////"},
    "wait": {"facecolor": LIGHT},
    "commit": {"facecolor": PURPLE, "hatch": "\\\\\\\\"},
}
DEVICE: Final = (SKY, "#A6D8F4")  # step and next step
KIND_COLOURS: Final = dict(zip((*KINDS, REST), (VERMILLION, ORANGE, SKY, PURPLE, GREEN, BLUE, GREY), strict=True))


def plot_timeline(hot: HotPath, names: Sequence[str], *, num_steps: float = 5) -> Figure:
    """What the host and the device did and when, a panel a variant; all over the time of ``num_steps`` of the first.

    The steps are from the middle of those that decode all rows. Numbers are those of steps.
    """
    figure = NotebookFigure(figsize=(9.0, 1.25 + 1.3 * len(names)), dpi=100, layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(names), sharex=True))
    width = num_steps * hot.variants[names[0]].steps.medians()["wall_us"] / 1e3
    for ax, name in zip(panels, names, strict=True):
        _draw_timeline(ax, hot.variants[name].steps.frame(), width)
        ax.set_title(name, fontsize="medium", loc="left")
    panels[-1].set_xlabel(f"milliseconds ({hot.device})")
    handles = [Patch(label=f"host: {phase}", edgecolor="white", linewidth=0, **s) for phase, s in PHASES.items()]
    device = Patch(label="device: from the batch's arrival to the ids", facecolor=DEVICE[0])
    _legend(figure, [*handles, device])
    return figure


def _draw_timeline(ax: Axes, frame: pd.DataFrame, width: float) -> None:
    decodes = frame[~frame["is_prefill"]]
    full = decodes[decodes["rows"] == decodes["rows"].max()]
    zero = full["plan_at"].iloc[len(full) // 3]
    at, took = ({name: frame[f"{name}_{unit}"] for name in PHASES} for unit in ("at", "us"))
    for phase, style in PHASES.items():
        spans = list(zip((at[phase] - zero) / 1e3, took[phase] / 1e3, strict=True))
        ax.broken_barh(spans, (1.1, 0.8), edgecolor="white", linewidth=0, **style)
    for begin, us, step in frame[["device_at", "device_us", "step"]].dropna().itertuples(index=False):
        left, length = (begin - zero) / 1e3, us / 1e3
        ax.broken_barh([(left, length)], (0.1, 0.8), facecolor=DEVICE[int(step) % 2], edgecolor="white", linewidth=0.5)
        if left >= 0 and left + length / 2 < width and length > width / 30:
            ax.text(left + length / 2, 0.5, f"{step:.0f}", ha="center", va="center", fontsize=SMALL, clip_on=True)
    if frame["device_us"].isna().all():
        ax.text(0.5, 0.25, "no clock of its own", transform=ax.transAxes, ha="center", va="center", fontsize=SMALL)
    ax.set_yticks([0.5, 1.5], ["device", "host"])
    ax.set_ylim(0, 2)
    ax.set_xlim(0, width)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def plot_census(hot: HotPath, names: Sequence[str]) -> Figure:
    """One decode step, kernel by kernel as its profiler saw it, a panel a variant, all over the same time.

    Colours are kinds; the legend has how many of each the first variant has, and how long they take. A variant without
    a census is passed over.
    """
    found = {name: census for name in names if (census := hot.variants[name].census) is not None}
    figure = NotebookFigure(figsize=(9.0, 1.5 + 0.72 * max(1, len(found))), dpi=100, layout="constrained")
    panels = np.atleast_1d(figure.subplots(max(1, len(found)), sharex=True))
    handles: list[Patch] = []
    for ax, (name, census) in zip(panels, found.items(), strict=False):
        frame = census.frame()
        for kind, rows in frame.groupby("kind"):
            spans = list(zip(rows["at_us"] / 1e3, rows["us"] / 1e3, strict=True))
            ax.broken_barh(spans, (0, 1), facecolor=KIND_COLOURS[str(kind)], linewidth=0)
        ax.set_title(f"{name}: {len(frame)} {census.counted}", fontsize="medium", loc="left")
        handles = handles or [
            Patch(label=f"{kind} ({row['count']:.0f}): {row['us']:,.0f} us", facecolor=KIND_COLOURS[str(kind)])
            for kind, row in census.by_kind().iterrows()
        ]
    for ax in panels:
        ax.set_yticks([])
        ax.set_ylim(0, 1)
        ax.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xlim(0, max((census.span_us for census in found.values()), default=1.0) / 1e3)
    panels[-1].set_xlabel(f"milliseconds ({hot.device})")
    _legend(figure, handles, num_columns=4)
    return figure


def plot_padding(hot: HotPath, name: str) -> Figure:
    """Rows of each step and the size of the graph that ran, and below it how long the step took on the device."""
    frame = hot.variants[name].steps.frame()
    frame = frame[~frame["is_prefill"]]
    figure = NotebookFigure(figsize=(9.0, 4.2), dpi=100, layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    edges = np.append(frame["step"], frame["step"].iloc[-1] + 1) - 0.5
    rows, size = frame["rows"].to_numpy(), frame["graph_size"].astype("float64").to_numpy()
    top.stairs(rows, edges, fill=True, facecolor=SKY, label="rows")
    if not np.isnan(size).all():
        padding = {"facecolor": "white", "edgecolor": ORANGE, "hatch": "////", "linewidth": 0}
        top.stairs(size, edges, baseline=rows, fill=True, label="padding", **padding)
        top.stairs(size, edges, baseline=None, color=VERMILLION, linewidth=1.5, label="size of the graph")
    top.set_ylabel("rows")
    top.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    top.legend(loc="upper right", frameon=False, fontsize=SMALL)
    column, whose = ("wall_us", "step to step") if frame["device_us"].isna().all() else ("device_us", "device")
    bottom.plot(frame["step"], frame[column] / 1e3, ".", color=BLUE, markersize=4)
    bottom.set_ylabel(f"ms, {whose}")
    bottom.set_ylim(0, 1.6 * float(frame[column].median()) / 1e3)
    bottom.set_xlim(edges[0], edges[-1])
    bottom.set_xlabel(f"step ({name}, {hot.device})")
    for ax in (top, bottom):
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _legend(figure: Figure, handles: Sequence[Any], num_columns: int | None = None) -> None:
    columns = num_columns or len(handles)
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=max(1, columns), frameon=False, fontsize=SMALL
    )
