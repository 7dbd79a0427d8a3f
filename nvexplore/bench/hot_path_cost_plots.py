"""Figures of what the hot path costs: memory, the distance to what memory allows, and one way beside the others."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from nvexplore.bench.hot_path_plots import GREEN, SMALL
from nvexplore.bench.hot_path_results import HotPath, Variant
from nvexplore.explore.plots._figure import BLUE, LIGHT, ORANGE, PURPLE, SKY, VERMILLION, NotebookFigure

PARTS: Final[dict[str, dict[str, Any]]] = {
    "weights": {"facecolor": BLUE},
    "KV pool": {"facecolor": SKY},
    "largest step, for a moment": {"facecolor": ORANGE, "hatch": "////"},
    "CUDA graphs": {"facecolor": PURPLE, "hatch": "...."},
    "other programs": {"facecolor": VERMILLION, "hatch": "\\\\\\\\"},
    "left alone": {"facecolor": LIGHT},
}
STAGES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "weights": ("weights", {"facecolor": BLUE}),
    "memory": ("compiling, largest steps", {"facecolor": ORANGE, "hatch": "////"}),
    "warm_up": ("warm-up", {"facecolor": SKY}),
    "capture": ("graph capture", {"facecolor": PURPLE, "hatch": "...."}),
    "other": ("other", {"facecolor": LIGHT}),
}
MOST_ROWS: Final[dict[str, Any]] = {"facecolor": GREEN}
ONE_ROW: Final[dict[str, Any]] = {"facecolor": VERMILLION, "hatch": "\\\\\\\\"}


def memory_parts(variant: Variant) -> dict[str, int]:
    """Bytes by what they are for, in order; what is not known is left out. On a GPU they add up to all of it."""
    memory = variant.memory
    parts = {
        "weights": memory["weights"],
        "KV pool": memory["num_blocks"] * memory["block_bytes"],
        "largest step, for a moment": memory["step_peak"],
        "CUDA graphs": memory["graphs"],
        "other programs": memory["others"],
    }
    found = {name: size for name, size in parts.items() if size}
    left = (memory["total"] or 0) - sum(found.values())
    return {**found, "left alone": left} if left > 0 else found


def plot_memory_parts(hot: HotPath, name: str) -> Figure:
    """One bar: where the memory goes that a variant has."""
    parts = memory_parts(hot.variants[name])
    unit, size_of = ("GiB", 2**30) if sum(parts.values()) > 2**30 else ("MiB", 2**20)
    figure = NotebookFigure(figsize=(9.0, 1.9), dpi=100, layout="constrained")
    ax = figure.subplots()
    left = 0.0
    handles = []
    for part, size in parts.items():
        style = {"edgecolor": "white", "linewidth": 0, **PARTS[part]}
        ax.barh(0, size / size_of, left=left, height=0.6, **style)
        left += size / size_of
        handles.append(Patch(label=f"{part}: {size / size_of:,.2f} {unit}", **style))
    ax.set_yticks([])
    ax.set_xlim(0, left)
    ax.set_xlabel(f"{unit} ({name}, {hot.device})")
    ax.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL)
    return figure


def plot_floor(hot: HotPath, variant: Variant) -> Figure:
    """How long decode steps took on the device by their rows, and the least that reading memory allows.

    Without a measured bandwidth: how many bytes they must read.
    """
    frame = variant.steps.frame()
    frame = frame[~frame["is_prefill"]]
    figure = NotebookFigure(figsize=(9.0, 3.6), dpi=100, layout="constrained")
    ax = figure.subplots()
    ax.set_xlabel(f"rows of the step ({hot.device})")
    bytes_read = frame["read_bytes"].astype("float64")
    if hot.read_bytes_per_s is None or frame["device_us"].isna().all():
        ax.plot(frame["rows"], bytes_read / 2**20, ".", color=BLUE)
        ax.set_ylabel("MiB that a step must read")
    else:
        floor = bytes_read / hot.read_bytes_per_s * 1e3
        ax.plot(frame["rows"], frame["device_us"] / 1e3, ".", color=BLUE, label="measured, on the device")
        rate = f"{hot.read_bytes_per_s / 1e12:.2f} TB/s"
        ax.plot(frame["rows"], floor, "x", color=VERMILLION, markersize=4, label=f"reading alone, at {rate}")
        for rows in (frame["rows"].max(), int(frame["rows"].max()) // 4, 1):
            near = int((frame["rows"] - rows).abs().argmin())
            took = frame["device_us"].iloc[near] / 1e3
            share, at = floor.iloc[near] / took, (frame["rows"].iloc[near], took)
            ax.annotate(f"{share:.0%}", at, (0, 8), textcoords="offset points", ha="center", fontsize=SMALL)
        ax.set_ylabel("milliseconds")
        ax.set_ylim(0, 1.25 * float(frame["device_us"].quantile(0.98)) / 1e3)
        ax.legend(loc="upper left", frameon=False, fontsize=SMALL)
    ax.set_ylim(bottom=0)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def plot_costs(hot: HotPath) -> Figure:
    """Each variant's new tokens a second, its decode steps with the most rows and with one, and what loading takes."""
    names = list(hot.variants)
    figure = NotebookFigure(figsize=(10.0, 1.7 + 0.42 * len(names)), dpi=100, layout="constrained")
    rates, steps, loads = figure.subplots(1, 3, sharey=True)
    for y, variant in enumerate(hot.variants.values()):
        passes = variant.tokens_per_s
        _bar(rates, y, float(np.median(passes)), BLUE, "{:,.0f}", max(passes))
        rates.plot(passes, [y] * len(passes), "o", color="black", markersize=3, alpha=0.75)
        for at, rows, style in _step_bars(variant):
            steps.barh(y + at, rows, height=0.36, edgecolor="white", linewidth=0, **style)
            _label(steps, y + at, rows, "{:.2f}")
        left = 0.0
        for stage, (_, style) in STAGES.items():
            seconds = _stages(variant)[stage]
            loads.barh(y, seconds, left=left, height=0.6, edgecolor="white", linewidth=0, **style)
            left += seconds
        _label(loads, y, left, "{:.1f}")
    rates.set_yticks(range(len(names)), names)
    rates.set_ylim(len(names) - 0.5, -0.5)
    rates.set_xlabel("tokens/s (dots are passes)")
    steps.set_xlabel("ms from step to step")
    loads.set_xlabel("seconds to load")
    for ax in (rates, steps, loads):
        ax.margins(x=0.22)
        ax.set_xlim(left=0)
        ax.spines[["top", "right"]].set_visible(False)
    rates.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    rates.xaxis.get_major_locator().set_params(nbins=4)
    most = max(max(variant.steps.rows) for variant in hot.variants.values())
    used = [stage for stage in STAGES if any(_stages(variant)[stage] > 0.05 for variant in hot.variants.values())]
    styles = [(f"step of {most} rows", MOST_ROWS), ("of 1 row", ONE_ROW)]
    styles += [(f"loading: {STAGES[stage][0]}", STAGES[stage][1]) for stage in used]
    handles = [Patch(label=label, edgecolor="white", linewidth=0, **style) for label, style in styles]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)
    figure.suptitle(hot.device, fontsize="medium")
    return figure


def _step_bars(variant: Variant) -> list[tuple[float, float, dict[str, Any]]]:
    """Where, how long and how drawn: steps with the most rows, and with one."""
    frame = variant.steps.frame()
    frame = frame[~frame["is_prefill"]]
    single = frame[frame["rows"] == 1]["wall_us"]
    bars: list[tuple[float, float, dict[str, Any]]] = [(-0.2, variant.steps.medians()["wall_us"] / 1e3, MOST_ROWS)]
    return [*bars, (0.2, float(single.median()) / 1e3, ONE_ROW)] if len(single) else bars


def _stages(variant: Variant) -> dict[str, float]:
    times = variant.load_times
    return {**dict.fromkeys(STAGES, 0.0), **times, "other": max(0.0, variant.load_seconds - sum(times.values()))}


def _bar(ax: Axes, y: float, width: float, colour: str, form: str, label_at: float) -> None:
    ax.barh(y, width, height=0.6, facecolor=colour)
    _label(ax, y, label_at, form, width)


def _label(ax: Axes, y: float, x: float, form: str, value: float | None = None) -> None:
    text = form.format(x if value is None else value)
    ax.annotate(text, (x, y), (5, 0), textcoords="offset points", va="center", fontsize=SMALL)
