"""Matrices of steps with few rows: every way to cut the work, parts that are added up later, and early launches."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.backends import cuda
from nvexplore.backends.kernels.add_rms_norm import add_rms_norm
from nvexplore.backends.kernels.few_rows_linear import MAX_ROWS, few_rows_linear, most_rows, takes
from nvexplore.backends.kernels.launch import early_launches, launch_options, launches_early
from nvexplore.runner import model_runner
from nvexplore.toy import make_toy
from tests.kernels.backends import Interpreted
from tests.kernels.places import Place, assert_near, trapped_memory
from tests.paged import Paged, token_ids

ROWS = [1, 17, MAX_ROWS - 3]  # one tile of 16, one of 64, two of 64


def linear_formula(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, bias)


def gated_formula(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    gate, up = functional.linear(x, weight, bias).chunk(2, dim=-1)
    return functional.silu(gate) * up


def inputs_of(
    place: Place, rows: int, inputs: int, outputs: int, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    bias = place.randn(outputs) if has_bias else None
    return place.strided_rows(rows, inputs, gap=8), place.randn(outputs, inputs, scale=inputs**-0.5), bias


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 512), (192, 544)])
def test_outputs(inputs: int, outputs: int, rows: int, has_bias: bool, half: Place) -> None:
    x, weight, bias = inputs_of(half, rows, inputs, outputs, has_bias)
    assert takes(x, weight)
    with trapped_memory():
        out = few_rows_linear(x, weight, bias)
    assert out.dtype is half.dtype
    assert_near(out, linear_formula, x, weight, bias)


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 512), (64, 544)])
def test_gated_outputs(inputs: int, outputs: int, rows: int, has_bias: bool, half: Place) -> None:
    x, weight, bias = inputs_of(half, rows, inputs, 2 * outputs, has_bias)
    assert takes(x, weight, is_gated=True)
    with trapped_memory():
        out = few_rows_linear(x, weight, bias, is_gated=True)
    assert_near(out, gated_formula, x, weight, bias)


def test_gates_of_very_large_numbers(half: Place) -> None:
    """exp(-x) is infinite in float32 from x = -89 on; the result is 0, and no NaN."""
    x, weight = half.randn(2, 64), torch.cat((half.randn(512, 64, scale=40.0), half.randn(512, 64, scale=0.01)))
    assert (x @ weight[:512].T).min() < -200
    assert_near(few_rows_linear(x, weight, is_gated=True), gated_formula, x, weight, None)


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs", "parts"), [(512, 512, 4), (256, 544, 2), (192, 512, 1)])
def test_parts_are_added_up_by_the_norm(
    inputs: int, outputs: int, parts: int, rows: int, has_bias: bool, half: Place
) -> None:
    """The sum with the residual is rounded once, whatever it was made of."""
    x, weight, bias = inputs_of(half, rows, inputs, outputs, has_bias)
    residual, norm = half.randn(rows, outputs), half.rand(outputs)
    before = residual.clone()
    with trapped_memory():
        out = few_rows_linear(x, weight, bias, splits=True)
        normed, total = add_rms_norm(out, residual, norm, 1e-6)
    assert out.shape == ((parts, rows, outputs) if parts > 1 else (rows, outputs))
    assert out.dtype is (torch.float32 if parts > 1 else half.dtype) and total is residual
    assert_near(total, lambda x, w, b, r: functional.linear(x, w, b) + r, x, weight, bias, before)

    def formula(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor, n: Tensor) -> Tensor:
        y = functional.linear(x, w, b) + r
        return y * (y.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt() * n

    assert_near(normed, formula, x, weight, bias, before, norm)


def test_a_broken_row_breaks_no_other(half: Place) -> None:
    """NaN may be all that rows of padding hold; and a row's result is the same bits in any company."""
    x, weight = half.randn(20, 128), half.randn(512, 128)
    x[7] = torch.nan
    out = few_rows_linear(x, weight)
    assert out.isnan().all(dim=1).tolist() == [row == 7 for row in range(20)]
    others = half.randn(20, 128)
    others[3] = x[3]
    assert torch.equal(few_rows_linear(others, weight)[3], out[3])


def test_what_is_left_to_cublas(half: Place) -> None:
    x, weight = half.randn(4, 128), half.randn(512, 128)
    assert takes(x, weight) and takes(x, weight, splits=True)
    assert not takes(x, weight, is_gated=True), "8 programs"
    assert not takes(half.randn(MAX_ROWS + 1, 128), weight)
    assert not takes(x.float(), weight.float())
    assert not takes(half.randn(4, 96), half.randn(512, 96)), "no tile divides 96 inputs"
    assert not takes(x, half.randn(528, 128)), "no tile divides 528 outputs"
    assert not takes(x, torch.empty(1, dtype=half.dtype, device=half.device).expand(1 << 17, 128)), "32 MiB"
    with pytest.raises(ValueError, match=r"a weight of shape \(528, 128\), strides \(128, 1\): .* of 32 and enough"):
        few_rows_linear(x, half.randn(528, 128))
    with pytest.raises(ValueError, match=r"a weight of shape \(512, 128\), strides \(1, 512\)"):
        few_rows_linear(x, half.randn(128, 512).t())
    with pytest.raises(ValueError, match="x: the last dimension"):
        few_rows_linear(half.randn(128, 4).t(), weight)
    with pytest.raises(ValueError, match=r"x of shape \(2, 4, 512\).* parts need a residual and no gaps"):
        add_rms_norm(half.randn(2, 4, 512).float(), None, half.rand(512), 1e-6)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3_moe"])
def test_a_model_says_the_same(architecture: str, half: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, then decode rows beside another prompt, with all matrices that it takes by the kernel for few rows."""
    sizes = {"hidden_size": 512, "intermediate_size": 512}
    path = make_toy(tmp_path, architecture, head_dim=64, num_layers=1, **sizes)
    if half.device.type == "cpu":
        monkeypatch.setattr(model_runner, "create_backend", lambda device, dtype, *args, **options: Interpreted(dtype))
    taken: list[bool] = []
    monkeypatch.setattr(cuda, "takes", lambda x, weight, **how: taken.append(takes(x, weight, **how)) or taken[-1])
    found = []
    for dtype, context in ((torch.float32, nullcontext()), (half.dtype, nullcontext()), (half.dtype, early_launches())):
        name = str(dtype).removeprefix("torch.")
        paged = Paged(path, device=str(half.device), dtype=name, enforce_eager=True)
        first, second = paged.seq(token_ids(9, seed=1)), paged.seq(token_ids(4, seed=2))
        with context:
            logits = paged.logits((first, 8)) + paged.logits((first, 1), (second, 4))
        found.append(torch.cat(logits).cpu().double())
        paged.runner.close()
    exact, plain, early = found
    # Of a mixture of experts only attention is dense.
    assert sum(taken) == 2 * (2 if architecture == "qwen3_moe" else 4)
    assert not torch.equal(early, plain)
    assert (early - exact).abs().max() <= 1.5 * (plain - exact).abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64, MAX_ROWS])
def test_early_launches_read_nothing_that_is_not_there_yet(rows: int) -> None:
    """The same bits, whether or not kernels of a graph begin before the ones that they read from have ended."""
    place = Place(torch.device("cuda", 0), torch.bfloat16)
    down, up = place.randn(1024, 3072, scale=0.02), place.randn(6144, 1024, scale=0.03)
    norm, first = place.rand(1024), place.randn(rows, 1024)

    def chain() -> Tensor:
        hidden, residual = first, first.clone()
        for _ in range(60):
            hidden, residual = add_rms_norm(hidden, residual, norm, 1e-6)
            hidden = few_rows_linear(few_rows_linear(hidden, up, is_gated=True), down, splits=True)
        return add_rms_norm(hidden, residual, norm, 1e-6)[0]

    expected = chain()
    with early_launches():
        chain()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = chain()
    for _ in range(100):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), 0), ((8, 9), 0), ((9, 0), MAX_ROWS), ((10, 3), MAX_ROWS), ((12, 0), 0)]
)
def test_devices(capability: tuple[int, int], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert most_rows(torch.device("cuda")) == expected
    assert most_rows(torch.device("cpu")) == 0


def test_early_launches_end_with_their_block() -> None:
    def fails() -> None:
        with early_launches():
            assert launches_early()
            raise KeyError

    assert not launches_early()
    with pytest.raises(KeyError):
        fails()
    assert not launches_early() and launch_options() == {"EARLY": False}
