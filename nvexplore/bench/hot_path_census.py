"""What one decode step consists of: a GPU's kernels as its profiler saw them, or else the operations of the backend.

Knows no request; the step to look at is a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nvexplore.bench.hot_path_watch import hooked

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from nvexplore.backends.base import Backend

OPERATIONS: Final = (
    *("embedding", "add_rms_norm", "linear", "qk_norm_rope_store", "attention", "silu_mul", "moe", "logits", "sample"),
)
_COPIES: Final = ("Memcpy", "Memset")
KINDS: Final = {
    # What a name of a kernel or an operation has in it, the first that fits; longer parts of names come first.
    "attention": ("attention", "flash", "fmha"),
    "RoPE, KV store": ("qk_norm_rope", "norm_rope", "rope", "store_kv"),
    "norms": ("rms_norm", "rsqrt", "mean_pow"),
    "SiLU * mul": ("silu",),
    "sampler": ("_scan", "_choose", "sample", "argmax"),
    "matrix products": ("linear", "logits", "gemm", "gemv", "nvjet", "cutlass", "splitk", "cublas"),
}
REST: Final = "rest"


class Census(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step, a row a kernel or operation, in the order in which they began.

    counted:  "kernels" (device time) or "operations" (host time). num_rows: sequences in the step.
    names:    of all; ``name[i]`` is the place in it. at_us: since the first began; us: how long it took.
    """

    counted: str
    num_rows: int
    names: list[str]
    name: list[int]
    at_us: list[float]
    us: list[float]

    @property
    def total_us(self) -> float:
        """Time in kernels or operations, what lies between them left out."""
        return sum(self.us)

    @property
    def span_us(self) -> float:
        """From the begin of the first to the end of the last."""
        return max(at + us for at, us in zip(self.at_us, self.us, strict=True))

    def frame(self) -> pd.DataFrame:
        """A row each: name, kind (of ``KINDS``, or ``REST``), at_us, us."""
        import pandas as pd

        kinds = [kind_of(name) for name in self.names]
        columns = {"name": [self.names[i] for i in self.name], "kind": [kinds[i] for i in self.name]}
        return pd.DataFrame({**columns, "at_us": self.at_us, "us": self.us})

    def by_kind(self) -> pd.DataFrame:
        """A row a kind, the one that takes longest first: count, us."""
        groups = self.frame().groupby("kind")["us"].agg(["count", "sum"]).rename(columns={"sum": "us"})
        return groups.sort_values("us", ascending=False)


def kind_of(name: str) -> str:
    """What a kernel or an operation is for, by its name."""
    lower = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in lower for part in parts)), REST)


def census_of(step: Callable[[], int], backend: Backend) -> Census | None:
    """Look at one step; None where it is a graph and the profiler tells no kernels.

    step: runs one decode step to its end and returns its number of rows; is called twice or more.
    A GPU's profiler slows the host down: what it tells of kernels is right, of the time between them less so.
    """
    found = _kernels(step, backend.device) if backend.device.type == "cuda" else None
    return found or _operations(step, backend)


def _kernels(step: Callable[[], int], device: torch.device) -> Census | None:
    """None if the profiler sees no kernels, for want of CUPTI or of permission."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # the first has the profiler's own start in it
        torch.cuda.synchronize(device)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            num_rows = step()
            torch.cuda.synchronize(device)
    told = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA" and not event.name.startswith(_COPIES)
    )
    events, ended = [], 0.0
    for start, end, name in told:
        # What was launched early waits for the kernel before: its own time begins where that one's ends.
        start = max(start, ended)
        ended = max(end, ended)
        events.append((start, ended - start, name))
    return _census("kernels", num_rows, events) if events else None


def _operations(step: Callable[[], int], backend: Backend) -> Census | None:
    events: list[tuple[float, float, str]] = []

    def timed(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = time.perf_counter_ns()
            result = operation(*args)
            events.append((began / 1e3, (time.perf_counter_ns() - began) / 1e3, name))
            return result

        return run

    with ExitStack() as hooks:
        for name in OPERATIONS:
            hooks.enter_context(hooked(backend, name, timed(name, getattr(backend, name))))
        step()
        events.clear()
        num_rows = step()
    return _census("operations", num_rows, events) if events else None


def _census(counted: str, num_rows: int, events: list[tuple[float, float, str]]) -> Census:
    events.sort()
    first = events[0][0]
    names = list(dict.fromkeys(name[:60] for _, _, name in events))
    places = {name: place for place, name in enumerate(names)}
    return Census(
        counted=counted,
        num_rows=num_rows,
        names=names,
        name=[places[name[:60]] for _, _, name in events],
        at_us=[round(at - first, 2) for at, _, _ in events],
        us=[round(us, 2) for _, us, _ in events],
    )
