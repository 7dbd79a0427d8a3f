"""Linear layers, split over ranks by outputs or by inputs; several may be packed into one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from torch import nn

from nvexplore.layers.parameter import Layer, Piece, Placement, new_parameter


class Linear(Layer):
    """What ``Backend.linear`` needs: y = x W^T + b.

    weight: [out, in] of this rank; bias: [out] or None.
    sums_ranks: each rank holds a share of the inputs: outputs are summed over ranks, then the bias is added.
    feeds_residual: what it gives goes to ``Backend.add_rms_norm``, as ``x``, and nowhere else.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    sums_ranks = False
    feeds_residual = False


class ColumnParallelLinear(Linear):
    """Each rank computes a share of the outputs of one or more matrices, stacked in ``weight``.

    parts: rows of each matrix on all ranks together, by its name in the checkpoint beside this layer's own
           (a layer ``self_attn.qkv_proj`` with a part ``q_proj`` reads ``self_attn.q_proj.weight``).
    shares: (first row, rows) of those parts of which this rank does not have the share that ``placement`` says.
    sizes: rows of each part on this rank, in order.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool,
        placement: Placement,
        shares: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.shares = [shares.get(name) or placement.share(rows, name) for name, rows in parts.items()]
        self.sizes = [count for _, count in self.shares]
        self.weight = new_parameter(placement, sum(self.sizes), in_features)
        self.bias = new_parameter(placement, sum(self.sizes)) if bias else None

    def pieces(self, name: str) -> Iterator[Piece]:
        beside = name.rpartition(".")[0]
        row = 0
        for (part, rows), (start, count) in zip(self.parts.items(), self.shares, strict=True):
            target = self.weight[row : row + count]
            yield Piece(f"{beside}.{part}.weight", target, (rows, self.weight.shape[1]), 0, start)
            if self.bias is not None:
                yield Piece(f"{beside}.{part}.bias", self.bias[row : row + count], (rows,), 0, start)
            row += count


class ReplicatedLinear(Linear):
    """Every rank holds all of it; without bias."""

    def __init__(self, in_features: int, out_features: int, *, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(placement, out_features, in_features)
        self.bias = None

    def pieces(self, name: str) -> Iterator[Piece]:
        yield Piece(f"{name}.weight", self.weight.data, tuple(self.weight.shape))


class RowParallelLinear(Linear):
    """Each rank holds the columns that meet its share of the input; the backend sums the ranks' outputs.

    It ends attention and the feed-forward network, so its outputs are added to the residual stream.
    """

    feeds_residual = True

    def __init__(self, in_features: int, out_features: int, *, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.in_features = in_features
        self.start, count = placement.share(in_features, "in_features")
        self.sums_ranks = placement.size > 1
        self.weight = new_parameter(placement, out_features, count)
        self.bias = new_parameter(placement, out_features) if bias else None

    def pieces(self, name: str) -> Iterator[Piece]:
        out_features = self.weight.shape[0]
        yield Piece(f"{name}.weight", self.weight.data, (out_features, self.in_features), 1, self.start)
        if self.bias is not None:
            # A bias belongs to the output, which is not split: every rank has all of it.
            yield Piece(f"{name}.bias", self.bias.data, (out_features,))
