"""Measures what a KV pool may have of a GPU's memory, by running the largest steps there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nvexplore.runner.kv_cache import DeviceMemory


def measured_memory(
    device: torch.device, held_before: int, utilization: float, run_largest: Callable[[], int]
) -> DeviceMemory:
    """held_before: bytes of tensors that are not this engine's; run_largest: see ``Backend.available_memory``."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device)
    weights = max(0, held - held_before)
    torch.cuda.reset_peak_memory_stats(device)
    pool = run_largest()
    torch.cuda.synchronize(device)
    # That pool was there all the time, and is gone by now: it is in the peak, and not in what is free.
    peak = max(0, torch.cuda.max_memory_allocated(device) - held - pool)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, utilization, weights, peak, free)
