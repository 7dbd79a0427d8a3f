"""How a layer's parameters are made, split over ranks, and matched with tensors of a checkpoint.

Knows no file and no device: the loader brings the tensors, the caller says where parameters live.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Placement:
    """How parameters are made: dtype and device, and which of ``size`` equal shares this rank keeps."""

    dtype: torch.dtype
    device: torch.device
    rank: int = 0
    size: int = 1

    def share(self, total: int, name: str) -> tuple[int, int]:
        """Return (first, count) of this rank's share of ``total``; ValueError where that does not divide."""
        if total % self.size:
            raise ValueError(f"{name}={total}: must be a multiple of the {self.size} ranks")
        count = total // self.size
        return self.rank * count, count

    def share_or_copy(self, total: int, name: str) -> tuple[int, int]:
        """``share``; where there are more ranks than ``total``, one of them, of which neighbours have copies."""
        if total % self.size == 0:
            return self.share(total, name)
        if self.size % total:
            raise ValueError(f"{name}={total}: must be a multiple of the {self.size} ranks, or they of it")
        return self.rank * total // self.size, 1


class Stack(NamedTuple):
    """A larger tensor [n, rows, columns] that a checkpoint may hold in place of n matrices or more.

    The matrix meant begins at row ``row`` of entry ``entry``.
    """

    name: str
    shape: tuple[int, int, int]
    entry: int
    row: int = 0


class Piece(NamedTuple):
    """One tensor of a checkpoint and the part of a parameter that it fills.

    name:   in the checkpoint.
    target: view of the parameter, written in place.
    shape:  of the whole checkpoint tensor.
    dim, start: this rank takes ``target.shape[dim]`` entries of dimension ``dim``, beginning with ``start``.
    is_tied: another name owns the storage; the tensor may be absent, and is compared instead of written.
    stack:  where the values are in checkpoints that have them in a larger tensor, or None.
    """

    name: str
    target: Tensor
    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0
    is_tied: bool = False
    stack: Stack | None = None


class Layer(nn.Module):
    """Parameters and their names; the backend does the arithmetic, so there is no ``forward`` here."""

    def pieces(self, name: str) -> Iterator[Piece]:
        """Yield what fills this layer's own parameters; ``name`` is the layer's path in the model."""
        yield from ()


def new_parameter(placement: Placement, *shape: int) -> nn.Parameter:
    """Make a parameter full of NaN: what is never loaded cannot pass for a weight."""
    # torch.full draws no random numbers and leaves torch's default dtype and device alone.
    values = torch.full(shape, torch.nan, dtype=placement.dtype, device=placement.device)
    return nn.Parameter(values, requires_grad=False)
