"""Small steps with prompt tokens as CUDA graphs: kernel by kernel, a short prompt costs the host more than the GPU.

A graph has a fixed number of tokens and of rows; tokens of padding store nothing and belong to no row, rows of padding
have no token. Rows with one token are run as those with many.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.attention.by_phase import AttentionByPhase
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.graphs import Graphs
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.packing import Shapes, packed_size, unpack

if TYPE_CHECKING:
    from nvexplore.backends.cuda import CudaBackend
    from nvexplore.models.decoder import CausalLM

SIZES = (16, 32, 64, 128, 256, 512)
ROWS = 16


def step_shapes(rows: int, tile: int, size: int, width: int) -> Shapes:
    """The shapes of a step of ``size`` tokens in ``rows`` rows, each of which may end within a tile of tokens."""
    by_row, by_token, ends = (rows,), (size,), (rows + 1,)
    return {
        "sample_keys": by_row,
        "input_ids": by_token,
        "positions": by_token,
        "slot_mapping": by_token,
        "cu_seqlens_q": ends,
        "cu_seqlens_k": ends,
        "context_lens": by_row,
        "order": (0,),
        "logits_rows": by_row,
        "temperatures": by_row,
        "tiles": (2, size // tile + rows),
        "table_width": (1,),
        "block_tables": (rows, width),
    }


class PrefillGraphs(Graphs):
    """Graphs of steps of up to ROWS rows; a step uses the smallest that its tokens fit in."""

    def __init__(
        self,
        backend: CudaBackend,
        attention: PagedAttention,
        tile: int,
        group: int,
        last_ids: Tensor,
        max_blocks: int,
        block_size: int,
    ) -> None:
        self.rows = min(ROWS, last_ids.shape[0])
        self._tile, self._group = tile, group
        self._attention, self._block_size = attention, block_size
        shapes = partial(step_shapes, self.rows, tile)
        super().__init__(backend, shapes, self.rows, max_blocks, SIZES[-1], last_ids)

    @classmethod
    def of(
        cls,
        backend: CudaBackend,
        attention: PagedAttention,
        model: CausalLM,
        last_ids: Tensor,
        max_blocks: int,
        block_size: int,
    ) -> PrefillGraphs | None:
        """None for an attention that must know on the host how long the rows are."""
        prefill = attention.prefill if isinstance(attention, AttentionByPhase) else attention
        layers = [layer.self_attn for layer in model.decoder_layers()]
        kinds = {(layer.head_dim, layer.num_heads // layer.num_kv_heads) for layer in layers}
        if not isinstance(prefill, TritonPagedAttention) or len(kinds) != 1:
            return None
        head_dim, group = kinds.pop()
        tile = prefill.tile_tokens(backend.dtype, head_dim, group)
        return cls(backend, attention, tile, group, last_ids, max_blocks, block_size)

    def sizes_up_to(self, max_tokens: int) -> list[int]:
        return [size for size in SIZES if size <= max_tokens]

    def size_for(self, tokens: int, rows: int) -> int | None:
        """The size of the graph that runs so many tokens of so many rows, or None if there are too many of either."""
        if rows > self.rows:
            return None
        return min((size for size in self._graphs if size >= tokens), default=None)

    def replay(self, host: ForwardBatch, size: int, packed: Tensor) -> Tensor:
        """Run a batch as the graph of a size: ids [R] int64, overwritten by the next step.

        packed: int32 of ``num_words(host, size)``, to lay the batch out in.
        """
        self._lay_out(host, unpack(packed, self._shapes(size, host.block_tables.shape[1])))
        return self.replay_packed(packed, size, host.controls)[: host.num_samples]

    def num_words(self, host: ForwardBatch, size: int) -> int:
        return packed_size(self._shapes(size, host.block_tables.shape[1]))

    def _lay_out(self, host: ForwardBatch, fields: dict[str, Tensor]) -> None:
        """Copy a batch to the fields of a larger one."""
        tokens, rows, samples = host.num_tokens, host.num_seqs, host.num_samples
        ends = {"cu_seqlens_q": rows + 1, "cu_seqlens_k": rows + 1}
        counts = dict.fromkeys(("input_ids", "positions", "slot_mapping"), tokens) | ends
        counts |= dict.fromkeys(("logits_rows", "sample_keys", "temperatures"), samples)
        counts |= {"context_lens": rows, "table_width": 1, "block_tables": rows}
        for name, count in counts.items():
            given, field = getattr(host, name), fields[name]
            field[:count] = given
            if name in ends:
                field[count:] = given[-1]
            elif name in ("slot_mapping", "block_tables"):
                field[count:] = -1
            else:
                field[count:] = 0
        starts = host.cu_seqlens_q.tolist()
        tiles = [(row, first) for row in range(rows) for first in range(0, starts[row + 1] - starts[row], self._tile)]
        tiles.sort(key=lambda tile: -tile[1])
        tiles += [(-1, 0)] * (fields["tiles"].shape[1] - len(tiles))
        fields["tiles"].copy_(torch.tensor(tiles, dtype=torch.int32, device="cpu").T)

    def batch_of(self, size: int) -> ForwardBatch:
        fields: dict[str, Any] = unpack(self.inbox, self._shapes(size, 0))
        fields["block_tables"] = self.tables
        fields["tiles"].fill_(-1)
        fields["slot_mapping"].fill_(-1)
        batch = ForwardBatch(
            packed=self.inbox,
            **fields,
            block_size=self._block_size,
            num_prefill=self.rows,
            num_decode=0,
            num_padding=0,
            max_seqlen_q=size,
            max_seqlen_k=self.tables.shape[1] * self._block_size,
        )
        attention = self._attention
        if isinstance(attention, AttentionByPhase):
            return replace(batch, plan=attention.plan_in_graph(batch, self._group))
        assert isinstance(attention, TritonPagedAttention)  # or there would be no graphs
        return replace(batch, plan=attention.plan_in_graph(batch, self._group))
