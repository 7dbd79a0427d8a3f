"""Where a test of kernels runs: ``pytest`` interprets them on the CPU, ``pytest -m gpu`` compiles them for the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.kernels.places import Place

_INTERPRETED = [torch.float32, torch.float16]  # the interpreter does no arithmetic in bfloat16
_COMPILED = [torch.float32, torch.float16, torch.bfloat16]


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


@pytest.fixture(
    params=[
        *(pytest.param(("interpreted", dtype), id=f"interpreted-{_name(dtype)}") for dtype in _INTERPRETED),
        *(pytest.param(("cuda", dtype), id=f"cuda-{_name(dtype)}", marks=pytest.mark.gpu) for dtype in _COMPILED),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """A device and a number format that kernels can compute in there."""
    name, dtype = request.param
    return Place(_device(name), dtype)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As a runner calls kernels; and the same random numbers whatever ran before."""
    torch.manual_seed(0)
    # numpy, which the interpreter computes with, warns where exp overflows; no GPU does.
    with torch.inference_mode(), np.errstate(over="ignore"):
        yield
