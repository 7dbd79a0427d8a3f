"""Kernels that walk along rows: add and norm, SiLU times, block tables spread out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nvexplore.backends.kernels.add_rms_norm import add_rms_norm
from nvexplore.backends.kernels.launch import power_of_2
from nvexplore.backends.kernels.silu_mul import silu_mul
from nvexplore.backends.kernels.spread_tables import spread_tables
from tests.kernels.places import Place, assert_near, trapped_memory

SHAPES = [(1, 1), (3, 5), (2, 64), (4, 100), (2, 576), (1, 1025)]


def norm_formula(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float = 1e-3) -> Tensor:
    total = x if residual is None else x + residual
    return total * (total.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize(("rows", "size"), SHAPES)
def test_sum_and_norm(rows: int, size: int, scale: float, place: Place) -> None:
    x, residual = place.strided_rows(rows, size, scale=scale), place.randn(rows, size, scale=scale)
    weight, expected, before = place.rand(size), x + residual, residual.clone()
    with trapped_memory():
        normed, total = add_rms_norm(x, residual, weight, 1e-3)
    assert total is residual
    torch.testing.assert_close(total, expected)
    assert_near(normed, norm_formula, x, before, weight)


@pytest.mark.parametrize(("rows", "size"), SHAPES)
def test_norm_without_a_residual(rows: int, size: int, place: Place) -> None:
    x, weight = place.strided_rows(rows, size), place.rand(size)
    kept = x.clone()
    with trapped_memory():
        normed, same = add_rms_norm(x, None, weight, 1e-3)
    assert same is x and torch.equal(x, kept)
    assert_near(normed, norm_formula, x, None, weight)


def test_a_broken_row_breaks_no_other(place: Place) -> None:
    x, residual, weight = place.randn(3, 40), place.randn(3, 40), place.rand(40)
    x[1, 7] = torch.nan
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert normed.isnan().all(dim=1).tolist() == [False, True, False]
    assert total.isnan().sum(dim=1).tolist() == [0, 1, 0]


def silu_formula(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


@pytest.mark.parametrize(("rows", "size"), [*SHAPES, (1, 2049)])
def test_silu_mul(rows: int, size: int, place: Place) -> None:
    gate_up = place.strided_rows(rows, 2 * size, scale=3.0)
    with trapped_memory():
        out = silu_mul(gate_up)
    assert_near(out, silu_formula, gate_up)


def test_silu_of_very_large_numbers(place: Place) -> None:
    """exp(-x) is infinite in float32 from x = -89 on; the result is 0, and no NaN."""
    gate = torch.tensor([-6e4, -200.0, -89.0, -20.0, 0.0, 20.0, 200.0, 6e4])
    gate_up = torch.cat((gate, torch.full_like(gate, -0.5)))[None].to(place.dtype).to(place.device)
    assert_near(silu_mul(gate_up), silu_formula, gate_up)


def test_nothing_to_do(place: Place) -> None:
    normed, total = add_rms_norm(place.randn(0, 24), place.randn(0, 24), place.rand(24), 1e-6)
    assert normed.shape == total.shape == (0, 24)
    assert silu_mul(place.randn(0, 24)).shape == (0, 12)


def test_values_that_do_not_lie_side_by_side_are_refused(place: Place) -> None:
    x, weight = place.randn(8, 6), place.rand(8)
    with pytest.raises(ValueError, match=r"x: the last dimension of \(6, 8\) has stride 6: it must be 1"):
        add_rms_norm(x.t(), None, weight, 1e-6)
    with pytest.raises(ValueError, match=r"residual of shape \(6, 8\) and strides \(1, 6\): not contiguous"):
        add_rms_norm(place.randn(6, 8), x.t(), weight, 1e-6)
    with pytest.raises(ValueError, match="gate_up: the last dimension"):
        silu_mul(x.t())


@pytest.mark.parametrize(("width", "widest"), [(1, 1), (1, 5), (3, 5), (5, 5), (0, 4), (1030, 1100), (2, 1025)])
def test_spread_tables_changes_the_first_columns_alone(width: int, widest: int, device: torch.device) -> None:
    rows = 3
    tables = torch.arange(1, rows * width + 1, dtype=torch.int32).view(rows, width).to(device)
    # What lies behind the tables in the buffer is no table.
    source = torch.cat((tables.flatten(), torch.full((rows * widest,), 1 << 30, dtype=torch.int32, device=device)))
    whole = torch.full((rows + 2, widest), -7, dtype=torch.int32, device=device)
    spread_tables(source, torch.tensor([width], dtype=torch.int32, device=device), whole[1:-1])
    expected = torch.full_like(whole, -7)
    expected[1:-1, :width] = tables
    assert torch.equal(whole, expected)


def test_power_of_2() -> None:
    assert [power_of_2(n) for n in (1, 2, 3, 4, 5, 8, 9, 1025)] == [1, 2, 4, 4, 8, 8, 16, 2048]
    assert [power_of_2(n, 16) for n in (1, 16, 17)] == [16, 16, 32]
