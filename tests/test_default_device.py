"""torch.set_default_device is the application's: an engine says itself where each of its tensors is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy

ROOT = Path(__file__).resolve().parents[1]
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "block_size": 4, "max_model_len": 64}
PROMPTS = [list(range(40, 40 + length)) for length in (3, 20, 9)]
# What makes a tensor where nobody says where.
FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn"),
    *("randperm", "scalar_tensor", "tensor", "zeros"),
}


@pytest.fixture
def on_meta() -> Iterator[None]:
    """Tensors without a device have no memory: whatever becomes of one has no values."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def said(toy: Path, **options: Any) -> list[Any]:
    """Prompts in chunks and from the cache, decode rows beside them, filters, penalties, log probabilities."""
    asked = [
        SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
        SamplingParams(temperature=0.9, top_p=0.9, top_k=9, min_p=0.01, seed=3, max_tokens=6, min_tokens=2),
        SamplingParams(temperature=0.8, repetition_penalty=1.2, presence_penalty=0.1, seed=4, max_tokens=5),
        SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    ]
    found: list[Any] = []
    with LLM(toy, max_num_batched_tokens=16, policy="mixed", **OPTIONS | options) as llm:
        for params in asked:
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            found += [(each.token_ids, each.logprobs) for output in outputs for each in output.outputs]
    return found


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("qwen3", {}),
        ("qwen2", {"dtype": "bfloat16", "kv_cache_dtype": "fp8", "overlap": True}),
        ("qwen3_moe", {"num_kvcache_blocks": 20}),
        ("llama", {"tensor_parallel_size": 2}),
    ],
)
def test_an_engine_does_not_look_at_it(
    architecture: str, options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    toy = make_toy(tmp_path, architecture)
    expected = said(toy, **options)
    request.getfixturevalue("on_meta")
    assert said(toy, **options) == expected
    assert torch.empty(0).device.type == "meta"


def test_no_tensor_is_made_without_a_device() -> None:
    """GPU paths too, which run nowhere here."""
    wrong = []
    for folder in ("backends", "layers", "models", "runner"):
        for source in sorted((ROOT / "nvexplore" / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or any(word.arg in ("device", None) for word in node.keywords):
                    continue
                if ast.unparse(node.func).partition("torch.")[2] in FACTORIES:
                    wrong.append(f"{source.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}")
    assert wrong == []
