"""Decode steps as CUDA graphs: embedding to sampled ids, one graph for each of a ladder of batch sizes.

A graph reads a fixed place in memory, the inbox, into which one copy a step brings everything the host knows. What lies
where in it depends on the graph's size alone, but for the width of the block tables: a kernel at the graph's start
spreads them to the widest.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.kernels.feed_ids import feed_ids
from nvexplore.backends.kernels.spread_tables import spread_tables
from nvexplore.progress import progress_bar
from nvexplore.runner.forward_batch import ForwardBatch, decode_batch_of
from nvexplore.runner.packing import decode_shapes, packed_size

if TYPE_CHECKING:
    from nvexplore.backends.cuda import CudaBackend
    from nvexplore.models.decoder import CausalLM
    from nvexplore.runner.decode_rows import DecodeBatch


def ladder(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture: 1, 2, 4, then multiples of 8 up to 64 and of 16 beyond, and ``max_num_seqs`` itself."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, max_num_seqs + 1, 16)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


class DecodeGraphs:
    """Graphs of one model, all in one memory pool; a step uses the smallest that its rows fit in.

    num_bytes: what capturing took of the device's memory.
    """

    def __init__(
        self, backend: CudaBackend, attention: PagedAttention, max_num_seqs: int, max_blocks: int, block_size: int
    ) -> None:
        self._backend = backend
        self._attention = attention
        self._sizes = ladder(max_num_seqs)
        self.largest = max_num_seqs
        device = backend.device
        self._inbox = torch.zeros(
            packed_size(decode_shapes(max_num_seqs, max_blocks)), dtype=torch.int32, device=device
        )
        self._tables = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, device=device)
        # What the step before has drawn: each graph begins by reading it, and ends by writing it.
        self.last_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._block_size = block_size
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, ForwardBatch, Tensor, Tensor]] = {}
        # The smallest captured size for each number of rows.
        self._size_for = [0] * (max_num_seqs + 1)
        self.num_bytes = 0

    def size_for(self, rows: int) -> int | None:
        """The size of the graph that runs ``rows`` rows, or None if they are too many."""
        return self._size_for[rows] if rows <= self.largest else None

    def replay(self, batch: DecodeBatch) -> Tensor:
        """Bring a batch to the inbox and run its graph: ids [size] int64, overwritten by the next step."""
        self._inbox[: batch.packed.shape[0]].copy_(batch.packed, non_blocking=True)
        graph, static, logits, ids = self._graphs[batch.size]
        graph.replay()
        if batch.controls is not None:
            ids.copy_(self._backend.sample(logits, replace(static, controls=batch.controls.to(ids.device))))
        return ids

    def capture(self, model: CausalLM, *, progress: bool) -> None:
        """Capture every size, the largest first: the smaller ones then fit in its memory."""
        device = self._backend.device
        before = torch.cuda.memory_reserved(device)
        pool = torch.cuda.graph_pool_handle()
        with closing(progress_bar(len(self._sizes), progress, desc="capture", unit="graph")) as bar:
            for size in reversed(self._sizes):
                batch = self._batch_of(size)
                self._run(model, batch)  # compiles kernels and makes cuBLAS choose, which a capture may not
                torch.cuda.synchronize(device)
                graph = torch.cuda.CUDAGraph()
                # On torch's own capture stream: cuBLAS keeps memory for each stream it has ever seen.
                with torch.cuda.graph(graph, pool=pool):
                    logits, ids = self._run(model, batch)
                self._graphs[size] = graph, batch, logits, ids
                bar.update(1)
        smallest = 0
        for rows in range(self.largest, -1, -1):
            smallest = rows if rows in self._graphs else smallest
            self._size_for[rows] = smallest
        self.num_bytes = torch.cuda.memory_reserved(device) - before

    def close(self) -> None:
        for graph, *_ in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._inbox = self._tables = torch.empty(0, dtype=torch.int32)
        self.last_ids = torch.empty(0, dtype=torch.int64)

    def _batch_of(self, size: int) -> ForwardBatch:
        batch = decode_batch_of(self._inbox, size, self._tables[:size], self._block_size)
        return replace(batch, plan=self._attention.plan(batch))

    def _run(self, model: CausalLM, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        tables = batch.packed[packed_size(decode_shapes(batch.num_seqs, 0)) :]
        spread_tables(tables, batch.table_width, batch.block_tables)
        feed_ids(batch.input_ids, self.last_ids)
        hidden = model.forward(self._backend, batch)
        logits = self._backend.raw_logits(hidden, None, model.lm_head)
        ids = self.last_ids[: batch.num_seqs]
        ids.copy_(self._backend.sample(logits, batch))
        return logits, ids
