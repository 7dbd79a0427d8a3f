"""Paged attention by the flash-attn packages: flash-attn 2, and flash-attn-4, which is compiled at its first use.

Both are told where a row's context ends, by device tensors, so a captured call follows what a graph's inbox holds.
A row of padding has context 0: flash-attn 2 gives zeros for it, flash-attn-4 something made of block 0, finite where
the pool is. Nobody uses either. flash-attn-4 multiplies what lies behind a context in its last block by weight 0, so
the pool must be finite, as ``KVCache`` makes it.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from nvexplore.runner.forward_batch import ForwardBatch


class _Plan(NamedTuple):
    """batch: the step's, on the device; tables: its block tables without -1; is_decode: each row has one token."""

    batch: ForwardBatch
    tables: Tensor
    is_decode: bool


def _plan(host: ForwardBatch, batch: ForwardBatch | None) -> _Plan:
    """Replace the -1 that pad block tables by block 0, once for all layers.

    A batch that comes alone is the static one of a graph: its tables are filled at each replay, by ``spread_tables``,
    which writes block 0 for -1. A copy made here would stay as it is now.
    """
    is_decode = host.num_tokens == host.num_seqs
    if batch is None:
        return _Plan(host, host.block_tables, is_decode)
    return _Plan(batch, batch.block_tables.clamp(min=0), is_decode)


class FlashAttention2:
    """``PagedAttention`` by flash-attn 2: 16 bits, blocks of a multiple of 256 tokens."""

    name = "flash_attn"

    def __init__(self) -> None:
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

        self._varlen = flash_attn_varlen_func
        self._with_kvcache = flash_attn_with_kvcache

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> _Plan:
        return _plan(host, batch)

    def offer(self, qkv: Tensor, k_cache: Tensor, plan: _Plan) -> bool:
        return False

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: _Plan) -> Tensor:
        batch = plan.batch
        if plan.is_decode:
            # Splits the keys of few rows over the whole GPU, which the other function does not.
            out: Tensor = self._with_kvcache(
                q[:, None],
                k_cache,
                v_cache,
                cache_seqlens=batch.context_lens,
                block_table=plan.tables,
                softmax_scale=scale,
                causal=True,
            )
            return out[:, 0]
        out = self._varlen(
            q,
            k_cache,
            v_cache,
            cu_seqlens_q=batch.cu_seqlens_q,
            cu_seqlens_k=batch.cu_seqlens_k,
            max_seqlen_q=batch.max_seqlen_q,
            max_seqlen_k=batch.max_seqlen_k,
            softmax_scale=scale,
            causal=True,
            block_table=plan.tables,
        )
        return out

    def close(self) -> None:
        """There is nothing to free."""


class FlashAttention4:
    """``PagedAttention`` by flash-attn-4: 16 bits, blocks of any size; one function for every mix of rows."""

    name = "flash_attn"

    def __init__(self) -> None:
        from flash_attn.cute import flash_attn_varlen_func

        self._varlen = flash_attn_varlen_func

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> _Plan:
        return _plan(host, batch)

    def offer(self, qkv: Tensor, k_cache: Tensor, plan: _Plan) -> bool:
        return False

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: _Plan) -> Tensor:
        batch = plan.batch
        found: Tensor | tuple[Tensor, ...] = self._varlen(
            q,
            k_cache,
            v_cache,
            cu_seqlens_q=batch.cu_seqlens_q,
            seqused_k=batch.context_lens,
            max_seqlen_q=batch.max_seqlen_q,
            max_seqlen_k=batch.max_seqlen_k,
            page_table=plan.tables,
            causal=True,
            softmax_scale=scale,
            num_splits=1,  # it splits keys on other GPUs only
        )
        return found[0] if isinstance(found, tuple) else found

    def close(self) -> None:
        """There is nothing to free."""
