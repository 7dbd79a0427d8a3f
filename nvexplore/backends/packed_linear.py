"""Linear layers with weights rearranged once, for oneDNN's matrix kernels, which then need not do it in every step.

The operations are private to torch, so nothing depends on them: where they are missing, do not know the dtype, or
give another result in a trial, everything runs through ``torch.nn.functional.linear``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.layers.embedding import LMHead
from nvexplore.layers.linear import Linear


class _Worth(NamedTuple):
    """Where the rearranged weight is the faster one: from ``rows`` to ``max_rows``, for ``outputs`` or more.

    Fixed numbers and not a measurement, which would choose differently from run to run, and with it the rounding of
    every result. In float32 MKL is as fast with one row, with very many, and where there are few outputs.
    """

    rows: int
    max_rows: int
    outputs: int


_WORTH: Final = {
    torch.bfloat16: _Worth(rows=1, max_rows=1 << 30, outputs=1),
    torch.float32: _Worth(rows=4, max_rows=256, outputs=768),
}


class PackedLinears:
    """y = x W^T + b for layers that were packed, and for all others too.

    A packed weight takes the memory of the weight once more; ``layer.weight`` stays as it is.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._ops = _find_operations(dtype)
        self._worth = _WORTH.get(dtype, _Worth(1, 0, 1))
        self._packed: dict[int, Tensor] = {}

    @property
    def is_available(self) -> bool:
        return self._ops is not None

    def pack(self, layer: Linear | LMHead) -> None:
        """Rearrange ``layer.weight`` where that is worth it; the weight must not change afterwards."""
        if self._ops is not None and layer.weight.shape[0] >= self._worth.outputs:
            self._packed[id(layer)] = self._ops[0](layer.weight.detach())

    def linear(self, x: Tensor, layer: Linear | LMHead, bias: Tensor | None = None) -> Tensor:
        """[rows, in] -> [rows, out]."""
        packed = self._packed.get(id(layer))
        if packed is None or self._ops is None or not self._worth.rows <= x.shape[0] <= self._worth.max_rows:
            return functional.linear(x, layer.weight, bias)
        out: Tensor = self._ops[1](x, packed, bias, "none", [], "")
        return out

    def clear(self) -> None:
        self._packed.clear()


def _find_operations(dtype: torch.dtype) -> tuple[Any, Any] | None:
    """Return torch's (rearrange, multiply), or None where a trial fails or differs from ``linear``."""
    if dtype not in _WORTH:
        return None
    try:
        namespace = _operations()
        pack, multiply = namespace._reorder_linear_weight.default, namespace._linear_pointwise.default
        x, weight, bias = (_waves(shape, dtype) for shape in ((5, 96), (80, 96), (80,)))
        found = multiply(x, pack(weight), bias, "none", [], "").float()
        right = functional.linear(x.double(), weight.double(), bias.double())
        is_right = (found - right).abs().max() < 32 * torch.finfo(dtype).eps * right.abs().max()
        return (pack, multiply) if is_right else None
    except (AttributeError, RuntimeError):  # NotImplementedError is a RuntimeError
        return None


def _operations() -> Any:
    return torch.ops.mkldnn


def _waves(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return different numbers between -1 and 1, without torch's random state."""
    return torch.arange(torch.Size(shape).numel(), device="cpu").double().sin().view(shape).to(dtype)
