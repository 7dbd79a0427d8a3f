"""Public bug reports about prefix caches, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Keys and values of a
hit are looked at in test_model_reports.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nvexplore import SamplingParams
from nvexplore.engine.engine import Engine
from tests.fakes import ToyRunner, run_to_end, toy_engine, unconstrained
from tests.reports.common import add, finish, toy_llm


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("length", [4, 8, 12])
def test_n03_fully_cached_prompt_runs_at_least_one_token(together: bool, length: int) -> None:
    """nano-vllm#114: a prompt of whole cached blocks leaves zero query tokens."""
    engine, prompt = toy_engine(16, 4), list(range(length))
    first = add(engine, prompt, 3)
    if not together:
        run_to_end(engine)
    second = add(engine, prompt, 3)
    run_to_end(engine)
    assert first.completion_token_ids == second.completion_token_ids == unconstrained(prompt, 3)
    # Whole blocks, at most length - 1 tokens; blocks that the same step writes can be shared already.
    assert second.num_cached_tokens == length - 4


@pytest.mark.parametrize("shared", [4, 8])
def test_n09_freed_but_intact_blocks_are_hits(shared: int) -> None:
    """nano-vllm PR#110: a freed block is valid until it is overwritten; not using it would cost every hit."""
    engine, stem = toy_engine(16, 4), list(range(shared))
    finish(engine, [*stem, 9], 2)
    free_before = len(engine.blocks.free)
    second = add(engine, [*stem, 10], 2)
    engine.step()
    assert second.num_cached_tokens == shared
    assert [engine.blocks.ref_count[b] for b in second.block_table] == [1] * (shared // 4 + 1)
    assert not set(second.block_table) & set(engine.blocks.free)
    assert len(engine.blocks.free) == free_before - shared // 4 - 1
    run_to_end(engine)
    assert second.completion_token_ids == unconstrained([*stem, 10], 2)


def test_n29_prefix_caching_off(toy: Path) -> None:
    """nano-vllm#18: no switch. Off: nothing cached, no hash recorded, the same tokens; n samples share nothing."""
    params = SamplingParams(max_tokens=6, n=2, seed=4, top_p=0.9)
    with toy_llm(toy) as on, toy_llm(toy, enable_prefix_caching=False) as off:
        expected = [[o.token_ids for o in on.generate("abcdefghij", params, use_tqdm=False)[0].outputs] for _ in "123"]
        for tokens in expected:
            outputs = off.generate("abcdefghij", params, use_tqdm=False)[0].outputs
            assert [o.token_ids for o in outputs] == tokens
            assert [o.num_cached_tokens for o in outputs] == [0, 0]
        assert set(off.engine.snapshot().hash) == {None}


@pytest.mark.parametrize("length", [3, 4, 8, 9])
def test_n29_off_means_off_for_prompts_of_whole_blocks_too(length: int) -> None:
    """nano-vllm#18, the sibling: three times the same ids, in one step and one after the other."""
    engine, prompt = toy_engine(32, 4, enable_prefix_caching=False), list(range(length))
    together = [add(engine, prompt, 5) for _ in range(3)]
    run_to_end(engine)
    assert [seq.num_cached_tokens for seq in together] == [0, 0, 0]
    assert [finish(engine, prompt, 5).num_cached_tokens for _ in range(3)] == [0, 0, 0]
    assert len(engine.blocks.cache) == 0


@pytest.mark.parametrize(("block_size", "length"), [(4, 12), (4, 8), (2, 6), (1, 5)])
def test_v01_the_chain_of_hashes_survives_full_prompt_hits(block_size: int, length: int) -> None:
    """vllm#3193, PR#11186: a full hit crashed, or left the last block unhashed and broke the chain."""
    engine, prompt = toy_engine(32, block_size), list(range(length))
    cached = [finish(engine, prompt, 2).num_cached_tokens for _ in range(3)]
    assert cached == [0, length - block_size, length - block_size]
    # The last full block of the prompt is registered too: a longer prompt hits all of them.
    assert finish(engine, [*prompt, 90, 91, 92, 93, 94], 2).num_cached_tokens == length


@pytest.mark.parametrize("collide", [False, True])
def test_v05_an_evicted_block_is_never_served(collide: bool) -> None:
    """vllm PR#4761: a reused block keeps its entry in the hash table. Also with all hashes equal."""
    engine = toy_engine(4, 4)
    if collide:
        engine = Engine(engine.limits, ToyRunner(4, 4), hash_function=lambda parent, ids: 7)
    x, y = [1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(20, 33))
    finish(engine, x, 1)
    finish(engine, y, 4)  # fills the pool
    assert finish(engine, x, 1).num_cached_tokens == 0


def test_v05_equal_ids_at_another_place_are_another_block() -> None:
    """The sibling: equal ids in both blocks and equal hashes; the second block must not hit the first."""
    limits = toy_engine(8, 4).limits
    engine = Engine(limits, ToyRunner(8, 4), hash_function=lambda parent, ids: 7)
    finish(engine, [1, 2, 3, 4, 9], 1)
    assert finish(engine, [1, 2, 3, 4, 1, 2, 3, 4, 9], 1).num_cached_tokens == 4


def test_v39_tails_are_evicted_before_heads() -> None:
    """vllm PR#51482: freed blocks were reused head first, which cost the whole prefix."""
    engine = toy_engine(3, 4)
    finish(engine, list(range(12)), 1)
    finish(engine, [50, 51], 1)  # takes one block: must be the tail's
    assert finish(engine, list(range(12)), 1).num_cached_tokens == 8


@pytest.mark.parametrize(("taken", "left"), [(0, 8), (1, 8), (2, 4), (3, 0)])
def test_v39_each_further_block_costs_one_more_of_the_tail(taken: int, left: int) -> None:
    """vllm PR#51482, the sibling: never used blocks go first, then the finished prompt from its end on."""
    engine = toy_engine(5, 4)
    finish(engine, list(range(12)), 1)
    finish(engine, [50] * (4 * (2 + taken)), 1)  # two blocks were never used
    assert finish(engine, list(range(12)), 1).num_cached_tokens == left


def test_v39_least_recently_freed_goes_first_and_a_hit_refreshes() -> None:
    """Across requests: the oldest finished one is evicted first, unless it was hit since."""
    engine = toy_engine(4, 4)
    a, b = [1, 2, 3, 4, 5], [11, 12, 13, 14, 15]
    finish(engine, a, 1)
    finish(engine, b, 1)
    finish(engine, a, 1)  # refreshed: b is the oldest now
    finish(engine, [30] * 9, 1)  # takes three blocks
    assert finish(engine, a, 1).num_cached_tokens == 4
    assert finish(engine, b, 1).num_cached_tokens == 0
