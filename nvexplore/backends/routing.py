"""Which experts a token goes to. Knows no expert."""

from __future__ import annotations

import torch
from torch import Tensor


def route(logits: Tensor, top_k: int, *, norm: bool) -> tuple[Tensor, Tensor]:
    """Choose experts: router logits [T, experts] -> weights [T, top_k] in the same dtype, experts [T, top_k]."""
    weights, chosen = torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), top_k, dim=-1)
    if norm:
        weights /= weights.sum(dim=-1, keepdim=True)
    return weights.to(logits.dtype), chosen
