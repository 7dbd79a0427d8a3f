"""Where a test of kernels runs: ``pytest`` interprets them on the CPU, ``pytest -m gpu`` compiles them for the GPU.

The interpreter is slow. Of a test with three parameters or more it gets as many cases as it takes for every value of
one to meet every value of each other; the GPU gets all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.cases import needless
from tests.kernels.float8 import use_exact_float8
from tests.kernels.places import Place

_INTERPRETED = [torch.float32, torch.float16]  # the interpreter does no arithmetic in bfloat16
_COMPILED = [torch.float32, torch.float16, torch.bfloat16]
_FP8 = torch.float8_e4m3fn


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device(name: str) -> torch.device:
    from nvexplore.backends.kernels.launch import IS_INTERPRETED

    if name == "cuda":
        return torch.device("cuda", 0)
    if not IS_INTERPRETED:
        pytest.skip("a GPU runs the kernels here")
    return torch.device("cpu")


@pytest.fixture(params=["interpreted", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return _device(request.param)


def _places(*narrows: torch.dtype | None, widest: int = 4) -> list[Any]:
    """Where and in which formats of up to ``widest`` bytes: (device's name, dtype, the pool's dtype or None)."""
    sides = (("interpreted", _INTERPRETED, ()), ("cuda", _COMPILED, pytest.mark.gpu))
    return [
        pytest.param((name, dtype, narrow), id=f"{name}-{_name(dtype)}{'-fp8' if narrow else ''}", marks=marks)
        for name, dtypes, marks in sides
        for dtype in dtypes
        if dtype.itemsize <= widest
        for narrow in narrows
    ]


def _place(request: pytest.FixtureRequest) -> Place:
    name, dtype, narrow = request.param
    place = Place(_device(name), dtype, narrow)
    if narrow is not None and place.device.type == "cpu":
        use_exact_float8(request.getfixturevalue("monkeypatch"))
    return place


@pytest.fixture(params=_places(None, widest=2))
def half(request: pytest.FixtureRequest) -> Place:
    """A device and a number format of 16 bits."""
    return _place(request)


@pytest.fixture(params=_places(None))
def place(request: pytest.FixtureRequest) -> Place:
    """A device and a number format that kernels can compute in there."""
    return _place(request)


# The interpreter is slow; what float32 is rounded to in 8 bits test_fp8_kv tells for every number.
@pytest.fixture(params=[each for each in _places(None, _FP8) if each.id != "interpreted-float32-fp8"])
def kv_place(request: pytest.FixtureRequest) -> Place:
    """The same; keys and values are kept in that format or in 8 bits."""
    return _place(request)


@pytest.fixture(params=_places(_FP8))
def fp8_place(request: pytest.FixtureRequest) -> Place:
    """The same with keys and values of 8 bits."""
    return _place(request)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents and not item.get_closest_marker("gpu")]
    spared = {
        item
        for _, group in groupby(here, key=lambda item: item.nodeid.partition("[")[0])
        for item in needless(list(group))
    }
    if spared:
        config.hook.pytest_deselected(items=list(spared))
        items[:] = [item for item in items if item not in spared]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As a runner calls kernels; and the same random numbers whatever ran before."""
    torch.manual_seed(0)
    # numpy, which the interpreter computes with, warns where exp overflows; no GPU does.
    with torch.inference_mode(), np.errstate(over="ignore"):
        yield


@pytest.fixture(autouse=True)
def unwritten_is_nan(request: pytest.FixtureRequest) -> Iterator[None]:
    """Memory from torch.empty holds NaN, not what lay there: a kernel that reads what nobody wrote fails every time."""
    if request.node.get_closest_marker("gpu"):  # where it would change what cuBLAS does
        yield
        return
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory and bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(False)
