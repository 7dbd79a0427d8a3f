"""The demo model in bfloat16 on a GPU: how far its logits are from float32, beside transformers' own bfloat16."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nvexplore.backends.kernels.launch import early_launches
from nvexplore.demo import demo_model_path
from nvexplore.sampling_params import SamplingParams
from tests.gpu.engines import make_llm
from tests.paged import Paged
from tests.prove.parity_demo import STEM, TEXTS

pytestmark = pytest.mark.gpu

MOST = 1.5
CHUNK, DECODED = 96, 32  # a prompt in chunks over what is cached, then so many tokens one by one


@pytest.fixture(scope="module")
def demo() -> Path:
    return demo_model_path(quiet=True)


@pytest.fixture(scope="module")
def ids(demo: Path) -> list[int]:
    from transformers import AutoTokenizer

    found: list[int] = AutoTokenizer.from_pretrained(demo).encode(STEM + " ".join(reversed(TEXTS)))
    assert len(found) > 200
    return found


def theirs(path: Path, ids: list[int], dtype: torch.dtype) -> Tensor:
    """transformers' logits [tokens, vocab] of one forward pass, attention in its plain form."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager")
    model.to("cuda")
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids], device="cuda")).logits[0].float()
    return logits


def ours(path: Path, ids: list[int], **options: Any) -> Tensor:
    """This engine's: chunks over what is in the cache, then decode rows."""
    limits = {"max_num_batched_tokens": 512, "max_model_len": 1024, "enforce_eager": True}
    paged = Paged(path, device="cuda", dtype="bfloat16", num_blocks=64, **limits, **options)
    seq = paged.seq(ids)
    parts, left = [], len(ids) - DECODED
    while left:
        count = min(CHUNK, left)
        parts += paged.logits((seq, count))
        left -= count
    for _ in range(DECODED):
        parts += paged.logits((seq, 1))
    paged.runner.close()
    return torch.cat(parts).float()


@pytest.mark.parametrize("is_early", [False, True], ids=["eager", "few rows"])
@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(
    block_size: int, is_early: bool, demo: Path, ids: list[int]
) -> None:
    """Few rows: with the kernels that graphs of few rows have, which take the chunks' matrices too."""
    exact = theirs(demo, ids, torch.float32)
    reference = (theirs(demo, ids, torch.bfloat16) - exact).abs().max().item()
    with early_launches() if is_early else nullcontext():
        error = (ours(demo, ids, block_size=block_size) - exact).abs().max().item()
    print(f"max abs error: {error:.4f}, transformers' {reference:.4f}, ratio {error / reference:.2f}")
    assert reference > 0 and error <= MOST * reference


def test_the_demo_models_greedy_tokens_in_float32(demo: Path, ids: list[int]) -> None:
    """Overlapped, in graphs, over a cached prefix: the tokens that the largest of transformers' logits name."""
    with make_llm(demo, max_model_len=1024, num_kvcache_blocks=128) as llm:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        first = llm.generate([ids], params, use_tqdm=False)[0].token_ids
        again = llm.generate([ids], params, use_tqdm=False)[0]
    assert again.num_cached_tokens > 0 and again.token_ids == first
    logits = theirs(demo, ids + first, torch.float32)
    for place, token in enumerate(first, len(ids) - 1):
        best = logits[place].max()
        assert best - logits[place, token] <= 1e-3 * best.abs(), f"token {place}"
