"""Runs serving workloads on one engine or two in turns. Knows neither models nor the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from nvexplore.bench.serving import Figure, Server, Serving


@dataclass(frozen=True, slots=True)
class Row:
    """One workload's figures, by engine, one a pass."""

    workload: str
    figures: dict[str, list[Figure]]

    @property
    def unit(self) -> str:
        return next(iter(self.figures.values()))[0].unit

    def median(self, name: str) -> float:
        return median(figure.value for figure in self.figures[name])

    def ratio(self) -> float | None:
        """How many times better ours (the first) is, the median over passes; None without a peer.

        Both of a pass ran one after the other, so the machine's state is in both.
        """
        if len(self.figures) < 2:
            return None
        ours, theirs = self.figures.values()
        ratios = [a.value / b.value for a, b in zip(ours, theirs, strict=True)]
        return median(ratio if ours[0].more_is_better else 1 / ratio for ratio in ratios)

    def as_dict(self) -> dict[str, Any]:
        """All figures, plain enough for JSON."""
        passes = {name: [figure.value for figure in figures] for name, figures in self.figures.items()}
        medians = {name: self.median(name) for name in self.figures}
        return {
            "workload": self.workload,
            "unit": self.unit,
            "median": medians,
            "passes": passes,
            "times_better": self.ratio(),
        }


def compare_servers(
    servers: Sequence[Server], workloads: Sequence[Serving], passes: int, tell: Callable[[str], None]
) -> list[Row]:
    """Run each workload twice unmeasured, then ``passes`` times on each server in turns, who begins changing.

    Twice: an engine compiles and captures what it needs as it comes, and what comes depends on the prompts.
    """
    rows = []
    for workload in workloads:
        figures: dict[str, list[Figure]] = {server.name: [] for server in servers}
        for number in range(-2, passes):
            tell(f"{workload.name}: {'warming up' if number < 0 else f'pass {number + 1} of {passes}'}")
            for server in servers if number % 2 else reversed(servers):
                figure = workload.measure(server, number)
                if number >= 0:
                    figures[server.name].append(figure)
        rows.append(Row(workload.name, figures))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The medians as text, and how many times better ours are."""
    names = list(rows[0].figures)
    head = f"{'':<20}" + "".join(f"{name:>14}" for name in names) + f"  {'':<16}" + ("ours" if len(names) > 1 else "")
    lines = [head.rstrip()]
    for row in rows:
        ratio = row.ratio()
        cells = "".join(f"{row.median(name):>14,.2f}" for name in names)
        lines.append(f"{row.workload:<20}{cells}  {row.unit:<16}" + (f"{ratio:.2f}x" if ratio else ""))
    return "\n".join(line.rstrip() for line in lines)
