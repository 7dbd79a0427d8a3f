"""GPU memory: the pool's size from what was measured, several engines in one process, and what ``close`` gives back."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams
from tests.gpu.engines import greedy, make_llm, prompts, tokens

pytestmark = pytest.mark.gpu

MIB = 1 << 20
# A toy's pool as large as the GPU has hundreds of thousands of blocks even so.
MEASURED = {"num_kvcache_blocks": None, "block_size": 256, "gpu_memory_utilization": 0.01}


def allocated() -> int:
    """Bytes that tensors hold. cuBLAS' scratch memory belongs to the process: only without engines may it go."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def test_j09_closing_gives_the_memory_back_three_times_over(toy: Path) -> None:
    """vllm#6544, #3281: ``del llm`` freed nothing. Here the closed engine is still held, and its graphs are gone."""
    asked = [(prompt, greedy(5)) for prompt in prompts(20, 9, 3)]
    with make_llm(toy) as llm:
        expected = tokens(llm, asked)
    base, kept = allocated(), []
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    for _ in range(3):
        llm = make_llm(toy, num_kvcache_blocks=4096)
        kept.append(llm)
        assert tokens(llm, asked) == expected
        assert llm.runner is not None
        size = llm.runner.kv_cache.pool.nbytes
        assert torch.cuda.memory_allocated() - base >= size >= 32 * MIB
        llm.close()
        assert torch.cuda.memory_reserved() <= reserved, "memory that the driver did not get back"
        assert allocated() - base < MIB
    for llm in kept:
        for call in (llm.step, lambda llm=llm: llm.generate([[1, 2]]), lambda llm=llm: llm.add_request([1, 2])):
            with pytest.raises(RuntimeError, match="this LLM is closed; make a new one"):
                call()


def test_j09_two_engines_on_one_gpu_take_turns(toy: Path, other_toy: Path) -> None:
    """vllm#21073, #1908: state that engines share. Other models, block sizes and lengths, one step each in turn."""
    asked = [(prompt, greedy(12)) for prompt in prompts(30, 9, 17)]
    drawn = [(prompt, SamplingParams(temperature=1, max_tokens=12, ignore_eos=True, seed=2)) for prompt, _ in asked]
    alone = []
    for path, block_size in ((toy, 4), (other_toy, 16)):
        with make_llm(path, block_size=block_size) as llm:
            alone.append(tokens(llm, asked + drawn))
    a, b = make_llm(toy, block_size=4), make_llm(other_toy, block_size=16)
    seqs = [[llm.add_request(*each) for each in asked + drawn] for llm in (a, b)]
    while a.has_unfinished or b.has_unfinished:
        for llm in (a, b):
            if llm.has_unfinished:
                llm.step()
    assert [[seq.completion_token_ids for seq in each] for each in seqs] == alone
    a.close()
    assert tokens(b, asked) == alone[1][: len(asked)]
    b.close()


def pool_bytes(llm: LLM) -> int:
    assert llm.runner is not None
    return llm.runner.kv_cache.pool.nbytes


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
def test_v31_the_pool_fills_this_engines_share_and_no_more(enforce_eager: bool, toy: Path) -> None:
    """vllm#55827: what other engines hold is not charged to this one, so the second has a pool of the same size."""
    _, total = torch.cuda.mem_get_info()
    share = int(total * MEASURED["gpu_memory_utilization"])
    with make_llm(toy, **MEASURED, enforce_eager=enforce_eager) as first:
        assert first.runner is not None and first.runner.num_blocks > 0
        assert share // 4 < pool_bytes(first) <= share
        with make_llm(toy, **MEASURED, enforce_eager=enforce_eager) as second:
            assert abs(pool_bytes(second) - pool_bytes(first)) < share // 4
            asked = [(prompt, greedy(6)) for prompt in prompts(200, 30)]
            assert tokens(first, asked) == tokens(second, asked)


def test_v31_no_room_is_said_in_numbers(toy: Path) -> None:
    with pytest.raises(ValueError, match=r"no room for the KV cache: one block takes .* bytes are available"):
        make_llm(toy, **{**MEASURED, "gpu_memory_utilization": 1e-6})
    with make_llm(toy) as llm:  # and the failure left nothing behind that could hurt
        assert tokens(llm, [(prompts(5)[0], greedy(2))])[0]
