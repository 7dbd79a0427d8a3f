"""Runs contenders in turns and sums the passes up. Knows neither models nor the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from nvexplore.bench.workload import Contender, Run, Workload


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates of two contenders in tokens a second, one entry a pass, ours first; ratios are ours to theirs."""

    workload: Workload
    names: tuple[str, str]
    decode: tuple[list[float], list[float]]
    prefill: tuple[list[float], list[float]]
    equal_tokens: float  # share of tokens before the first difference of each completion

    @property
    def decode_ratio(self) -> float:
        """Median of the passes' ratios: both of a pass ran under the same load of the machine."""
        return _ratio(self.decode)

    @property
    def prefill_ratio(self) -> float:
        return _ratio(self.prefill)

    def as_dict(self) -> dict[str, Any]:
        """All figures, plain enough for JSON."""
        rates = {
            f"{phase}_tokens_per_second": {
                name: {"median": median(passes), "passes": passes}
                for name, passes in zip(self.names, both, strict=True)
            }
            for phase, both in (("decode", self.decode), ("prefill", self.prefill))
        }
        ratios = {"decode_ratio": self.decode_ratio, "prefill_ratio": self.prefill_ratio}
        return {**asdict(self.workload), **rates, **ratios, "equal_tokens": self.equal_tokens}


def compare(
    contenders: tuple[Contender, Contender],
    workloads: Sequence[Workload],
    passes: int,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Comparison]:
    """Run every workload once unmeasured, then ``passes`` times on both in turns, who begins changing each time."""
    runs: dict[tuple[int, int], list[Run]] = {}
    for number in range(passes + 1):
        tell(f"pass {number} of {passes}" if number else "warming up")
        for index, workload in enumerate(workloads):
            for which in (0, 1) if number % 2 else (1, 0):
                run = contenders[which].run(workload)
                if number:
                    runs.setdefault((index, which), []).append(run)
    comparisons = []
    for index, workload in enumerate(workloads):
        ours, theirs = runs[index, 0], runs[index, 1]
        comparisons.append(
            Comparison(
                workload=workload,
                names=(contenders[0].name, contenders[1].name),
                decode=([run.decode_rate(workload) for run in ours], [run.decode_rate(workload) for run in theirs]),
                prefill=([run.prefill_rate(workload) for run in ours], [run.prefill_rate(workload) for run in theirs]),
                equal_tokens=_equal_share(ours[0], theirs[0]),
            )
        )
    return comparisons


def _ratio(rates: tuple[list[float], list[float]]) -> float:
    return median(ours / theirs for ours, theirs in zip(*rates, strict=True))


def _equal_share(ours: Run, theirs: Run) -> float:
    equal = total = 0
    for a, b in zip(ours.token_ids, theirs.token_ids, strict=True):
        total += len(a)
        equal += next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return equal / total
