"""Decode steps as CUDA graphs: embedding to sampled ids, one graph for each of a ladder of batch sizes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.graphs import Graphs
from nvexplore.backends.prefill_graphs import PrefillGraphs
from nvexplore.progress import progress_bar
from nvexplore.runner.forward_batch import ForwardBatch, decode_batch_of
from nvexplore.runner.packing import decode_shapes

if TYPE_CHECKING:
    from nvexplore.backends.cuda import CudaBackend
    from nvexplore.models.decoder import CausalLM
    from nvexplore.runner.decode_rows import DecodeBatch


def ladder(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture: 1, 2, 4, then multiples of 8 up to 64 and of 16 beyond, and ``max_num_seqs`` itself."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, max_num_seqs + 1, 16)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


class DecodeGraphs(Graphs):
    """Graphs of decode steps; a step uses the smallest that its rows fit in.

    prefill:   graphs of small steps with prompt tokens, in the same memory; None where the attention can't.
    num_bytes: what capturing took of the device's memory.
    """

    def __init__(
        self, backend: CudaBackend, attention: PagedAttention, max_num_seqs: int, max_blocks: int, block_size: int
    ) -> None:
        last_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=backend.device)
        super().__init__(backend, decode_shapes, max_num_seqs, max_blocks, max_num_seqs, last_ids)
        self._attention = attention
        self._block_size = block_size
        self._max_blocks = max_blocks
        self.largest = max_num_seqs
        self.prefill: PrefillGraphs | None = None
        # The smallest captured size for each number of rows.
        self._size_for = [0] * (max_num_seqs + 1)
        self.num_bytes = 0

    def size_for(self, rows: int) -> int | None:
        """The size of the graph that runs ``rows`` rows, or None if they are too many."""
        return self._size_for[rows] if rows <= self.largest else None

    def replay(self, batch: DecodeBatch) -> Tensor:
        """Run a batch as the graph of its size: ids [size] int64, overwritten by the next step."""
        return self.replay_packed(batch.packed, batch.size, batch.controls)

    def capture_all(self, model: CausalLM, max_tokens: int, *, progress: bool) -> None:
        """Capture every size, and small steps with prompt tokens, of up to ``max_tokens`` tokens."""
        device = self.backend.device
        torch.cuda.empty_cache()  # as the first capture does, which would hide as much of what the graphs take
        before = torch.cuda.memory_reserved(device)
        pool = torch.cuda.graph_pool_handle()
        decode = ladder(self.largest)
        self.prefill = PrefillGraphs.of(
            self.backend, self._attention, model, self.last_ids, self._max_blocks, self._block_size
        )
        small = [] if self.prefill is None else self.prefill.sizes_up_to(max_tokens)
        with closing(progress_bar(len(decode) + len(small), progress, desc="capture", unit="graph")) as bar:
            self.capture(model, decode, pool, lambda: bar.update(1))
            if self.prefill is not None:
                self.prefill.capture(model, small, pool, lambda: bar.update(1))
        smallest = 0
        for rows in range(self.largest, -1, -1):
            smallest = rows if rows in self._graphs else smallest
            self._size_for[rows] = smallest
        self.num_bytes = torch.cuda.memory_reserved(device) - before

    def close(self) -> None:
        super().close()
        if self.prefill is not None:
            self.prefill.close()

    def batch_of(self, size: int) -> ForwardBatch:
        batch = decode_batch_of(self.inbox, size, self.tables[:size], self._block_size)
        batch.order.copy_(torch.arange(size, dtype=torch.int32, device="cpu"))
        batch.slot_mapping.fill_(-1)
        return replace(batch, plan=self._attention.plan(batch))
