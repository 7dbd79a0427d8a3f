"""Rotary position embedding: the angles, worked out once in float32 on the CPU. Applies nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nvexplore.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return the angle a position adds to each pair of a head's values, [head_dim / 2] float32 on the CPU.

    Source of the llama3 ramp: Llama 3.1's reference code, as transformers' modeling_rope_utils describes it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.rope_type == "default":
        return plain
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "llama3":
        # How often a pair turns within the original context decides: rarely (a long wave) is stretched by
        # `factor`, often is kept, and between the two the share of the kept frequency grows linearly.
        turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        kept = kept.clamp(0, 1)
        return kept * plain + (1 - kept) * plain / rope.factor
    raise ValueError(f"rope_type={rope.rope_type!r}: no frequencies are known for it")


class RotaryTable(nn.Module):
    """Cosines and sines of every position, shared by all layers.

    cos_sin: [max_positions, head_dim] float32, a row's first half the cosines and its second half the sines.
    Value i of a head turns together with value i + head_dim / 2.
    """

    cos_sin: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int, max_positions: int, device: torch.device) -> None:
        super().__init__()
        positions = torch.arange(max_positions, dtype=torch.float32, device="cpu")
        angles = positions[:, None] * inverse_frequencies(rope, head_dim)
        table = torch.cat((angles.cos(), angles.sin()), dim=1).to(device)
        self.register_buffer("cos_sin", table, persistent=False)
