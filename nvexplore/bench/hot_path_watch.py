"""Watches an engine's steps from outside: when each was launched, given to the device, waited for, and there.

Hooks stand in front of public methods of runner and backend as long as the watch lasts. Decides and computes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from types import TracebackType

    import torch

    from nvexplore.runner.model_runner import ModelRunner


class DeviceClock(Protocol):
    """Tells when a device reached a place in its queue."""

    def mark(self) -> Any:
        """A place in the queue, behind all that was given to the device so far."""
        ...

    def ns(self, mark: Any) -> int:
        """When it was reached, on the host's clock (``time.perf_counter_ns``); waits for it."""
        ...


class CudaClock:
    """A GPU's clock by CUDA events. Tied to the host's when it is made: right to some 10 microseconds."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        torch.cuda.synchronize(device)
        before = time.perf_counter_ns()
        self._anchor = self.mark()
        self._anchor.synchronize()
        self._anchored = (before + time.perf_counter_ns()) // 2

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def ns(self, mark: Any) -> int:
        mark.synchronize()
        milliseconds: float = self._anchor.elapsed_time(mark)
        return self._anchored + round(milliseconds * 1e6)


@dataclass(slots=True)
class Watched:
    """A step's moments in nanoseconds of the host's clock, and its begin and end in the device's queue."""

    launch_began: int
    launch_ended: int = 0
    wait_began: int = 0
    wait_ended: int = 0
    begin: Any = None
    end: Any = None


class Watch:
    """``with Watch(runner, clock) as watch: ...``; then ``watch.steps``, in order. clock: None where there is none."""

    def __init__(self, runner: ModelRunner, clock: DeviceClock | None) -> None:
        self.steps: list[Watched] = []
        self._runner = runner
        self._clock = clock
        self._hooks = ExitStack()

    def __enter__(self) -> Watch:
        runner, backend = self._runner, self._runner.backend
        self._hooks.enter_context(hooked(runner, "launch", self._launch(runner.launch)))
        # The first that a step gives to a device: its batch, for a graph or without one.
        for name in ("begin", "replay"):
            self._hooks.enter_context(hooked(backend, name, self._given(getattr(backend, name))))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._hooks.close()

    def _launch(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            step = Watched(time.perf_counter_ns())
            self.steps.append(step)
            launched = launch(*args)
            step.end = self._mark()
            vars(launched)["wait"] = self._wait(step, launched.wait)
            step.launch_ended = time.perf_counter_ns()
            return launched

        return watched

    def _given(self, give: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            self.steps[-1].begin = self._mark()
            return give(*args)

        return watched

    def _wait(self, step: Watched, wait: Callable[[], Any]) -> Callable[[], Any]:
        def watched() -> Any:
            step.wait_began = time.perf_counter_ns()
            result = wait()
            step.wait_ended = time.perf_counter_ns()
            return result

        return watched

    def _mark(self) -> Any:
        return None if self._clock is None else self._clock.mark()


@contextmanager
def hooked(target: object, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """``method`` stands in for the method ``name`` of this one object, until the context ends."""
    vars(target)[name] = method
    try:
        yield
    finally:
        del vars(target)[name]
