"""Times kernels one by one beside the most that the device could do. Knows no kernel and no command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from nvexplore.bench.graph_timer import median_seconds
from nvexplore.bench.roofline import Timer

ROTATED_BYTES: Final = 1 << 30  # what launches one after another touch before any memory is touched again, or nearly
MOST_COPIES: Final = 256
OWN: Final = ("triton", "compiled")  # ``Case.by`` of what belongs to the project; all else are peers

Ceiling = Literal["copy", "read", "matmul"]
"""What holds a kernel back: bytes a second copied or read, or FLOPs a second."""


@dataclass(frozen=True, slots=True)
class Work:
    """One launch on memory of its own.

    call:      launches it and returns its results; may be called again.
    num_bytes: what must be read and written whoever does it, each once; scratch memory is not in it.
    flops:     of its matrix products, 0 where there are none.
    """

    call: Callable[[], Any]
    num_bytes: int
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time: operation, who does it, on what; ``make`` gives a new ``Work``, every time on new memory."""

    name: str
    by: str
    inputs: str
    ceiling: Ceiling
    make: Callable[[], Work]


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of a case; where that failed, ``error`` is the reason and ``seconds`` None."""

    name: str
    by: str
    inputs: str
    ceiling: Ceiling
    seconds: float | None = None
    num_bytes: int = 0
    flops: int = 0
    error: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether something of the project's own failed; a peer may lack what it needs."""
        return self.error is not None and self.by in OWN

    def rate(self) -> float | None:
        """Of what its ceiling is about: bytes or FLOPs a second."""
        if self.seconds is None:
            return None
        return (self.flops if self.ceiling == "matmul" else self.num_bytes) / self.seconds

    def share(self, ceilings: Mapping[Ceiling, float]) -> float | None:
        """``rate`` as a part of its ceiling, 1 at best."""
        rate = self.rate()
        return None if rate is None else rate / ceilings[self.ceiling]

    def as_dict(self, ceilings: Mapping[Ceiling, float]) -> dict[str, Any]:
        """All figures, plain enough for JSON."""
        return {
            "kernel": self.name,
            "by": self.by,
            "inputs": self.inputs,
            "microseconds": None if self.seconds is None else self.seconds * 1e6,
            "bytes": self.num_bytes,
            "flops": self.flops,
            "ceiling": self.ceiling,
            "share": self.share(ceilings),
            "error": self.error,
        }


def num_copies(num_bytes: int) -> int:
    """Launches on different memory so that no cache can serve them: two or more."""
    return max(2, min(MOST_COPIES, -(-ROTATED_BYTES // num_bytes)))


def time_case(case: Case, timer: Timer = median_seconds) -> Result:
    """Measure a case; what goes wrong is told in the result, since other cases may still run."""
    said = (case.name, case.by, case.inputs, case.ceiling)
    try:
        with torch.inference_mode():
            works = [case.make()]
            works += [case.make() for _ in range(num_copies(works[0].num_bytes) - 1)]
            seconds = timer([work.call for work in works])
    except Exception as error:  # whatever a package or a device raises
        return Result(*said, error=_reason(error))
    return Result(*said, seconds, works[0].num_bytes, works[0].flops)


def table_head() -> str:
    start = f"{'kernel':<20} {'by':<12} {'inputs':<38} "
    return f"{start}{'us':>9} {'MB':>9} {'TB/s':>6} {'TFLOP/s':>8} {'of its ceiling':>15}"


def table_line(result: Result, ceilings: Mapping[Ceiling, float]) -> str:
    """One result as a line under ``table_head``."""
    start = f"{result.name:<20} {result.by:<12} {result.inputs:<38} "
    share = result.share(ceilings)
    if result.seconds is None or share is None:
        return f"{start}failed: {result.error}"
    flops = f"{result.flops / result.seconds / 1e12:.1f}" if result.flops else ""
    return (
        f"{start}{result.seconds * 1e6:>9.2f} {result.num_bytes / 1e6:>9.2f} "
        f"{result.num_bytes / result.seconds / 1e12:>6.2f} {flops:>8} {share:>8.1%} {result.ceiling:>6}"
    )


def _reason(error: Exception) -> str:
    """What an error says in a line: its first one, and the next where that ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
