"""Packed weights: the results of ``linear``, whatever torch has or lacks, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from nvexplore.backends import packed_linear
from nvexplore.backends.packed_linear import PackedLinears
from nvexplore.layers.embedding import Embedding, LMHead
from nvexplore.layers.linear import ColumnParallelLinear, Linear
from nvexplore.layers.parameter import Placement

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def layer_of(outputs: int, inputs: int, dtype: torch.dtype, *, bias: bool = True) -> Linear:
    layer = ColumnParallelLinear(inputs, {"x": outputs}, bias=bias, placement=Placement(dtype, CPU))
    for parameter in layer.parameters():
        parameter.normal_()
    return layer


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(800, 48), (77, 33), (1, 1)])
@pytest.mark.parametrize("rows", [1, 3, 4, 17, 300])
def test_results_are_those_of_linear(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    packed = PackedLinears(dtype)
    x = torch.randn(rows, inputs).to(dtype)
    with torch.inference_mode():
        for bias in (True, False):
            layer = layer_of(outputs, inputs, dtype, bias=bias)
            kept = layer.weight.clone()
            packed.pack(layer)
            for each in (x, torch.cat((x, x), dim=1)[:, :inputs]):  # the second is not contiguous
                found = packed.linear(each, layer, layer.bias)
                right_bias = None if layer.bias is None else layer.bias.double()
                right = functional.linear(each.double(), layer.weight.double(), right_bias)
                assert found.dtype == dtype and found.shape == (rows, outputs)
                assert (found - right).abs().max() <= 8 * torch.finfo(dtype).eps * right.abs().max()
            assert torch.equal(layer.weight, kept)


def test_this_torch_has_the_operations() -> None:
    """No silent fallback where the names exist: a trial that is too strict would cost speed and nobody would see it."""
    has_names = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
    assert PackedLinears(torch.float32).is_available == has_names
    assert not PackedLinears(torch.float16).is_available


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows of each call that goes through a packed weight."""
    calls: list[int] = []

    def multiply(x: torch.Tensor, packed: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(x.shape[0])
        return functional.linear(x, packed, rest[0])

    monkeypatch.setattr(packed_linear, "_find_operations", lambda dtype: (lambda weight: weight, multiply))
    return calls


@pytest.mark.parametrize(
    ("dtype", "outputs", "rows"),
    [(torch.float32, 800, [4, 256]), (torch.float32, 700, []), (torch.bfloat16, 8, [1, 4, 256, 257])],
)
def test_used_where_it_is_faster(
    dtype: torch.dtype, outputs: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counting(monkeypatch)
    packed, layer = PackedLinears(dtype), layer_of(outputs, 8, dtype)

    def run() -> list[int]:
        calls.clear()
        for count in (1, 4, 256, 257):
            packed.linear(torch.ones(count, 8, dtype=dtype), layer)
        return list(calls)

    assert run() == []
    packed.pack(layer)
    assert run() == rows
    packed.clear()
    assert run() == []


def test_a_tied_head_is_packed_by_itself() -> None:
    placement = Placement(torch.bfloat16, CPU)
    embedding = Embedding(900, 16, placement=placement)
    embedding.weight.normal_()
    head = LMHead(900, 16, placement=placement, tied_to=embedding)
    packed = PackedLinears(torch.bfloat16)
    packed.pack(head)
    x = torch.randn(2, 16).bfloat16()
    torch.testing.assert_close(packed.linear(x, head), functional.linear(x, embedding.weight), rtol=0.05, atol=0.05)


def broken(pack: Any, multiply: Any) -> SimpleNamespace:
    return SimpleNamespace(
        mkldnn=SimpleNamespace(
            _reorder_linear_weight=SimpleNamespace(default=pack), _linear_pointwise=SimpleNamespace(default=multiply)
        )
    )


def refuse(*_: Any) -> None:
    raise NotImplementedError("not built in")


@pytest.mark.parametrize(
    "ops",
    [
        SimpleNamespace(),
        SimpleNamespace(mkldnn=SimpleNamespace()),
        broken(lambda weight: weight, refuse),
        broken(refuse, refuse),
        broken(lambda weight: weight, lambda x, weight, bias, *_: functional.linear(x, weight, bias) * 1.01),
        broken(lambda weight: weight, lambda x, weight, bias, *_: functional.linear(x, weight) * torch.nan),
        broken(lambda weight: weight, lambda x, weight, bias, *_: functional.linear(x, weight, bias).T),
    ],
    ids=["no-namespace", "no-operations", "refuses", "cannot-pack", "wrong", "nan", "wrong-shape"],
)
def test_without_working_operations_it_is_linear(ops: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "_operations", lambda: ops.mkldnn)
    packed, layer = PackedLinears(torch.float32), layer_of(900, 8, torch.float32)
    assert not packed.is_available
    packed.pack(layer)
    x = torch.randn(5, 8)
    assert torch.equal(packed.linear(x, layer, layer.bias), functional.linear(x, layer.weight, layer.bias))
