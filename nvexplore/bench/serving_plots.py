"""Pictures of serving results: a figure a workload, and one of how the engines started. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nvexplore.bench.serving_compare import Row, short
from nvexplore.bench.serving_startup import Startup
from nvexplore.explore.plots._figure import BLUE, LIGHT, ORANGE, PURPLE, SKY, VERMILLION, NotebookFigure

# Ours and the peer's: told apart by pattern too.
STYLES: Final[tuple[dict[str, Any], ...]] = (
    {"facecolor": BLUE, "edgecolor": "white", "linewidth": 0},
    {"facecolor": ORANGE, "edgecolor": "white", "linewidth": 0, "hatch": "////"},
)
# The parts of a start, in the order in which they come.
PARTS: Final[dict[str, dict[str, Any]]] = {
    "load": {"facecolor": SKY},
    "weights": {"facecolor": BLUE},
    "compile and warm-up": {"facecolor": ORANGE, "hatch": "////"},
    "graph capture": {"facecolor": PURPLE, "hatch": "...."},
    "other": {"facecolor": LIGHT},
    "first call": {"facecolor": VERMILLION, "hatch": "\\\\\\\\"},
}
BAR: Final = 0.36
HEIGHT: Final = 4.2
SMALL: Final = 8.5


def write_plots(folder: Path, rows: Sequence[Row], startups: Sequence[Startup], about: str) -> list[Path]:
    """Write ``WORKLOAD.png`` for each workload and ``startup.png`` into ``folder``; returns the files.

    about: model and machine, a line under each title.
    """
    written = []
    for workload in dict.fromkeys(row.workload for row in rows):
        figure = plot_workload([row for row in rows if row.workload == workload], about)
        written.append(_save(figure, folder / f"{workload}.png"))
    return [*written, _save(plot_startup(startups, about), folder / "startup.png")]


def plot_workload(rows: Sequence[Row], about: str) -> Figure:
    """Bars of the medians, a panel a quantity and a group a case; dots are the passes, ratios are ours to theirs."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row.first.quantity, []).append(row)
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    widths = [0.8 + 1.25 * len(cases) for cases in panels.values()]
    figure = NotebookFigure(figsize=(max(5.6, sum(widths) + 1.0), HEIGHT), dpi=120, layout="constrained")
    all_axes = np.atleast_1d(figure.subplots(1, len(panels), width_ratios=widths))
    for ax, (quantity, cases) in zip(all_axes, panels.items(), strict=True):
        _draw_cases(ax, cases, names)
        ax.set_title(quantity, fontsize="medium")
    _head(figure, rows[0].workload.replace("-", " "), about)
    num_passes = max(len(figures) for row in rows for figures in row.figures.values())
    handles: list[Any] = [Patch(label=name, **style) for name, style in zip(names, STYLES, strict=False)]
    dots = all_axes[0].plot([], [], "o", color="black", markersize=3, label=f"passes ({num_passes}); bars are medians")
    figure.legend(handles=[*handles, *dots], loc="outside lower center", ncols=len(handles) + 1, frameon=False)
    return figure


def _draw_cases(ax: Axes, cases: Sequence[Row], names: Sequence[str]) -> None:
    unit, direction = cases[0].first.unit, cases[0].first.more_is_better
    labels = []
    for x, row in enumerate(cases):
        ratio = row.ratio()
        labels.append("\n".join(filter(None, (row.first.case, f"{ratio:.2f}x as fast" if ratio is not None else ""))))
        for number, (name, figures) in enumerate(row.figures.items()):
            at, style = x + (number - (len(row.figures) - 1) / 2) * BAR, STYLES[names.index(name)]
            passes, height = [figure.value for figure in figures], row.median(name)
            ax.bar(at, height, width=BAR * 0.94, **style)
            ax.plot([at] * len(passes), passes, "o", color="black", markersize=3, alpha=0.75)
            ax.annotate(
                short(height), (at, max(passes)), (0, 4), textcoords="offset points", ha="center", fontsize=SMALL
            )
    ax.set_xticks(range(len(cases)), labels, fontsize=SMALL)
    ax.set_xlim(-0.7, len(cases) - 0.3)
    better = {True: ", more is better", False: ", less is better", None: ""}[direction]
    ax.set_ylabel(f"{unit}{better}")
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.margins(y=0.12)
    ax.set_ylim(bottom=0)
    _frame(ax)


def plot_startup(startups: Sequence[Startup], about: str) -> Figure:
    """A bar an engine, from its construction to its first token, by what the time went to."""
    height = 1.9 + 0.65 * len(startups)
    figure = NotebookFigure(figsize=(8.0, height), dpi=120, layout="constrained")
    ax = figure.subplots()
    for y, each in enumerate(startups):
        left = 0.0
        for name, value in each.parts().items():
            ax.barh(y, value, left=left, height=0.55, edgecolor="white", linewidth=0, **PARTS[name])
            left += value
        ax.annotate(f"{left:.1f} s", (left, y), (5, 0), textcoords="offset points", va="center", fontsize=SMALL)
    ax.set_yticks(range(len(startups)), [each.name for each in startups])
    ax.set_ylim(len(startups) - 0.5, -0.5)
    ax.margins(x=0.1)
    ax.set_xlim(left=0)
    ax.set_xlabel("seconds from construction to the first token, less is better")
    _frame(ax)
    used = [name for name in PARTS if any(name in each.parts() for each in startups)]
    handles = [Patch(label=name, edgecolor="white", linewidth=0, **PARTS[name]) for name in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=SMALL)
    _head(figure, "startup", about)
    return figure


def _head(figure: Figure, title: str, about: str) -> None:
    height = figure.get_size_inches()[1]
    figure.suptitle(f"{title}\n", fontsize="large", weight="bold")
    # In another size, where the line break above has left room for it.
    figure.text(0.5, 1 - 0.27 / height, about, ha="center", va="top", fontsize=SMALL, color="#555555")


def _frame(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, file: Path) -> Path:
    figure.savefig(file, format="png")
    return file
