"""CUDA graphs without a GPU: what was to be captured, which runs nothing, is run when the graph is replayed.

The inbox, the spreading of block tables and the rows of padding are the real ones; only that a graph knows nothing but
addresses must be seen on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from nvexplore.backends import prefill_graphs
from nvexplore.backends.graphs import Graphs


class FakeGraph:
    """Stands for torch.cuda.CUDAGraph; its results lie where those of the run before its capture lay."""

    current: FakeGraph | None = None

    def __init__(self) -> None:
        self.again: Callable[[], tuple[Tensor, ...]] = tuple
        self.results: tuple[Tensor, ...] = ()

    def replay(self) -> None:
        for kept, new in zip(self.results, self.again(), strict=True):
            kept.copy_(new)

    def reset(self) -> None:
        self.again, self.results = tuple, ()


class FakeStream:
    def __init__(self, device: Any = None) -> None:
        """A stream of nothing: all is done when it returns."""

    def wait_stream(self, other: FakeStream) -> None:
        """There is nothing to wait for."""


@contextmanager
def capturing(graph: FakeGraph, **options: Any) -> Iterator[None]:
    FakeGraph.current = graph
    yield
    FakeGraph.current = None


def use_fake_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``Graphs`` capture and replay on the CPU; of small prompts' graphs one, since all take long."""
    monkeypatch.setattr(prefill_graphs, "SIZES", (16,))
    run = Graphs._run
    before: list[tuple[tuple[Any, ...], tuple[Tensor, ...]]] = []

    def noticed(self: Graphs, *given: Any) -> tuple[Tensor, ...]:
        if FakeGraph.current is None:
            results: tuple[Tensor, ...] = run(self, *given)
            before[:] = [(given, results)]
            return results
        ran, results = before.pop()
        assert all(one is other for one, other in zip(ran, given, strict=True)), "captured without a run before it"
        FakeGraph.current.again = lambda: run(self, *given)
        FakeGraph.current.results = results
        return results

    monkeypatch.setattr(Graphs, "_run", noticed)
    fakes = {
        "CUDAGraph": FakeGraph,
        "Stream": FakeStream,
        "current_stream": FakeStream,
        "stream": lambda stream: nullcontext(),
        "graph": capturing,
        "graph_pool_handle": object,
        "memory_reserved": lambda device: 0,
        "synchronize": lambda device=None: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
