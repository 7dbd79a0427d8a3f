"""What tests of kernels share: numbers on a device, memory full of traps, and how near is near enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

_MARGIN = 64  # elements around a trapped tensor; a multiple of what makes Triton choose wide loads
_PATTERN = 0x7ECC  # what traps of integers hold; no id, slot or block


class Place(NamedTuple):
    """Where a kernel runs, and in which dtype; narrow: that of the pool of keys and values, where it is another."""

    device: torch.device
    dtype: torch.dtype
    narrow: torch.dtype | None = None

    @property
    def kv_dtype(self) -> torch.dtype:
        return self.narrow or self.dtype

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Random numbers, the same on every device."""
        return (torch.randn(*shape) * scale).to(self.dtype).to(self.device)

    def rand(self, *shape: int) -> Tensor:
        """Random numbers between 1/2 and 3/2: weights of a norm."""
        return (torch.rand(*shape) + 0.5).to(self.dtype).to(self.device)

    def nans(self, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)

    def pool(self, *shape: int) -> Tensor:
        """NaN in the pool's format."""
        return torch.full(shape, torch.nan, dtype=self.kv_dtype, device=self.device)

    def kept(self, x: Tensor) -> Tensor:
        """What numbers no greater than the pool's greatest are when they are read back from it."""
        return x.to(self.kv_dtype).to(self.dtype)

    def ints(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def strided_rows(self, rows: int, size: int, *, gap: int = 7, scale: float = 1.0) -> Tensor:
        """Random rows of ``size`` that lie ``gap`` elements apart; between them is NaN."""
        wide = self.nans(rows, size + gap)
        wide[:, :size] = self.randn(rows, size, scale=scale)
        return wide[:, :size]


def assert_near(
    actual: Tensor, formula: Callable[..., Tensor], *inputs: Tensor | None, rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """Compare with ``formula`` in float64 on the CPU.

    Where values have 16 bits they may be twice as far from it as the formula is when torch computes it in their dtype,
    but at least one unit in the last place of the greatest.
    """
    found, dtype = actual.detach().cpu().double(), actual.dtype
    host = [None if x is None else x.detach().cpu() for x in inputs]
    exact = formula(*(_as(x, torch.float64) for x in host))
    assert found.shape == exact.shape
    assert found.isfinite().all()
    if dtype is torch.float32:
        torch.testing.assert_close(found, exact, rtol=rtol, atol=atol)
    elif exact.numel():
        rounded = formula(*(_as(x, dtype) for x in host)).double()
        unit = torch.finfo(dtype).eps * float(exact.abs().max())
        limit = max(2 * float((rounded - exact).abs().max()), unit)
        assert float((found - exact).abs().max()) <= limit


def _as(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return x.to(dtype) if x is not None and x.is_floating_point() else x


@contextmanager
def trapped_memory() -> Iterator[None]:
    """Outputs that a kernel's launcher makes with torch.empty hold NaN, and margins around them must stay as they are.

    What a kernel leaves out shows in the result; what it writes beyond shows when the context ends.
    """
    empty, traps = torch.empty, []

    def trapped(*size: Any, **options: Any) -> Tensor:
        shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        whole = empty(shape.numel() + 2 * _MARGIN, **options)
        whole.fill_(torch.nan if whole.is_floating_point() else _PATTERN)
        traps.append(whole)
        return whole[_MARGIN : _MARGIN + shape.numel()].view(shape)

    with patch.object(torch, "empty", trapped):
        yield
    for whole in traps:
        margin = torch.cat((whole[:_MARGIN], whole[-_MARGIN:]))
        untouched = margin.isnan() if whole.is_floating_point() else margin == _PATTERN
        assert untouched.all(), "a kernel wrote outside of its output"
