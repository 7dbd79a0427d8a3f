"""Backends by device; ``create_backend`` is the one place that asks which device it is."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from nvexplore.backends.attention import create_attention
from nvexplore.backends.attention.base import PagedAttention
from nvexplore.backends.base import Backend
from nvexplore.backends.ranks import Ranks
from nvexplore.runner.kv_cache import resolve_kv_dtype


def create_backend(
    device: str | torch.device,
    dtype: torch.dtype,
    attention_backend: str = "auto",
    *,
    prefill_backend: str | None = None,
    decode_backend: str | None = None,
    block_size: int = 16,
    head_dim: int | None = None,
    kv_cache_dtype: str = "auto",
    compile_layers: bool = False,
    gpu_memory_utilization: float = 0.9,
    ranks: Ranks | None = None,
) -> Backend:
    """Make the backend for ``device``; ValueError names what is not supported and what is.

    dtype: of weights and activations; kv_cache_dtype: of KV, "auto" for the same. attention_backend: "auto" or a name
    that the device has; prefill_backend, decode_backend: another one for steps with prefill rows, or without.
    block_size: of the KV pool; head_dim: of the model, where it is known: not every attention backend takes every one.
    compile_layers: torch.compile in place of fused kernels.
    gpu_memory_utilization: the share of a GPU's memory that the engine may use.
    ranks: this process among those that share a model; None: it has all of it.
    """
    device = resolve_device(device)
    attention = choose_attention(
        device,
        dtype,
        attention_backend,
        prefill_backend=prefill_backend,
        decode_backend=decode_backend,
        block_size=block_size,
        head_dim=head_dim,
        kv_cache_dtype=kv_cache_dtype,
        compile_layers=compile_layers,
    )
    backend: Backend
    if device.type == "cpu":
        from nvexplore.backends.cpu import CpuBackend

        backend = CpuBackend(dtype, attention)
    elif compile_layers:
        from nvexplore.backends.compiled_layers import CompiledCudaBackend

        backend = CompiledCudaBackend(device, dtype, attention, utilization=gpu_memory_utilization)
    else:
        from nvexplore.backends.cuda import CudaBackend

        backend = CudaBackend(device, dtype, attention, utilization=gpu_memory_utilization)
    if ranks is not None:
        backend.ranks = ranks
    return backend


def choose_attention(
    device: torch.device,
    dtype: torch.dtype,
    attention_backend: str = "auto",
    *,
    prefill_backend: str | None = None,
    decode_backend: str | None = None,
    block_size: int = 16,
    head_dim: int | None = None,
    kv_cache_dtype: str = "auto",
    compile_layers: bool = False,
) -> PagedAttention:
    """Raise what ``create_backend`` would of these, or give the attention that it would take. Nothing is allocated."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype={dtype}: must be float32, bfloat16 or float16")
    if compile_layers and device.type == "cpu":
        # Ignored, it would leave somebody who measures what compiling gains with a figure that shows nothing.
        raise ValueError("compile_layers=True: layers are compiled for a GPU only, and device is 'cpu'; leave it out")
    return create_attention(
        attention_backend,
        device,
        dtype,
        prefill=prefill_backend,
        decode=decode_backend,
        block_size=block_size,
        head_dim=head_dim,
        kv_dtype=resolve_kv_dtype(kv_cache_dtype, dtype),
    )


def resolve_device(device: str | torch.device) -> torch.device:
    """The device that is meant: "auto" is the GPU where there is one that runs Triton, else the CPU.

    Raises ValueError for a device without a backend, or a GPU that is not there.
    """
    has_gpu = torch.cuda.is_available() and find_spec("triton") is not None
    asked = device
    try:
        device = torch.device(("cuda" if has_gpu else "cpu") if device == "auto" else device)
    except RuntimeError:
        raise ValueError(f"device={asked!r}: must be 'auto', 'cpu', 'cuda' or 'cuda:1'") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={str(device)!r}: no backend for it (available: 'cpu', 'cuda')")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if has_gpu else 0
    index = device.index or 0
    if index >= count:
        raise ValueError(f"device={str(device)!r}: torch and triton see {count} GPUs here")
    return torch.device("cuda", index)


__all__ = ["Backend", "Ranks", "create_backend", "resolve_device"]
