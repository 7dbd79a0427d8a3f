"""Batches and numbers that kernels are timed on. Times nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch
from nvexplore.sampling_params import SamplingParams

TEMPERATURE = 0.6


def batch_of(rows: Rows[tuple[int, int]], block_size: int) -> ForwardBatch:
    """A batch on the host with a row for each (tokens that were computed before, tokens of this step).

    Their blocks lie in random order, the same in every process, in a pool of ``num_blocks(rows, block_size)``.
    """
    params = SamplingParams(temperature=TEMPERATURE)
    free = list(range(num_blocks(rows, block_size)))
    random.Random(0).shuffle(free)
    batch = ScheduledBatch()
    for seq_id, (computed, count) in enumerate(rows):
        seq = Sequence(seq_id, [0] * (computed + count), params, request_id=str(seq_id))
        seq.num_computed_tokens = computed
        seq.block_table = [free.pop() for _ in range(-(-(computed + count) // block_size))]
        batch.add(seq, count, is_prefill=count > 1)
    return build_forward_batch(batch, block_size)


def num_blocks(rows: Rows[tuple[int, int]], block_size: int) -> int:
    """Blocks of all contexts."""
    return sum(-(-(computed + count) // block_size) for computed, count in rows)


def randn(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Normal numbers, the same at each call."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, generator=generator, device=device, dtype=dtype)


def weights(device: torch.device, dtype: torch.dtype, size: int) -> Tensor:
    """Weights of a norm, between 1/2 and 3/2."""
    return torch.linspace(0.5, 1.5, size, device=device).to(dtype)
