"""Backends by device; ``create_backend`` is the one place that asks which device it is."""

from __future__ import annotations

import torch

from nvexplore.backends.attention import create_attention
from nvexplore.backends.base import Backend


def create_backend(device: str | torch.device, dtype: torch.dtype, attention_backend: str = "auto") -> Backend:
    """Make the backend for ``device``; ValueError names what is not supported and what is.

    dtype: of weights, activations and KV; attention_backend: "auto" or a name that the device has.
    """
    # "auto" is the best device there is a backend for: for now that is the CPU everywhere.
    device = torch.device("cpu" if device == "auto" else device)
    if device.type == "cpu":
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"dtype={dtype}: must be float32, bfloat16 or float16")
        from nvexplore.backends.cpu import CpuBackend

        return CpuBackend(dtype, create_attention(attention_backend, device, dtype))
    raise ValueError(f"device={str(device)!r}: no backend for it (available: 'cpu')")


__all__ = ["Backend", "create_backend"]
