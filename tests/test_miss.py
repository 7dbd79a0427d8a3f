"""Why the prefix cache gave no more: each cause in the small situation that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Admitted
from nvexplore.engine.eviction import Eviction, FreeBlocks
from nvexplore.engine.hashing import HashFunction
from nvexplore.engine.miss import explain_miss
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import run_to_end, toy_engine
from tests.toy_device import ToyDevice


def add(engine: Engine, prompt: Iterable[int], max_tokens: int = 1) -> None:
    engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))


def admission(engine: Engine, prompt: Iterable[int]) -> tuple[Any, ...]:
    """Add ``prompt``, step once: (cached tokens, cause, position, block, step) of its admission."""
    add(engine, prompt)
    record = engine.step(want_record=True).record
    assert record is not None
    a: Admitted = record.planned.admitted
    return a.num_cached_tokens[-1], a.miss_cause[-1], a.miss_position[-1], a.miss_block_id[-1], a.miss_step[-1]


def warm(prompt: Iterable[int], **limits: Any) -> Engine:
    """An engine that has run ``prompt`` to its end."""
    engine = toy_engine(**{"num_blocks": 8, **limits})
    add(engine, prompt)
    run_to_end(engine)
    return engine


def test_nothing_like_it_was_ever_there() -> None:
    assert admission(toy_engine(8), range(9)) == (0, "unseen", None, None, None)
    assert admission(warm(range(50, 59)), range(9)) == (0, "unseen", None, None, None)


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8)])
def test_all_that_could_be_hit_was(length: int, cached: int) -> None:
    assert admission(warm(range(12)), range(length)) == (cached, "partial", None, None, None)


@pytest.mark.parametrize("position", [1, 3, 4 + 1, 4 + 3])
def test_the_first_differing_token_is_named(position: int) -> None:
    engine = warm(range(13))
    prompt = list(range(13))
    prompt[position] = 77
    block = position // 4
    assert admission(engine, prompt) == (block * 4, "differs", position, block, None)


def test_a_block_whose_first_token_differs_is_not_near() -> None:
    assert admission(warm(range(13)), [0, 1, 2, 3, 77, 5, 6, 7, 8]) == (4, "unseen", None, None, None)


def test_the_nearest_of_several_is_named() -> None:
    engine = warm(range(9), num_blocks=16)
    for prompt in ([0, 1, 50, 61, 52], [0, 1, 2, 60, 61], [90, 91, 92, 61, 94]):
        add(engine, prompt)
        run_to_end(engine)
    near = engine.snapshot().hash
    cached, cause, position, block, step = admission(engine, [0, 1, 2, 61, 62])
    assert (cached, cause, position, step) == (0, "differs", 3, None)
    assert near[block] is not None and engine.blocks.cache.content[block].token_ids[:3] == (0, 1, 2)  # type: ignore[union-attr]


def test_the_step_of_the_eviction_is_named() -> None:
    engine = warm(range(9), num_blocks=3)
    add(engine, range(50, 62))  # takes all three blocks, tail of the first prompt first
    evicting = engine.next_step
    run_to_end(engine)
    assert admission(engine, range(9)) == (0, "evicted", None, None, evicting)


def test_an_evicted_tail_behind_a_cached_head() -> None:
    engine = warm(range(13), num_blocks=4)
    add(engine, [50])  # takes the one block that held nothing
    run_to_end(engine)
    add(engine, [50, 51, 52, 53, 54])  # takes two: the tail of the first prompt goes
    evicting = engine.next_step
    run_to_end(engine)
    cached, cause, _, _, step = admission(engine, range(13))
    assert (cause, step) == ("evicted", evicting) and cached in (4, 8)


def test_a_resident_request_that_is_about_to_fill_the_block() -> None:
    """The last of its twelve tokens is sampled but not stored, and this step is a prefill."""
    engine = toy_engine(16)
    resident = engine.add_request(range(8), SamplingParams(max_tokens=9))
    while resident.num_tokens < 12:
        engine.step()
    block = resident.block_table[2]
    assert admission(engine, [*resident.token_ids, 5, 6]) == (8, "in_flight", None, block, None)
    engine.step()  # it decodes: the token is stored
    assert admission(engine, [*resident.token_ids[:12], 5, 6]) == (12, "partial", None, None, None)


def resident_and_reset(num_tokens: int, **limits: Any) -> tuple[Engine, Sequence]:
    """A request that has ``num_tokens`` and goes on, in a cache that was then reset."""
    engine = toy_engine(32, **limits)
    resident = engine.add_request(range(20), SamplingParams(max_tokens=20))
    while resident.num_tokens < num_tokens:
        engine.step()
    engine.reset_prefix_cache()
    return engine, resident


@pytest.mark.parametrize("cut", [5, 20, 21])
def test_blocks_that_a_resident_request_still_holds_after_a_reset(cut: int) -> None:
    """They are full and nobody is about to fill them: a reset has taken them out of the cache."""
    engine, resident = resident_and_reset(21)
    assert admission(engine, [*resident.token_ids[:cut], 5]) == (0, "evicted", None, None, 0)


def test_such_blocks_do_not_hide_one_that_is_about_to_be_filled() -> None:
    """The one in flight was admitted after the reset, and stands behind the one before it."""
    engine, resident = resident_and_reset(25)
    second = engine.add_request(range(20), SamplingParams(max_tokens=20))
    while second.num_tokens < 24:
        engine.step()
    assert resident.num_computed_tokens > 24 and len(second.chain) == 5
    assert admission(engine, [*second.token_ids, 5, 6]) == (20, "in_flight", None, second.block_table[5], None)


def test_a_chunk_that_was_forgotten_is_not_in_flight_and_the_next_one_is() -> None:
    engine = toy_engine(32, max_num_batched_tokens=8, policy="mixed")
    add(engine, range(20))
    engine.step()
    engine.reset_prefix_cache()
    assert engine.snapshot().sequences.num_computed_tokens == [8]
    add(engine, range(20))
    engine.step()
    record = engine.step(want_record=True).record  # the budget lets the second one in here
    assert record is not None and record.planned.admitted.miss_cause == ["evicted"]


def test_a_block_that_lost_its_entry_to_another_in_the_same_step() -> None:
    """All prompts have the same hash: each takes the entry of the one before."""
    plain = toy_engine(16)
    engine = Engine(plain.limits, plain.runner, hash_function=lambda parent, ids: 7)
    for first in (0, 50, 0):
        add(engine, range(first, first + 5))
    record = engine.step(want_record=True).record
    assert record is not None
    admitted = record.planned.admitted
    assert admitted.miss_cause == ["unseen", "unseen", "evicted"] and admitted.miss_step == [None, None, 0]


def test_a_block_whose_last_token_is_in_the_air_is_in_flight() -> None:
    """Its row counts as computed, but who it belongs to is known when it lands."""
    engine = toy_engine(32, make_runner=ToyDevice, overlap=True, policy="mixed")
    resident = engine.add_request(range(6), SamplingParams(max_tokens=12))
    while resident.num_tokens < 8:
        engine.advance()
    assert resident.num_computed_tokens == 8 and len(resident.chain) == 1
    planned = engine.scheduler  # as the next plan finds it, made ahead
    late = Sequence(9, [*resident.token_ids, 5], SamplingParams(), request_id="late")
    hits = planned.blocks.find_prefix(late)
    miss = explain_miss(late, hits, planned.blocks, planned.queues.running)
    assert miss == ("in_flight", None, resident.block_table[1], None)


@pytest.mark.parametrize(("policy", "expected"), [("prefill_first", "in_flight"), ("mixed", "partial")])
def test_a_resident_request_that_has_no_block_for_its_newest_token(policy: str, expected: str) -> None:
    """With one token a block: the block is allocated when the request decodes, which a prefill may come before."""
    engine = toy_engine(16, 1, policy=policy)
    resident = engine.add_request(range(3), SamplingParams(max_tokens=9))
    engine.step()
    engine.step()
    cached, cause, _, block, _ = admission(engine, [*resident.token_ids, 7])
    assert (cause, block) == (expected, None) and cached == (4 if expected == "in_flight" else 5)


class NewestFirst(Eviction):
    def choose(self, free: FreeBlocks) -> int:
        return list(free)[-1]


def orphaned(hash_function: HashFunction | None = None) -> Engine:
    """A prompt's first block was evicted and stored anew; those behind it go on from the entry that is gone."""
    plain = toy_engine(8, eviction=NewestFirst())
    engine = Engine(plain.limits, plain.runner, hash_function=hash_function)
    for prompt in (range(13), [50, 51], range(4)):
        add(engine, prompt)
        run_to_end(engine)
    return engine


def test_a_block_that_goes_on_from_one_that_is_gone() -> None:
    engine = orphaned()
    (block,) = (b for b, held in enumerate(engine.blocks.cache.content) if held and held.token_ids == (4, 5, 6, 7))
    assert admission(engine, range(13)) == (4, "orphaned", None, block, None)
    # The request itself has stored it anew.
    assert admission(engine, range(13)) == (12, "partial", None, None, None)


@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_an_orphan_whose_owner_runs_on(eviction: str) -> None:
    """It has computed a first block of its own, and the one that was cached before is the one that goes."""
    engine = warm([0, 1, 2, 3, 9], num_blocks=10, eviction=eviction)
    owner = engine.add_request(range(9), SamplingParams(max_tokens=9, prompt_logprobs=0))
    engine.step()
    orphan = owner.block_table[1]
    add(engine, range(60, 86))  # takes all that is free
    engine.step()
    assert admission(engine, range(4)) == (0, "partial", None, None, None) and not owner.is_finished
    assert admission(engine, range(9)) == (4, "orphaned", None, orphan, None)


def test_such_a_block_that_is_evicted_itself_is_evicted() -> None:
    engine = orphaned()
    add(engine, range(60, 91))
    evicting = engine.next_step
    run_to_end(engine)
    add(engine, range(4))
    run_to_end(engine)
    assert admission(engine, range(13)) == (4, "evicted", None, None, evicting)


def test_the_same_tokens_after_another_prefix_of_the_same_hash_are_no_orphan() -> None:
    """The hash tells nothing but the block's own tokens: the entry stands behind a prefix that is still there."""
    plain = toy_engine(16)
    engine = Engine(plain.limits, plain.runner, hash_function=lambda parent, ids: sum(ids))
    add(engine, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    run_to_end(engine)
    add(engine, [9, 9, 9, 9, 9])
    run_to_end(engine)
    assert admission(engine, [9, 9, 9, 9, 4, 5, 6, 7, 8]) == (4, "unseen", None, None, None)


def test_other_tokens_of_the_same_hash_are_no_orphan() -> None:
    engine = orphaned(lambda parent, ids: 1000 * parent + sum(ids))
    assert admission(engine, [0, 1, 2, 3, 7, 6, 5, 4, 8]) == (4, "unseen", None, None, None)


def test_the_same_first_tokens_under_a_salt_of_the_same_hash_are_no_orphan() -> None:
    plain = toy_engine(16)
    engine = Engine(plain.limits, plain.runner, hash_function=lambda parent, ids: 7)
    for salt in ("a", "b"):
        engine.add_request(range(5), SamplingParams(max_tokens=1, cache_salt=salt))
        record = engine.step(want_record=True).record
        assert record is not None and record.planned.admitted.miss_cause == ["unseen"]


def test_blocks_of_the_same_step_are_shared() -> None:
    engine = toy_engine(16)
    add(engine, range(9))
    add(engine, range(9))
    record = engine.step(want_record=True).record
    assert record is not None
    planned = record.planned
    assert (planned.start, planned.count) == ([0, 8], [9, 1])
    assert planned.blocks.kind.count("hit") == 2 and planned.admitted.miss_cause == ["unseen", "partial"]


def test_caching_off() -> None:
    engine = warm(range(9), enable_prefix_caching=False)
    assert admission(engine, range(9)) == (0, "disabled", None, None, None)


def test_without_a_watcher_nothing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvexplore.engine.scheduler.explain_miss", None)
    engine = toy_engine(8)
    add(engine, range(9))
    run_to_end(engine)
