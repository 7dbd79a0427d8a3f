"""A pool of 8 bits in whole engines: what it costs in accuracy, that graphs keep to it, and the room that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.gpu.engines import ROOMY, greedy, make_llm, prompts, tokens

# With compile_layers the compiler wants float32 to be rounded to 19 bits.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]

DEVICE = "cuda"
FP8 = {"kv_cache_dtype": "fp8"}


def logits(llm: LLM) -> Tensor:
    """Teacher-forced logits [200, vocab]: a prompt in two chunks, then tokens one by one, as decode rows are run."""
    runner = llm.runner
    assert runner is not None
    (ids,) = prompts(200)
    seq = Sequence(0, ids, SamplingParams(), request_id="forced")
    seq.block_table = list(range(3, 3 + -(-len(ids) // runner.block_size)))
    found = []
    for count in (100, 70, *[1] * 30):
        batch = ScheduledBatch()
        batch.add(seq, count, is_prefill=count > 1)
        found.append(runner.forward_logits(batch, all_positions=True).float().cpu())
        seq.num_computed_tokens += count
    return torch.cat(found)


def made(path: Path, device: str = DEVICE, **options: Any) -> Tensor:
    with make_llm(path, device, **options) as llm:
        assert llm.runner is not None
        is_narrow = llm.runner.kv_cache.pool.dtype == torch.float8_e4m3fn
        assert is_narrow == (options.get("kv_cache_dtype") == "fp8")
        return logits(llm)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_error_of_logits_is_bounded_and_that_of_the_cpu(architecture: str, tmp_path: Path) -> None:
    """fp8 keeps 4 significant bits of keys and values, bfloat16 8 bits of everything: 16 times as large at most.

    That is the bound, in the mean and for the worst logit, of 16 bits too. The CPU's engine, which is the
    specification, loses as much as this one in the mean, and with float32 rounds nearly all keys to the same side.
    """
    path = make_toy(tmp_path, architecture, head_dim=64 if architecture == "llama" else 128)
    exact = made(path)
    bound = 16 * (made(path, dtype="bfloat16") - exact).abs()
    reference = made(path, "cpu", **FP8)
    for options in ({}, {"compile_layers": True}, {"dtype": "float16"}, {"dtype": "bfloat16"}):
        found = made(path, **FP8, **options)
        error = (found - exact).abs()
        assert error.mean() < bound.mean() and error.max() < bound.max(), options
        assert 0.8 < error.mean() / (reference - exact).abs().mean() < 1.25, options
        if "dtype" not in options:
            assert (found - reference).abs().mean() < error.mean() / 10, options


def test_graphs_say_what_single_kernels_say_and_rows_of_padding_write_nothing(toy: Path) -> None:
    """V24: 5 rows and fewer in graphs of 8, 4, 2 and 1; a last block full of NaN stays so."""
    asked = [(prompt, greedy(6 + n)) for n, prompt in enumerate(prompts(30, 9, 1, 17, 22))]
    found = []
    for enforce_eager in (True, False):
        with make_llm(toy, DEVICE, enforce_eager=enforce_eager, **FP8) as llm:
            assert llm.runner is not None
            last = llm.runner.kv_cache.pool[:, :, -1]
            last.fill_(torch.nan)
            found.append(tokens(llm, asked))
            assert last.float().isnan().all()
    assert found[0] == found[1]


def test_a_pool_of_8_bits_has_twice_as_many_blocks(toy: Path) -> None:
    counts = {}
    for kv_cache_dtype in ("auto", "fp8"):
        options = {**ROOMY, "num_kvcache_blocks": None, "block_size": 256, "gpu_memory_utilization": 0.01}
        with make_llm(toy, DEVICE, dtype="bfloat16", kv_cache_dtype=kv_cache_dtype, **options) as llm:
            assert llm.runner is not None
            counts[kv_cache_dtype] = llm.runner.num_blocks
            assert llm.memory.pool == llm.runner.kv_cache.pool.nbytes
    assert 1.9 < counts["fp8"] / counts["auto"] < 2.1, counts
