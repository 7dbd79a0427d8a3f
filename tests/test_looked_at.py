"""A plan that is only looked at is no step: it is the next step's plan, and no later record differs for it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine
from tests.test_two_engines import without_times


def one_token() -> SamplingParams:
    return SamplingParams(max_tokens=1)


def watched(**limits: Any) -> tuple[Engine, list[Snapshot | StepRecord]]:
    engine, items = toy_engine(**limits), []
    engine.subscribe(items.append)
    return engine, items


def random_run(seed: int, looks: bool) -> list[Snapshot | StepRecord]:
    """Prompts of few different tokens, so that misses are near ones, in a pool that holds few of them."""
    rng = random.Random(seed)
    limits: dict[str, Any] = {
        "num_blocks": rng.randrange(6, 12),
        "block_size": rng.choice([1, 2, 4]),
        "policy": rng.choice(["prefill_first", "mixed"]),
        "eviction": rng.choice(["lru", "lfu"]),
        "max_num_batched_tokens": rng.choice([5, 64]),
    }
    engine, items = watched(**limits)
    most = limits["num_blocks"] * limits["block_size"]
    for _ in range(60):
        if rng.random() < 0.5:
            params = SamplingParams(max_tokens=rng.randrange(1, 4))
            engine.add_request([rng.randrange(3) for _ in range(rng.randrange(1, most - 3))], params)
        if rng.random() < 0.1:
            engine.reset_prefix_cache()
        planned = engine.plan() if looks else None
        if rng.random() < 0.1 and engine.live:
            engine.abort(next(iter(engine.live)))
            planned = None
        if rng.random() < 0.1:
            engine.reset_prefix_cache()
            planned = None
        if rng.random() < 0.8:
            record = engine.step(want_record=True).record
            if planned is not None and record is not None:
                assert planned == record.planned
    return items


@pytest.mark.parametrize("seed", range(60))
def test_random_runs(seed: int) -> None:
    assert without_times(random_run(seed, looks=True)) == without_times(random_run(seed, looks=False))


@pytest.mark.parametrize("looks", [False, True])
def test_the_step_that_a_reset_is_told_of(looks: bool) -> None:
    """It is the last that ran, not the one that was looked at."""
    engine, items = watched(num_blocks=20)
    for prompt in (range(9), [7]):
        engine.add_request(prompt, one_token())
        engine.step()
    engine.add_request(range(9), one_token())
    if looks:
        engine.plan()
    engine.reset_prefix_cache()
    engine.step()
    last = items[-1]
    assert isinstance(last, StepRecord)
    assert (last.planned.admitted.miss_cause, last.planned.admitted.miss_step) == (["evicted"], [1])


@pytest.mark.parametrize("looks", [False, True])
def test_of_equally_near_blocks_the_newest_is_named(looks: bool) -> None:
    """Also after the plan of a request that would evict the older one, and is gone before it can."""
    engine, items = watched(num_blocks=4)
    for prompt in ([1, 2, 3, 4], [1, 2, 3, 5]):
        engine.add_request(prompt, one_token())
    while engine.has_unfinished:
        engine.step()
    newest = engine.blocks.cache.children(engine.blocks.cache.root(None))
    assert len(newest) == 2
    engine.add_request([60] * 12, one_token(), request_id="big")
    if looks:
        assert engine.plan().admitted.num_cached_tokens == [0]
    engine.abort("big")
    assert engine.blocks.cache.children(engine.blocks.cache.root(None)) == newest
    engine.add_request([1, 2, 9, 9, 9], one_token())
    engine.step()
    last = items[-1]
    assert isinstance(last, StepRecord)
    assert (last.planned.admitted.miss_cause, last.planned.admitted.miss_block_id) == (["differs"], newest[:1])
