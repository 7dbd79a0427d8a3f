"""Attention implementations by name; each is imported only when it is chosen."""

from __future__ import annotations

import torch

from nvexplore.backends.attention.base import PagedAttention
from nvexplore.backends.attention.choice import Facts, choose, installed_packages


def create_attention(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    prefill: str | None = None,
    decode: str | None = None,
    block_size: int = 16,
    head_dim: int | None = None,
    kv_dtype: torch.dtype | None = None,
) -> PagedAttention:
    """Make the implementation ``name`` ("auto": the best for ``device``); ValueError says what does not fit and why.

    prefill, decode: names for steps with prefill rows and without, where these are to differ from ``name``.
    kv_dtype: of keys and values in the pool, where it is another than ``dtype``.
    """
    on_gpu = device.type == "cuda"
    facts = Facts(
        device_type=device.type,
        dtype=dtype,
        block_size=block_size,
        head_dim=head_dim,
        capability=torch.cuda.get_device_capability(device) if on_gpu else None,
        installed=installed_packages() if on_gpu else frozenset(),
        kv_dtype=kv_dtype,
    )
    prefills, decodes = (
        choose(*(("attention_backend", name) if asked is None else (f"{phase}_backend", asked)), phase, facts)
        for phase, asked in (("prefill", prefill), ("decode", decode))
    )
    if prefills == decodes:
        return _make(decodes, device, dtype)
    from nvexplore.backends.attention.by_phase import AttentionByPhase

    return AttentionByPhase(_make(prefills, device, dtype), _make(decodes, device, dtype))


def _make(chosen: str, device: torch.device, dtype: torch.dtype) -> PagedAttention:
    if chosen == "triton":
        from nvexplore.backends.attention.triton_paged import TritonPagedAttention

        return TritonPagedAttention.on(device)
    if chosen == "flash_attn_2":
        from nvexplore.backends.attention.flash_attn import FlashAttention2

        return FlashAttention2()
    if chosen == "flash_attn_4":
        from nvexplore.backends.attention.flash_attn import FlashAttention4

        return FlashAttention4()
    from nvexplore.backends.attention.torch_paged import TorchPagedAttention

    return TorchPagedAttention(dtype)


__all__ = ["PagedAttention", "create_attention"]
