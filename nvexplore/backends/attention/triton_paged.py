"""Paged attention by the project's own Triton kernels: any block size, head size and mix of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nvexplore.backends.kernels.decode_attention import decode_attention, most_split, num_splits
from nvexplore.backends.kernels.fresh_attention import fresh_attention, fresh_tile_shape, takes
from nvexplore.backends.kernels.prefill_attention import prefill_attention, tile_shape
from nvexplore.runner.forward_batch import ForwardBatch


class _Kind(Enum):
    """Rows of several tokens that are attended for together."""

    ALL = auto()
    FRESH = auto()  # those that begin in this step
    BEGUN = auto()  # those with keys in the pool from before


@dataclass(slots=True)
class _Plan:
    """batch: the step's, on the device.

    counts, contexts: [N] tokens and context of each row on the host; counts is None where each row has one token and
                   the rows are the batch.
    single, where: [n] int32 rows with one token among longer ones, and their tokens; None where there are none.
    tiles:         (rows, first tokens) of a prefill kernel's tiles, by kind of rows and query heads a KV head.
    projection:    what the next ``forward`` finds new keys and values in, or None.
    has_fresh:     whether there are rows that begin in this step, and a kernel for them.
    """

    batch: ForwardBatch
    counts: list[int] | None = None
    contexts: list[int] = field(default_factory=list)
    single: Tensor | None = None
    where: Tensor | None = None
    tiles: dict[tuple[_Kind, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    projection: Tensor | None = None
    has_fresh: bool = False

    def tiles_of(self, kind: _Kind, group: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Tiles of ``tokens`` tokens that cover the rows of a kind; worked out for the first layer that asks."""
        if (kind, group) not in self.tiles:
            assert self.counts is not None
            counts = [
                count if kind is _Kind.ALL or (count == context) is (kind is _Kind.FRESH) else 0
                for count, context in zip(self.counts, self.contexts, strict=True)
            ]
            self.tiles[kind, group] = _tiles(counts, tokens, self.batch.input_ids.device)
        return self.tiles[kind, group]


class TritonPagedAttention:
    """``PagedAttention`` in Triton, over a pool in the format of the queries or a narrower one.

    num_processors: of the device; decides how far keys are split.
    has_tma: whether the device copies tensors by itself: then new prompts do without the pool.
    """

    name = "triton"

    def __init__(self, num_processors: int, *, has_tma: bool = False) -> None:
        self._num_processors = num_processors
        self._has_tma = has_tma
        self._ended: Tensor | None = None

    @classmethod
    def on(cls, device: torch.device) -> Self:
        """For a GPU."""
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(processors, has_tma=torch.cuda.get_device_capability(device) >= (9, 0))

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> _Plan:
        batch = host if batch is None else batch
        if host.num_tokens == host.num_seqs:
            return _Plan(batch)
        starts = host.cu_seqlens_q.tolist()
        counts = [end - start for start, end in pairwise(starts)]
        contexts = host.context_lens.tolist()
        pairs = zip(counts, contexts, strict=True)
        plan = _Plan(batch, counts, contexts)
        plan.has_fresh = self._has_tma and any(count == context > 1 for count, context in pairs)
        if single := [row for row, count in enumerate(counts) if count == 1]:
            device = batch.input_ids.device
            plan.single, plan.where = _upload(single, device), _upload([starts[row] for row in single], device)
        return plan

    def offer(self, qkv: Tensor, k_cache: Tensor, plan: _Plan) -> bool:
        if not plan.has_fresh or qkv.dtype != k_cache.dtype or not takes(qkv.dtype, k_cache.shape[3]):
            return False
        plan.projection = qkv
        return True

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: _Plan) -> Tensor:
        batch, num_kv_heads = plan.batch, k_cache.shape[2]
        tables, contexts = batch.block_tables, batch.context_lens
        longest = tables.shape[1] * k_cache.shape[1]
        if plan.counts is None:
            splits = num_splits(batch.num_seqs, num_kv_heads, self._num_processors, longest)
            return decode_attention(
                q, k_cache, v_cache, tables, contexts, scale,
                splits=splits, rows=batch.order, tokens=batch.order, ended=self._counters(q.device),
            )  # fmt: skip
        # In a graph some tokens are padding, which no tile writes: they must be numbers all the same.
        new = torch.empty if plan.counts else torch.zeros
        out = new(q.shape, dtype=q.dtype, device=q.device)
        group, kind = q.shape[1] // num_kv_heads, _Kind.ALL
        projection, plan.projection = plan.projection, None
        if projection is not None:
            rows, firsts = plan.tiles_of(_Kind.FRESH, group, fresh_tile_shape().tokens(group))
            fresh_attention(q, projection, batch.cu_seqlens_q, scale, tile_rows=rows, tile_firsts=firsts, out=out)
            kind = _Kind.BEGUN
        rows, firsts = plan.tiles_of(kind, group, self.tile_tokens(q.dtype, q.shape[2], group))
        prefill_attention(
            q, k_cache, v_cache, tables, contexts, batch.cu_seqlens_q, scale,
            tile_rows=rows, tile_firsts=firsts, out=out,
        )  # fmt: skip
        if plan.single is not None:
            splits = num_splits(plan.single.shape[0], num_kv_heads, self._num_processors, longest)
            decode_attention(
                q, k_cache, v_cache, tables, contexts, scale,
                splits=splits, rows=plan.single, tokens=plan.where, out=out, ended=self._counters(q.device),
            )  # fmt: skip
        return out

    def _counters(self, device: torch.device) -> Tensor:
        """Where programs that share a row count themselves; for graphs it must stay where it is."""
        if self._ended is None:
            self._ended = torch.zeros(most_split(self._num_processors), dtype=torch.int32, device=device)
        return self._ended

    def tile_tokens(self, dtype: torch.dtype, head_dim: int, group: int) -> int:
        """Tokens of a tile of the prefill kernel where ``group`` query heads share a KV head."""
        return tile_shape(dtype.itemsize, head_dim).tokens(group)

    def plan_in_graph(self, batch: ForwardBatch, group: int) -> _Plan:
        """The plan of a batch whose tensors are filled anew before each run, its ``tiles`` too."""
        return _Plan(batch, [], tiles={(_Kind.ALL, group): (batch.tiles[0], batch.tiles[1])})

    def close(self) -> None:
        self._ended = None


def _tiles(counts: list[int], tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(row, first token) of the tiles of ``tokens`` tokens that cover the rows with more than one token.

    The last tile of a row comes first: it has the most keys, and long work that starts late is waited for.
    """
    tiles = [(row, first) for row, count in enumerate(counts) if count > 1 for first in range(0, count, tokens)]
    tiles.sort(key=lambda tile: -tile[1])
    # Both at a multiple of 16 bytes: Triton compiles a kernel once more for a pointer that is not.
    columns = np.zeros((2, -(-len(tiles) // 4) * 4), np.int32)
    columns[:, : len(tiles)] = np.array(tiles, np.int32).reshape(-1, 2).T
    rows, firsts = _upload(columns, device)[:, : len(tiles)]
    return rows, firsts


def _upload(values: list[int] | NDArray[np.int32], device: torch.device) -> Tensor:
    host = torch.from_numpy(np.asarray(values, np.int32))
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
