"""Rotary position embedding: the angles, worked out once in float32 on the CPU. Applies nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nvexplore.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return the angle a position adds to each pair of a head's values, [head_dim / 2] float32 on the CPU.

    Sources: Llama 3.1's reference code (llama3), arXiv 2309.00071 (yarn) and 2402.13753 (longrope), each as
    transformers' modeling_rope_utils describes it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.rope_type in ("default", "dynamic"):
        return plain
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "longrope":
        return plain / torch.tensor(rope.short_factor, dtype=torch.float32, device="cpu")
    # How often a pair turns within the original context decides: rarely (a long wave) is stretched by `factor`,
    # often is kept, and between the two the share of the kept frequency grows.
    if rope.rope_type == "llama3":
        # ... with the number of turns.
        turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    elif rope.rope_type == "yarn":
        # ... with the number of the pair, since later pairs turn more rarely.
        first, last = _pair_of(rope, head_dim, rope.beta_fast), _pair_of(rope, head_dim, rope.beta_slow)
        if rope.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        pairs = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
        kept = 1 - (pairs - first) / (last - first or 0.001)
    else:
        raise ValueError(f"rope_type={rope.rope_type!r}: no frequencies are known for it")
    kept = kept.clamp(0, 1)
    return kept * plain + (1 - kept) * plain / rope.factor


def _pair_of(rope: RopeConfig, head_dim: int, turns: float) -> float:
    """Return the number of the pair, with fraction, that turns so often within the original context."""
    longest_wave = rope.original_max_position_embeddings / (turns * 2 * math.pi)
    return head_dim * math.log(longest_wave) / (2 * math.log(rope.theta))


class RotaryTable(nn.Module):
    """Cosines and sines of every position, shared by all layers.

    cos_sin: [max_positions, head_dim] float32, a row's first half the cosines and its second half the sines,
             both multiplied by the rope's ``attention_factor``.
    Value i of a head turns together with value i + head_dim / 2.
    """

    cos_sin: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int, max_positions: int, device: torch.device) -> None:
        super().__init__()
        positions = torch.arange(max_positions, dtype=torch.float32, device="cpu")
        angles = positions[:, None] * inverse_frequencies(rope, head_dim)
        table = torch.cat((angles.cos(), angles.sin()), dim=1) * rope.attention_factor
        self.register_buffer("cos_sin", table.to(device), persistent=False)
