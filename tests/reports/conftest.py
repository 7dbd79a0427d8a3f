"""The toy checkpoint that most reports need, made once; it must not be changed (``shutil.copytree`` it)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nvexplore.toy import make_toy


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="package")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("reports") / "toy", "qwen3")
