"""The two flash-attn packages without a GPU: their functions in plain torch, as strict about arguments as they are.

Signatures as in flash-attn 2.8.3 and flash-attn-4 4.0.0b36. Both refuse a block table with an entry outside the pool,
of which the real ones would read whatever lies there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor


@dataclass
class Calls:
    """Which functions were called, in order. as_tuple: whether flash-attn-4 gives (out, lse), as it may."""

    names: list[str] = field(default_factory=list)
    as_tuple: bool = True


def install(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    """Put both packages where an import finds them."""

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Tensor:
        calls.names.append("varlen")
        assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        contexts = [end - start for start, end in pairwise(_ints(cu_seqlens_k))]
        _check(q, k, v, causal, block_table, (max_seqlen_q, max_seqlen_k), _ints(cu_seqlens_q), contexts)
        return _attend(q, k, v, _ints(cu_seqlens_q), contexts, block_table, softmax_scale)

    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None,
        block_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Tensor:
        calls.names.append("with_kvcache")
        assert q.ndim == 4 and q.shape[1] == 1, "[batch, 1, heads, head_dim]"
        assert k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        assert cache_seqlens is not None
        starts, contexts = list(range(q.shape[0] + 1)), _ints(cache_seqlens)
        _check(q[:, 0], k_cache, v_cache, causal, block_table, (1, max(contexts)), starts, contexts)
        return _attend(q[:, 0], k_cache, v_cache, starts, contexts, block_table, softmax_scale)[:, None]

    def flash_attn_4_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        qv: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        min_seqlen_k: int | None = None,
        seqused_q: Tensor | None = None,
        seqused_k: Tensor | None = None,
        gather_kv_indices: Tensor | None = None,
        page_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
        learnable_sink: Tensor | None = None,
        softcap: float = 0.0,
        num_splits: int = 1,
        pack_gqa: bool | None = None,
        deterministic: bool = False,
        **compiled_hooks: None,
    ) -> Tensor | tuple[Tensor, None]:
        calls.names.append("cute")
        assert not compiled_hooks, f"unexpected keyword arguments {list(compiled_hooks)}"
        assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        assert num_splits == 1, "SplitKV not supported on SM 9.0"
        assert cu_seqlens_q is not None and seqused_k is not None
        assert max_seqlen_q is not None and max_seqlen_k is not None
        starts, contexts = _ints(cu_seqlens_q), _ints(seqused_k)
        _check(q, k, v, causal, page_table, (max_seqlen_q, max_seqlen_k), starts, contexts)
        assert page_table is not None
        for row, context in enumerate(contexts):
            used = page_table[row, : max(1, -(-context // k.shape[1]))].long()
            assert k[used].isfinite().all() and v[used].isfinite().all(), "it is multiplied by 0, not left out"
        out = _attend(q, k, v, starts, contexts, page_table, softmax_scale)
        for row, context in enumerate(contexts):
            if not context:  # it reads the first block whatever the context is
                out[starts[row] : starts[row + 1]] = v[page_table[row, 0]].mean()
        return (out, None) if calls.as_tuple else out

    both, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    vars(both).update(
        flash_attn_varlen_func=flash_attn_varlen_func, flash_attn_with_kvcache=flash_attn_with_kvcache, cute=cute
    )
    vars(cute).update(flash_attn_varlen_func=flash_attn_4_varlen_func)
    monkeypatch.setitem(sys.modules, "flash_attn", both)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)


def _ints(values: Tensor) -> list[int]:
    assert values.dtype == torch.int32 and values.is_contiguous()
    found: list[int] = values.tolist()
    return found


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    tables: Tensor | None,
    longest: tuple[Any, Any],
    starts: list[int],
    contexts: list[int],
) -> None:
    assert q.dtype == k.dtype == v.dtype and q.dtype in (torch.float16, torch.bfloat16)
    assert causal, "an engine's attention is"
    assert tables is not None and tables.dtype == torch.int32 and tables.stride(-1) == 1
    assert tables.shape[0] == len(contexts) == len(starts) - 1
    assert (tables >= 0).all() and (tables < k.shape[0]).all(), f"outside the pool: {tables.tolist()}"
    assert all(isinstance(limit, int) for limit in longest), "a graph cannot read a tensor"
    assert longest[0] >= max(end - start for start, end in pairwise(starts)) and longest[1] >= max(contexts)
    # While a graph is captured its inbox is empty.
    assert starts[-1] == q.shape[0] or not any(starts)
    assert max(contexts) <= tables.shape[1] * k.shape[1]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: list[int],
    contexts: list[int],
    tables: Tensor | None,
    scale: float | None,
) -> Tensor:
    assert tables is not None and scale is not None
    out = torch.zeros(q.shape, dtype=q.dtype)
    group = q.shape[1] // k.shape[2]
    for row, context in enumerate(contexts):
        if not context:
            continue
        blocks = tables[row, : -(-context // k.shape[1])].long()
        keys, values = (
            cache[blocks].flatten(0, 1)[:context].float().repeat_interleave(group, dim=1) for cache in (k, v)
        )
        queries = q[starts[row] : starts[row + 1]].float()
        scores = torch.einsum("thd,shd->hts", queries, keys) * scale
        last = torch.arange(context - len(queries), context)  # the last query sees the last key
        scores = scores.masked_fill(torch.arange(context) > last[:, None], -torch.inf)
        out[starts[row] : starts[row + 1]] = torch.einsum("hts,shd->thd", scores.softmax(dim=-1), values).to(q.dtype)
    return out
