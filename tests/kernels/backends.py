"""The two backends side by side: the CPU's, which is the specification, and the GPU's, interpreted or compiled."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from nvexplore.backends import Backend, create_backend
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.cuda import CudaBackend
from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers.attention import Attention
from nvexplore.layers.parameter import Placement
from nvexplore.layers.rotary import RotaryTable
from nvexplore.model_config import ModelConfig
from nvexplore.sampling_params import SamplingParams
from tests.kernels.places import Place

CPU = torch.device("cpu")
PROCESSORS = 2  # so few that keys are split in small batches only


def gpu_backend(place: Place) -> CudaBackend:
    return CudaBackend(place.device, place.dtype, TritonPagedAttention(PROCESSORS, has_tma=True))


class Interpreted(CudaBackend):
    """The GPU's backend on the CPU, with memory that nobody measures."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(CPU, dtype, TritonPagedAttention(PROCESSORS, has_tma=True))

    def available_memory(self, run_largest: Any) -> int:  # type: ignore[override]
        run_largest()
        return 1 << 24


def cpu_backend(dtype: torch.dtype) -> Backend:
    return create_backend("cpu", dtype)


def attention_layer(architecture: str, heads: tuple[int, int], head_dim: int, place: Place) -> Attention:
    """A layer whose norms, where it has some, are random; equal on every device."""
    config = ModelConfig.from_dict(
        {
            "architectures": [architecture],
            "vocab_size": 8,
            "hidden_size": 32,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1],
            "head_dim": head_dim,
        }
    )
    layer = Attention(
        config, RotaryTable(config.rope, head_dim, 128, place.device), Placement(place.dtype, place.device)
    )
    generator = torch.Generator().manual_seed(5)
    for norm in (layer.q_norm, layer.k_norm):
        if norm is not None:
            norm.weight.copy_(torch.rand(head_dim, generator=generator) + 0.5)
    return layer


def rows(*shape: tuple[int, int], block_size: int, num_blocks: int) -> ScheduledBatch:
    """A row for each (computed, count), on distinct blocks in random order; the last block is nobody's."""
    free = random.Random(len(shape)).sample(range(num_blocks - 1), num_blocks - 1)
    batch = ScheduledBatch()
    for seq_id, (computed, count) in enumerate(shape):
        seq = Sequence(seq_id, [0] * (computed + count), SamplingParams(), request_id=str(seq_id))
        seq.num_computed_tokens = computed
        seq.block_table = [free.pop() for _ in range(-(-(computed + count) // block_size))]
        batch.add(seq, count, is_prefill=count > 1)
    return batch


def near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Two computations in ``dtype`` of values around 1 that round at different places; NaN is where the other has it.

    Most of 8 bits are the same, and the others next to each other: with 16 bits every twentieth could be apart.
    """
    actual, expected = actual.cpu().float(), expected.float()
    if dtype is torch.float8_e4m3fn:
        # Near 0 are differences of values around 1, each rounded to 16 bits before.
        torch.testing.assert_close(actual, expected, rtol=1 / 8, atol=2**-8 + 2**-9, equal_nan=True)
        assert (actual != expected)[~expected.isnan()].float().mean() < 0.05
        return
    limit = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit, equal_nan=True)
