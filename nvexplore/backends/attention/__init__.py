"""Attention implementations by name; each is imported only when it is chosen."""

from __future__ import annotations

from typing import Final

import torch

from nvexplore.backends.attention.base import PagedAttention

# Which implementations run where, the preferred one first.
_BY_DEVICE: Final = {"cpu": ("torch",), "cuda": ("triton",)}


def create_attention(name: str, device: torch.device, dtype: torch.dtype) -> PagedAttention:
    """Make the implementation ``name`` ("auto": the best for ``device``); ValueError lists what there is."""
    names = _BY_DEVICE.get(device.type, ())
    chosen = names[0] if name == "auto" and names else name
    if chosen not in names:
        raise ValueError(
            f"attention_backend={name!r}: not available on {device.type} (available: auto, {', '.join(names)})"
        )
    if chosen == "triton":
        from nvexplore.backends.attention.triton_paged import TritonPagedAttention

        return TritonPagedAttention(torch.cuda.get_device_properties(device).multi_processor_count)
    from nvexplore.backends.attention.torch_paged import TorchPagedAttention

    return TorchPagedAttention(dtype)


__all__ = ["PagedAttention", "create_attention"]
