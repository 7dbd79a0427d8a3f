"""Toys that all tests of engines on a GPU share."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvexplore.toy import make_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with heads of 64 values."""
    return make_toy(tmp_path_factory.mktemp("toy"), "llama", head_dim=64)


@pytest.fixture(scope="session")
def other_toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with heads of 128 values and an output layer of its own."""
    return make_toy(tmp_path_factory.mktemp("other"), "qwen3", head_dim=128, seed=3, tied=False)
