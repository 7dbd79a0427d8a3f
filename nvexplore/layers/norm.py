"""RMSNorm: values divided by their root mean square, times a learned weight."""

from __future__ import annotations

from collections.abc import Iterator

from nvexplore.layers.parameter import Layer, Piece, Placement, new_parameter


class RMSNorm(Layer):
    """``weight`` [size] over the last dimension, whole on every rank; ``eps`` is added to the mean square."""

    def __init__(self, size: int, eps: float, *, placement: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = new_parameter(placement, size)

    def pieces(self, name: str) -> Iterator[Piece]:
        yield Piece(f"{name}.weight", self.weight.data, (self.weight.shape[0],))
