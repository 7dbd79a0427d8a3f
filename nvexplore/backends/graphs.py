"""What CUDA graphs of steps have in common: capture, replay, and what lies where. Knows no kind of step.

A graph reads a fixed place in memory, the inbox, into which one copy a step brings everything the host knows. What lies
where in it depends on the graph's size alone, but for the width of the block tables: a kernel at the graph's start
spreads them to the widest. Another puts the ids in place that the step before has drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor

from nvexplore.backends.kernels.feed_ids import feed_ids
from nvexplore.backends.kernels.launch import early_launches
from nvexplore.backends.kernels.spread_tables import spread_tables
from nvexplore.collector import collect_all
from nvexplore.layers.controls import Controls
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.packing import Shapes, packed_size

if TYPE_CHECKING:
    from nvexplore.backends.cuda import CudaBackend
    from nvexplore.models.decoder import CausalLM

# The graphs of all engines of this process. cuBLAS has one scratch memory for all, and they may have its address.
_ALIVE: WeakSet[Graphs] = WeakSet()


def release_memory() -> None:
    """Give freed memory back to the driver, and cuBLAS' scratch memory too where no engine's graphs may use it."""
    collect_all()  # a model is full of references in circles
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None and not _ALIVE:
        clear()
    torch.cuda.empty_cache()


class Graphs:
    """Graphs of one kind of step, by size, in one memory pool.

    shapes:   the fields of a step of some size whose block tables have some width.
    last_ids: what the step before has drawn; each graph begins by reading it, and ends by writing it.
    """

    def __init__(
        self,
        backend: CudaBackend,
        shapes: Callable[[int, int], Shapes],
        max_rows: int,
        max_blocks: int,
        largest: int,
        last_ids: Tensor,
    ) -> None:
        self.backend = backend
        self.last_ids = last_ids
        self.sizes: Sequence[int] = ()
        self._shapes = shapes
        device = backend.device
        self.inbox = torch.zeros(packed_size(shapes(largest, max_blocks)), dtype=torch.int32, device=device)
        self.tables = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, ForwardBatch, Tensor, Tensor]] = {}

    def batch_of(self, size: int) -> ForwardBatch:
        """The batch that the graph of this size works on, laid out in an inbox of zeros: nothing but padding."""
        raise NotImplementedError

    def capture(self, model: CausalLM, sizes: Sequence[int], pool: Any, tell: Callable[[], object]) -> None:
        """Capture graphs of these sizes; ``tell`` is called after each. The largest first: others fit in its memory."""
        device = self.backend.device
        _ALIVE.add(self)
        # NCCL's own thread looks after its events meanwhile.
        mode = "global" if self.backend.ranks.size == 1 else "thread_local"
        for size in sorted(sizes, reverse=True):
            self.inbox.zero_()
            batch = self.batch_of(size)
            self._run(model, batch)  # compiles kernels and makes cuBLAS choose, which a capture may not
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            # On torch's own capture stream: cuBLAS keeps memory for each stream it has ever seen.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
                logits, ids = self._run(model, batch)
            self.backend.ranks.recorded(graph)
            self._graphs[size] = graph, batch, logits, ids
            tell()

    def replay_packed(self, packed: Tensor, size: int, controls: Controls | None) -> Tensor:
        """Bring a step to the inbox and run its graph: ids [rows] int64, overwritten by the next step."""
        self.inbox[: packed.shape[0]].copy_(packed, non_blocking=True)
        graph, static, logits, ids = self._graphs[size]
        graph.replay()
        if controls is not None:
            ids.copy_(self.backend.draw(logits, replace(static, controls=controls.to(ids.device))))
        return ids

    def close(self) -> None:
        for graph, *_ in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        _ALIVE.discard(self)
        self.inbox = self.tables = torch.empty(0, dtype=torch.int32, device="cpu")
        self.last_ids = torch.empty(0, dtype=torch.int64, device="cpu")

    def _run(self, model: CausalLM, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        size = batch.num_tokens
        spread_tables(batch.packed[packed_size(self._shapes(size, 0)) :], batch.table_width, batch.block_tables)
        feed_ids(batch.input_ids, self.last_ids)
        # Over ranks every sum is NCCL's, which waits for what is before it.
        is_early = size <= self.backend.early_tokens and self.backend.ranks.size == 1
        with early_launches() if is_early else nullcontext():
            hidden = model.forward(self.backend, batch)
        # Of decode rows every token is sampled.
        logits = self.backend.raw_logits(hidden, batch.logits_rows if batch.num_prefill else None, model.lm_head)
        ids = self.last_ids[: batch.num_seqs]
        ids.copy_(self.backend.draw(logits, batch))
        return logits, ids
