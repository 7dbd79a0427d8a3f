"""Rows of many experts times their weights: every spread of rows over them, and every GPU that it is compiled for."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nvexplore.backends.kernels import grouped_linear as module
from nvexplore.backends.kernels.grouped_linear import grouped_linear, most_tiles, tile_shape
from tests.conftest import RunPython
from tests.kernels.backends import CPU
from tests.kernels.places import Place, assert_near, trapped_memory

SPREADS = {
    "one row": [0, 0, 1, 0],
    "a row each": [1, 1, 1, 1, 1],
    "full tiles of 16": [16, 0, 32, 16, 0, 0],
    "gaps on both sides": [0, 0, 5, 17, 0, 33, 0],
    "all to the last of two, tiles of 64": [0, 75],
    "tiles of 64": [64, 20, 0, 66],
    "all to the first, tiles of 128": [300, 0],
    "tiles of 128": [127, 1, 258],
    "one group": [40],
}
SHARED = {75: 65_536, 80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}  # bytes a program may have


def formula(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    begins = [0, *ends.tolist()]
    return torch.cat([x[b:e] @ w.T for b, e, w in zip(begins, begins[1:], weight, strict=False)])


def inputs_of(place: Place, counts: list[int], inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Between and around rows lies NaN, and so it does around the weights and in those that no row is for.

    What lies around the ends are none.
    """
    total = sum(counts)
    x = place.strided_rows(total + 2, inputs, gap=8)
    x[0], x[-1] = torch.nan, torch.nan
    weight = place.nans(len(counts) + 2, outputs, inputs)
    for group, count in enumerate(counts):
        if count:
            weight[group + 1] = place.randn(outputs, inputs, scale=inputs**-0.5)
    ends = place.ints([1 << 20, *torch.tensor(counts).cumsum(0).tolist(), -(1 << 20)])
    return x[1:-1], weight[1:-1], ends[1:-1]


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 128), (20, 6), (100, 130)])
@pytest.mark.parametrize("spread", SPREADS)
def test_outputs(spread: str, inputs: int, outputs: int, place: Place) -> None:
    x, weight, ends = inputs_of(place, SPREADS[spread], inputs, outputs)
    kept = [each.clone() for each in (x, ends)]
    with trapped_memory():
        out = grouped_linear(x, weight, ends)
    assert out.shape == (sum(SPREADS[spread]), outputs) and out.dtype is place.dtype
    assert_near(out, formula, x, weight, ends)
    assert all(torch.equal(*pair) for pair in zip(kept, (x, ends), strict=True))


@pytest.mark.parametrize("spread", ["gaps on both sides", "tiles of 64", "tiles of 128"])
def test_bfloat16_in_the_interpreter(spread: str) -> None:
    """Which multiplies bits where values are not widened first, and cuts where a GPU rounds."""
    from nvexplore.backends.kernels.launch import IS_INTERPRETED

    if not IS_INTERPRETED:
        pytest.skip("a GPU runs the kernels here")
    given = inputs_of(Place(CPU, torch.bfloat16), SPREADS[spread], 100, 130)
    assert_near(grouped_linear(*given), formula, *given)


@pytest.mark.parametrize("seed", range(8))
def test_any_spread(seed: int, place: Place) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = int(torch.randint(1, 40, (), generator=generator))
    total = int(torch.randint(1, 400, (), generator=generator))
    likely = torch.rand(groups, generator=generator) ** 6  # a few get most rows, many none
    group = torch.multinomial(likely, total, replacement=True, generator=generator)
    given = inputs_of(place, group.bincount(minlength=groups).tolist(), 24, 40)
    assert_near(grouped_linear(*given), formula, *given)


def test_a_broken_row_breaks_no_other(place: Place) -> None:
    """NaN may be all that rows of padding hold; and a broken expert breaks its own rows alone."""
    x, weight, ends = inputs_of(place, [7, 0, 20, 6], 24, 40)
    x[9] = torch.nan
    weight[3, 5] = torch.nan
    out = grouped_linear(x, weight, ends).isfinite()
    assert (~out).any(dim=1).nonzero().flatten().tolist() == [9, *range(27, 33)]
    assert (~out[27:]).any(dim=0).nonzero().flatten().tolist() == [5]


def test_float32_is_multiplied_as_such(place: Place) -> None:
    """Matrix units would round factors to 11 bits and be 0.001 off."""
    given = place.randn(3, 1000, scale=0.1), place.randn(2, 5, 1000), place.ints([1, 3])
    assert_near(grouped_linear(*given), formula, *given, atol=5e-5)


def test_float32_is_summed_as_such(place: Place) -> None:
    """From 1024 on, sums of 16 bits would forget all that is added; those of 32 lose 2**-14 a time."""
    x, weight = place.randn(3, 1000, scale=0.1), place.randn(2, 5, 1000)
    x[:, 0], x[:, -1], weight[:, :, 0], weight[:, :, -1] = 1.0, -1.0, 1024.0, 1024.0
    ends = place.ints([1, 3])
    assert_near(grouped_linear(x, weight, ends), formula, x, weight, ends, atol=1000 * 2.0**-14)


def test_nothing_to_do(place: Place) -> None:
    assert grouped_linear(place.randn(0, 24), place.randn(3, 8, 24), place.ints([0, 0, 0])).shape == (0, 8)


def test_what_is_refused(place: Place) -> None:
    x, weight, ends = place.randn(4, 24), place.randn(2, 8, 24), place.ints([1, 4])
    with pytest.raises(ValueError, match=r"x: the last dimension of \(4, 24\) has stride 4: it must be 1"):
        grouped_linear(place.randn(24, 4).t(), weight, ends)
    with pytest.raises(ValueError, match=r"weight of shape \(2, 8, 24\) and strides \(192, 1, 8\): not contiguous"):
        grouped_linear(x, place.randn(2, 24, 8).transpose(1, 2), ends)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_as_many_tiles_as_any_spread_needs(size: int) -> None:
    """And not one more."""

    def spreads(rows: int, groups: int) -> list[tuple[int, ...]]:
        return [counts for counts in product(range(rows + 1), repeat=groups) if sum(counts) == rows]

    for rows, groups in product(range(8), (1, 2, 3, 4)):
        needed = max(sum(-(-count // size) for count in counts) for counts in spreads(rows, groups))
        assert most_tiles(rows, groups, size) == needed, (rows, groups)


def test_what_is_launched_depends_on_sizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without data: what the host wanted to read of them would raise."""
    grids: list[Any] = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            grids.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(module, "_grouped_linear", Kernel())
    for dtype, rows in product((torch.float32, torch.float16, torch.bfloat16), (1, 8, 2048, 1 << 20)):
        x, weight = (torch.empty(*shape, dtype=dtype, device="meta") for shape in ((rows, 2048), (128, 1536, 2048)))
        out = grouped_linear(x, weight, torch.empty(128, dtype=torch.int32, device="meta"))
        assert out.shape == (rows, 1536) and out.dtype is dtype
        (programs,), shape = grids.pop(), tile_shape(dtype.itemsize, rows, 128)
        assert programs <= (-(-rows // shape.rows) + 128) * -(-1536 // shape.cols) < 2**31


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_graph_serves_any_choice(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda", 0), dtype)
    x, weight = place.randn(300, 64), place.randn(4, 96, 64, scale=0.1)
    ends = place.ints([300, 300, 300, 300])
    grouped_linear(x, weight, ends)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = grouped_linear(x, weight, ends)
    for counts in ([0, 0, 0, 300], [1, 1, 297, 1], [75, 75, 75, 75], [129, 0, 171, 0]):
        ends.copy_(place.ints(counts).cumsum(0))
        out.fill_(torch.nan)
        graph.replay()
        assert_near(out, formula, x, weight, ends)


@pytest.mark.slow
def test_it_is_compiled_for_every_gpu(run_python: RunPython, tmp_path: Path) -> None:
    """Every tile in every format; sums of float32 are not left to matrix units, all else is."""
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    env["TRITON_DEFAULT_FP_FUSION"] = "1"  # or Triton 3.9 warns that its default will be another
    targets = (80, 89, 90, 120)
    found = ast.literal_eval(
        run_python(f"from tests.kernels.ahead import grouped_linears; print(grouped_linears({targets}))", env=env)
    )
    assert len(found) == len(set(found)) == 8 * len(targets)
    for target, name, rows, shared, has_units, rounds in found:
        assert shared <= min(SHARED.values()) < SHARED[target], (target, name, rows)
        assert has_units is (name != "fp32") and not rounds, (target, name, rows)
