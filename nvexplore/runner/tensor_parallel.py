"""Tensor parallelism: rank 0, which is this process, leads others that hold the other shares of the model.

Each rank is a ``ModelRunner``; while they are made, all do the same by themselves. Then rank 0 lays out each step and
orders the others to run it too (``orders``), through shared memory (``order_channel``); the layers' sums keep them in
step. A rank that fails ends the engine: what the others then hold fits no order.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nvexplore.backends import Backend
from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.decode_rows import DecodeBatch
from nvexplore.runner.execution import Execution, Rows
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.runner.orders import Order
from nvexplore.runner.packing import decode_shapes, packed_size
from nvexplore.runner.rank_processes import RankProcesses
from nvexplore.runner.weights import Progress


def start_runner(
    path: str | Path,
    model_config: ModelConfig,
    *,
    device: torch.device,
    tensor_parallel_size: int = 1,
    progress: Progress | None = None,
    **options: Any,
) -> ModelRunner:
    """Make a ``ModelRunner``, with other processes where the model is to be split; they end with it.

    tensor_parallel_size: ranks; on GPUs rank r has the r-th from ``device`` on. options: ``ModelRunner``'s.
    Raises ValueError for what does not divide, or GPUs that are not there; RankError where another rank fails.
    """
    size = tensor_parallel_size
    if size == 1:
        return ModelRunner(path, model_config, device=device, progress=progress, **options)
    check_split(model_config, size, device)
    rest = {"path": Path(path), "model_config": model_config, **options}
    others = [pickle.dumps(rest | {"device": str(_device_of(rank, device))}) for rank in range(1, size)]
    longest = -(-options["max_model_len"] // options["block_size"])
    capacity = _longest_order(options["max_num_batched_tokens"], options["max_num_seqs"], longest)
    processes = RankProcesses(others, capacity, device)
    runner: ModelRunner | None = None
    options |= {"device": device, "progress": progress, "loaded": processes.wait_loaded}
    try:
        with processes.watched():
            runner = ModelRunner(path, model_config, ranks=processes.meet(), **options)
            processes.wait_ready()
    except BaseException:
        processes.close()
        if runner is not None:
            runner.close()
        elif device.type == "cuda":
            from nvexplore.backends.graphs import release_memory

            release_memory()  # of what the runner has dropped: now the device waits for no rank
        raise
    runner.lead(Leader(runner.model, runner.backend, processes), processes.close)
    return runner


class Leader(Execution):
    """``Execution`` on rank 0: each call is ordered of the other ranks first."""

    def __init__(self, model: CausalLM, backend: Backend, processes: RankProcesses) -> None:
        super().__init__(model, backend)
        self._processes = processes
        self.check = processes.check

    def run(self, laid: ForwardBatch | DecodeBatch, size: int | None, *, is_fed: bool) -> Tensor:
        with self._ordered(Order("run", laid, size, is_fed)):
            return super().run(laid, size, is_fed=is_fed)

    def forward(self, laid: ForwardBatch) -> ForwardBatch:
        with self._ordered(Order("forward", laid)):
            return super().forward(laid)

    def logits(self, rows: Rows) -> Tensor:
        with self._ordered(Order("logits", rows=rows)):
            return super().logits(rows)

    @contextmanager
    def _ordered(self, order: Order) -> Iterator[None]:
        self._processes.check()
        with interrupts_held(), self._processes.watched():
            self._processes.channel.send(*order.packed(), self._processes.check)
            yield


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C take effect afterwards: in the middle it would leave the other ranks waiting for a sum.

    Elsewhere than on the main thread there are no interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)


def check_split(config: ModelConfig, size: int, device: torch.device) -> None:
    """ValueError where the model does not divide among so many processes, or so many GPUs are not there."""
    for rank in (0, size - 1):
        _device_of(rank, device)
    # Parameters on "meta" have a shape and no memory.
    try:
        CausalLM(config, max_positions=1, placement=Placement(torch.float32, torch.device("meta"), 0, size))
    except ValueError as error:
        raise ValueError(f"tensor_parallel_size={size}: {error}") from None


def _device_of(rank: int, first: torch.device) -> torch.device:
    if first.type == "cpu":
        return first
    index, count = (first.index or 0) + rank, torch.cuda.device_count()
    if index >= count:
        raise ValueError(
            f"tensor_parallel_size: rank {rank} needs cuda:{index}, and there are {count} GPUs; choose a smaller one"
        )
    return torch.device("cuda", index)


def _longest_order(max_tokens: int, max_seqs: int, max_blocks: int) -> int:
    """int32 numbers that the largest step can take: a field of each kind a token or a row, and two of 64 bits."""
    return packed_size(decode_shapes(max(max_tokens, max_seqs) + 1, 0)) + (max_seqs + 1) * max_blocks
