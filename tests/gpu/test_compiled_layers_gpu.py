"""Engines with compile_layers on a GPU: their tokens are those of the CPU and of the fused kernels, in graphs too."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.gpu.engines import greedy, make_llm, prompts, tokens

# The compiler wants float32 to be rounded to 19 bits.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]

PROMPTS = prompts(30, 9, 1, 17, 22)


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_greedy_and_drawn_tokens(architecture: str, enforce_eager: bool, tmp_path: Path) -> None:
    path = make_toy(tmp_path, architecture, head_dim=64)
    asked = [(prompt, greedy(10)) for prompt in PROMPTS]
    drawn = [(prompt, SamplingParams(max_tokens=10, ignore_eos=True, seed=n)) for n, prompt in enumerate(PROMPTS)]
    with make_llm(path, "cpu") as llm:
        expected = tokens(llm, asked)
    with make_llm(path, enforce_eager=enforce_eager) as llm:
        fused = tokens(llm, drawn)
    with make_llm(path, compile_layers=True, enforce_eager=enforce_eager) as llm:
        assert tokens(llm, asked) == expected
        assert tokens(llm, drawn) == fused
