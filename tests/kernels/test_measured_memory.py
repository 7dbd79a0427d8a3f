"""What the GPU's backend makes of its measurements, on a GPU whose memory is counted here and is nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from nvexplore.backends.cuda import CudaBackend
from nvexplore.backends.graphs import Graphs
from nvexplore.backends.ranks import Ranks
from nvexplore.model_config import ModelConfig
from nvexplore.runner import model_runner
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.kv_cache import KVCache
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.toy import make_toy
from tests.kernels.backends import Interpreted
from tests.kernels.fake_graphs import capturing, use_fake_graphs

LIMITS: dict[str, Any] = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "max_model_len": 128, "block_size": 4}
STEP, GRAPH, OTHERS = 30_000, 1_000, 70_000


class Gpu:
    """Its memory: weights, others' things, every pool that somebody holds, graphs, and, within a step, STEP bytes.

    As torch does, it keeps what is freed until ``empty_cache``, which a capture begins with.
    """

    def __init__(self, total: int, weights: int) -> None:
        self.total, self.weights, self.graphs, self.num_captures = total, weights, 0, 0
        self.pools: list[tuple[StorageWeakRef, int]] = []
        self.peak = self.reserved = 0

    def allocated(self, device: Any = None) -> int:
        return self.weights + self.graphs + sum(size for storage, size in self.pools if not storage.expired())

    def taken(self, more: int = 0) -> None:
        self.peak, self.reserved = (max(most, self.allocated() + more) for most in (self.peak, self.reserved))

    def empty_cache(self) -> None:
        self.reserved = self.allocated()

    def reset_peak(self, device: Any = None) -> None:
        self.peak = self.allocated()

    def info(self, device: Any = None) -> tuple[int, int]:
        self.taken()
        return self.total - OTHERS - self.reserved, self.total

    @contextmanager
    def capture(self, graph: Any, **options: Any) -> Iterator[None]:
        self.empty_cache()
        with capturing(graph, **options):
            yield
        self.num_captures += 1
        self.graphs += GRAPH
        self.taken()

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu, make_pool, begin = self, KVCache.__init__, CudaBackend.begin

        def made(self: KVCache, *given: Any, **named: Any) -> None:
            make_pool(self, *given, **named)
            gpu.pools.append((StorageWeakRef(self.pool.untyped_storage()), self.pool.nbytes))
            gpu.taken()

        def begun(self: CudaBackend, batch: ForwardBatch) -> ForwardBatch:
            gpu.taken(STEP)
            return begin(self, batch)

        class Measured(Interpreted):
            available_memory = CudaBackend.available_memory  # type: ignore[assignment]

            def __init__(self) -> None:
                super().__init__(torch.float32)
                self._utilization = 1.0

        use_fake_graphs(monkeypatch)
        monkeypatch.setattr(KVCache, "__init__", made)
        monkeypatch.setattr(CudaBackend, "begin", begun)
        monkeypatch.setattr(model_runner, "create_backend", lambda *given, **options: Measured())
        fakes = {
            "memory_allocated": self.allocated,
            "max_memory_allocated": lambda device: self.peak,
            "memory_reserved": lambda device: self.reserved,
            "reset_peak_memory_stats": self.reset_peak,
            "mem_get_info": self.info,
            "empty_cache": self.empty_cache,
            "graph": self.capture,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)


class TwoRanks(Ranks):
    """Rank 0 of two, the other of which agrees to all."""

    size = 2


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_toy(tmp_path, "llama", num_layers=1)


def runner_of(toy: Path, **options: Any) -> ModelRunner:
    return ModelRunner(toy, ModelConfig.from_path(toy), device="cpu", **LIMITS, **options)


def test_the_pool_that_is_measured_with_is_no_part_of_anything(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context so long that one sequence takes most of the memory: the room is for the pool, which comes later."""
    whole = runner_of(toy, num_kvcache_blocks=1)
    weights, block = whole.memory.weights, whole.memory.block_bytes
    blocks = 40  # of which the longest sequence takes 32
    gpu = Gpu(weights + OTHERS + STEP + blocks * block + 100, weights)
    gpu.use(monkeypatch)
    runner = runner_of(toy)
    memory = runner.memory
    assert runner.num_blocks == blocks
    assert (memory.step_peak, memory.others, memory.total) == (STEP, OTHERS, gpu.total)
    assert gpu.allocated() == weights + memory.pool + gpu.graphs
    assert memory.graphs == gpu.graphs == gpu.num_captures * GRAPH > 0


@pytest.mark.parametrize("ranks", [Ranks(), TwoRanks()], ids=["alone", "one of two"])
def test_no_memory_for_graphs(ranks: Ranks, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine goes on without; a rank does not: the others would wait for it in the middle of theirs."""
    gpu, closed = Gpu(1 << 24, 0), []
    gpu.use(monkeypatch)
    backend = model_runner.create_backend("cpu", torch.float32)
    assert isinstance(backend, CudaBackend)
    backend.ranks = ranks
    monkeypatch.setattr(model_runner, "create_backend", lambda *given, **options: backend)
    close = Graphs.close
    monkeypatch.setattr(Graphs, "close", lambda self: (closed.append(self), close(self)))

    @contextmanager
    def full(graph: Any, **options: Any) -> Iterator[None]:
        if gpu.num_captures == 1:
            raise torch.OutOfMemoryError("no memory for another graph")
        with gpu.capture(graph, **options):
            yield

    monkeypatch.setattr(torch.cuda, "graph", full)
    if ranks.size == 1:
        with pytest.warns(UserWarning, match="no memory was left to capture graphs, so decode steps are launched"):
            runner = runner_of(toy)
        assert runner.backend.dispatch(0, 2).eager_reason == "no memory was left to capture graphs"
        assert runner.memory.graphs is None
    else:
        with pytest.raises(torch.OutOfMemoryError, match="no memory for another graph"):
            runner_of(toy)
    assert gpu.num_captures == 1 and closed


def test_a_sequence_that_has_no_room_is_told_by_its_length(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks nobody has said anything: it is the longest sequence that has to be run."""
    gpu = Gpu(1 << 24, 0)
    gpu.use(monkeypatch)

    def full(shape: Any, num_blocks: int, device: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError(f"no memory for {num_blocks} blocks")

    monkeypatch.setattr("nvexplore.runner.kv_cache._zeros", full)
    message = r"^max_model_len=128: one sequence of it has no room: .*32: needs [\d,]+ bytes"
    with pytest.raises(ValueError, match=message):
        runner_of(toy)
