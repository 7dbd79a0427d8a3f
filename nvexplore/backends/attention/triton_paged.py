"""Paged attention by the project's own Triton kernels: any block size, head size and mix of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from nvexplore.backends.kernels.decode_attention import decode_attention, num_splits
from nvexplore.backends.kernels.prefill_attention import prefill_attention, tile_shape
from nvexplore.runner.forward_batch import ForwardBatch


@dataclass(slots=True)
class _Plan:
    """batch: the step's, on the device.

    counts:        [N] tokens of each row on the host, or None where each row has one and the rows are the batch.
    single, where: [n] int32 rows with one token among longer ones, and their tokens; None where there are none.
    tiles:         (rows, first tokens) of the prefill kernel's tiles, by query heads a KV head.
    """

    batch: ForwardBatch
    counts: list[int] | None = None
    single: Tensor | None = None
    where: Tensor | None = None
    tiles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class TritonPagedAttention:
    """``PagedAttention`` in Triton, over a pool in the format of the queries or a narrower one.

    num_processors: of the device; decides how far keys are split.
    """

    name = "triton"

    def __init__(self, num_processors: int) -> None:
        self._num_processors = num_processors

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> _Plan:
        batch = host if batch is None else batch
        if host.num_tokens == host.num_seqs:
            return _Plan(batch)
        starts = host.cu_seqlens_q.tolist()
        counts = [end - start for start, end in pairwise(starts)]
        single = [row for row, count in enumerate(counts) if count == 1]
        if not single:
            return _Plan(batch, counts)
        device = batch.input_ids.device
        return _Plan(batch, counts, _upload(single, device), _upload([starts[row] for row in single], device))

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: _Plan) -> Tensor:
        batch, num_kv_heads = plan.batch, k_cache.shape[2]
        tables, contexts = batch.block_tables, batch.context_lens
        if plan.counts is None:
            splits = num_splits(batch.num_seqs, num_kv_heads, self._num_processors)
            return decode_attention(q, k_cache, v_cache, tables, contexts, scale, splits=splits)
        # In a graph some tokens are padding, which no tile writes: they must be numbers all the same.
        new = torch.empty if plan.counts else torch.zeros
        out = new(q.shape, dtype=q.dtype, device=q.device)
        group = q.shape[1] // num_kv_heads
        if group not in plan.tiles:
            tokens = tile_shape(q.dtype.itemsize, q.shape[2]).tokens(group)
            plan.tiles[group] = _tiles(plan.counts, tokens, batch.input_ids.device)
        rows, firsts = plan.tiles[group]
        prefill_attention(
            q, k_cache, v_cache, tables, contexts, batch.cu_seqlens_q, scale,
            tile_rows=rows, tile_firsts=firsts, out=out,
        )  # fmt: skip
        if plan.single is not None:
            splits = num_splits(plan.single.shape[0], num_kv_heads, self._num_processors)
            decode_attention(
                q, k_cache, v_cache, tables, contexts, scale,
                splits=splits, rows=plan.single, tokens=plan.where, out=out,
            )  # fmt: skip
        return out

    def tile_tokens(self, dtype: torch.dtype, head_dim: int, group: int) -> int:
        """Tokens of a tile of the prefill kernel where ``group`` query heads share a KV head."""
        return tile_shape(dtype.itemsize, head_dim).tokens(group)

    def plan_in_graph(self, batch: ForwardBatch, group: int) -> _Plan:
        """The plan of a batch whose tensors are filled anew before each run, its ``tiles`` too."""
        return _Plan(batch, [], tiles={group: (batch.tiles[0], batch.tiles[1])})

    def close(self) -> None:
        """There is nothing to free."""


def _tiles(counts: list[int], tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(row, first token) of the tiles of ``tokens`` tokens that cover the rows with more than one token.

    The last tile of a row comes first: it has the most keys, and long work that starts late is waited for.
    """
    tiles = [(row, first) for row, count in enumerate(counts) if count > 1 for first in range(0, count, tokens)]
    tiles.sort(key=lambda tile: -tile[1])
    packed = _upload([value for tile in tiles for value in tile], device).view(-1, 2).t().contiguous()
    return packed[0], packed[1]


def _upload(values: list[int], device: torch.device) -> Tensor:
    host = torch.from_numpy(np.array(values, np.int32))
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
