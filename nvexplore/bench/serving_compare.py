"""Runs serving workloads on one engine or two in turns. Knows neither models nor the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from nvexplore.bench.serving import Figure, Server, Serving


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one workload, by engine, one a pass. Engines that do not tell it are left out."""

    workload: str
    figures: dict[str, list[Figure]]

    @property
    def first(self) -> Figure:
        """Any of them: they are of the same quantity, case and unit."""
        return next(iter(self.figures.values()))[0]

    @property
    def label(self) -> str:
        """What it is, beside the workload's name."""
        return f"{self.first.quantity} {self.first.case}".rstrip()

    def median(self, name: str) -> float:
        return median(figure.value for figure in self.figures[name])

    def ratio(self) -> float | None:
        """How many times better ours (the first) is, the median over passes; None without a peer.

        Both of a pass ran one after the other, so the machine's state is in both. None too where a value is not above
        zero: a difference of two times that are too short for this machine's clock and load.
        """
        if len(self.figures) < 2 or self.first.more_is_better is None:
            return None
        ours, theirs = ([figure.value for figure in figures] for figures in self.figures.values())
        if min(*ours, *theirs) <= 0:
            return None
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        return median(ratio if self.first.more_is_better else 1 / ratio for ratio in ratios)

    def as_dict(self) -> dict[str, Any]:
        """All figures, plain enough for JSON."""
        return {
            "workload": self.workload,
            "quantity": self.first.quantity,
            "case": self.first.case,
            "unit": self.first.unit,
            "more_is_better": self.first.more_is_better,
            "median": {name: self.median(name) for name in self.figures},
            "passes": {name: [figure.value for figure in figures] for name, figures in self.figures.items()},
            "times_better": self.ratio(),
        }


def compare_servers(
    servers: Sequence[Server], workloads: Sequence[Serving], passes: int, tell: Callable[[str], None]
) -> list[Row]:
    """Run each workload twice unmeasured, then ``passes`` times on each server in turns, who begins changing.

    Twice: an engine compiles and captures what it needs as it comes, and what comes depends on the prompts. A server
    that a workload cannot run on is left out of it. ``tell`` hears of every pass, and of medians as they are there.
    """
    rows: list[Row] = []
    for workload in workloads:
        able = [server for server in servers if workload.can_run_on(server)]
        found: dict[tuple[str, str], dict[str, list[Figure]]] = {}
        for number in range(-2, passes):
            tell(f"{workload.name}: {'warming up' if number < 0 else f'pass {number + 1} of {passes}'}")
            for server in able if number % 2 else reversed(able):
                figures = workload.measure(server, number)
                if number < 0:
                    continue
                for figure in figures:
                    of_all = found.setdefault((figure.quantity, figure.case), {each.name: [] for each in able})
                    of_all[server.name].append(figure)
        for of_all in found.values():
            row = Row(workload.name, {name: figures for name, figures in of_all.items() if figures})
            tell(f"{row.label}: " + ", ".join(f"{name} {short(row.median(name))}" for name in row.figures))
            rows.append(row)
    return rows


def left_out(servers: Sequence[Server], workloads: Sequence[Serving]) -> list[str]:
    """A line for each server that a workload cannot run on."""
    return [
        f"{workload.name}: {server.name} is left out, it takes no requests while others run"
        for workload in workloads
        for server in servers
        if not workload.can_run_on(server)
    ]


def short(value: float) -> str:
    """As many digits as tell passes apart: three, or all of those before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def table(rows: Sequence[Row]) -> list[str]:
    """The medians as lines of text, and how many times better ours are; no rows, no lines."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    width = max((len(row.label) for row in rows), default=0) + 2
    lines = [f"{'':<16}{'':<{width}}" + "".join(f"{name:>14}" for name in names) + f"  {'':<16}"] if rows else []
    if len(names) > 1:
        lines[0] += "ours"
    previous = ""
    for row in rows:
        cells = "".join(f"{short(row.median(name)):>14}" if name in row.figures else f"{'-':>14}" for name in names)
        ratio = row.ratio()
        begin = f"{row.workload if row.workload != previous else '':<16}{row.label:<{width}}"
        lines.append(f"{begin}{cells}  {row.first.unit:<16}" + (f"{ratio:.2f}x" if ratio is not None else ""))
        previous = row.workload
    return [line.rstrip() for line in lines]
