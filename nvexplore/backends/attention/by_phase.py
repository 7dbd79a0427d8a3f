"""One attention implementation for steps of decode rows alone, another for all other steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from nvexplore.backends.attention.base import PagedAttention
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.runner.forward_batch import ForwardBatch


class _Plan(NamedTuple):
    chosen: PagedAttention
    plan: Any


class AttentionByPhase:
    """``PagedAttention`` of two: a step with any prefill row runs on ``prefill`` as a whole, its decode rows too."""

    def __init__(self, prefill: PagedAttention, decode: PagedAttention) -> None:
        self.prefill = prefill
        self.decode = decode
        self.name = f"{prefill.name}+{decode.name}"

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> _Plan:
        chosen = self.prefill if host.num_prefill else self.decode
        return _Plan(chosen, chosen.plan(host, batch))

    def plan_in_graph(self, batch: ForwardBatch, group: int) -> _Plan:
        assert isinstance(self.prefill, TritonPagedAttention)
        return _Plan(self.prefill, self.prefill.plan_in_graph(batch, group))

    def offer(self, qkv: Tensor, k_cache: Tensor, plan: _Plan) -> bool:
        return plan.chosen.offer(qkv, k_cache, plan.plan)

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: _Plan) -> Tensor:
        return plan.chosen.forward(q, k_cache, v_cache, scale, plan.plan)

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()


def names_by_phase(attention: PagedAttention, num_prefill: int, num_decode: int) -> tuple[str | None, str | None]:
    """What runs the prefill rows and what runs the decode rows of a step with so many; None where there are none."""
    name = attention.name
    if isinstance(attention, AttentionByPhase):
        name = (attention.prefill if num_prefill else attention.decode).name
    return name if num_prefill else None, name if num_decode else None
