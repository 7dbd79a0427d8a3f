"""A mixture of experts: a router and many feed-forward networks of one size, stacked."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from nvexplore.layers.linear import ReplicatedLinear
from nvexplore.layers.parameter import Layer, Piece, Placement, Stack, new_parameter
from nvexplore.moe_config import MoeConfig


class Experts(Layer):
    """The networks down(silu(gate(x)) * up(x)) of all experts; ranks split each of them.

    gate_up_proj: [experts, 2 * n, hidden], gates then ups, n of the expert's inner values on this rank.
    down_proj:    [experts, hidden, n].
    """

    def __init__(self, moe: MoeConfig, hidden_size: int, placement: Placement) -> None:
        super().__init__()
        self.inner_size = moe.intermediate_size
        self.start, self.size = placement.share(moe.intermediate_size, "moe_intermediate_size")
        self.gate_up_proj = new_parameter(placement, moe.num_experts, 2 * self.size, hidden_size)
        self.down_proj = new_parameter(placement, moe.num_experts, hidden_size, self.size)

    def pieces(self, name: str) -> Iterator[Piece]:
        """Yield three matrices an expert; files may hold them one by one, or stacked like the parameters."""
        experts, _, hidden_size = self.gate_up_proj.shape
        gate_up_shape, down_shape = (experts, 2 * self.inner_size, hidden_size), (experts, hidden_size, self.inner_size)
        for expert in range(experts):
            gate, up = self.gate_up_proj[expert].chunk(2)
            for part, target, row in (("gate_proj", gate, 0), ("up_proj", up, self.inner_size)):
                stack = Stack(f"{name}.gate_up_proj", gate_up_shape, expert, row)
                shape = (self.inner_size, hidden_size)
                yield Piece(f"{name}.{expert}.{part}.weight", target, shape, 0, self.start, stack=stack)
            stack = Stack(f"{name}.down_proj", down_shape, expert)
            shape = (hidden_size, self.inner_size)
            yield Piece(f"{name}.{expert}.down_proj.weight", self.down_proj[expert], shape, 1, self.start, stack=stack)


class MoE(nn.Module):
    """What ``Backend.moe`` needs: each token goes to a few experts, whose outputs are added up, weighted.

    gate:           the router, [experts, hidden], whole on every rank.
    top_k:          experts of a token.
    norm_topk_prob: whether the weights of a token's experts are scaled to sum to 1.
    sums_ranks:     each rank holds a part of each expert: outputs are summed over ranks.
    """

    def __init__(self, moe: MoeConfig, hidden_size: int, placement: Placement) -> None:
        super().__init__()
        self.top_k = moe.num_experts_per_tok
        self.norm_topk_prob = moe.norm_topk_prob
        self.sums_ranks = placement.size > 1
        self.gate = ReplicatedLinear(hidden_size, moe.num_experts, placement=placement)
        self.experts = Experts(moe, hidden_size, placement)
