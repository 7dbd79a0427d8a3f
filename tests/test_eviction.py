"""Eviction orders: what each keeps and loses, one of one's own, and one that chooses what it must not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.eviction import Eviction, FreeBlocks, LeastHit, make_eviction
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.engine_state import deep_state
from tests.fakes import check_invariants, is_broken, run_to_end, toy_engine, unconstrained


def complete(engine: Engine, prompt: Iterable[int], max_tokens: int = 1) -> Sequence:
    """Run ``prompt`` to its end, with nothing else in the engine."""
    seq = engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))
    run_to_end(engine)
    check_invariants(engine)
    assert seq.completion_token_ids == unconstrained(seq.prompt_token_ids, max_tokens)
    return seq


def hot_then_cold(eviction: str | Eviction) -> int:
    """A prefix of two blocks that three requests share, then others that fill the pool once; tokens of it still hit."""
    engine = toy_engine(8, eviction=eviction)
    for i in range(4):
        complete(engine, [*range(8), 90 + i])
    for i in range(4):
        complete(engine, range(100 + 10 * i, 105 + 10 * i))
    return complete(engine, [*range(8), 99]).num_cached_tokens


class TestOrders:
    def test_lru_loses_a_prefix_that_lfu_keeps(self) -> None:
        assert hot_then_cold("lru") == 0
        assert hot_then_cold("lfu") == 8

    def test_lru_takes_the_block_freed_longest_ago_tails_first(self) -> None:
        engine = toy_engine(6)
        first = engine.add_request(range(12), SamplingParams(max_tokens=1))
        engine.step()
        second = engine.add_request(range(20, 24), SamplingParams(max_tokens=1))
        engine.step()
        assert first.is_finished and second.is_finished
        order = list(engine.blocks.free)
        assert order == [4, 5, 2, 1, 0, 3]
        taken = engine.add_request(range(40, 61), SamplingParams(max_tokens=1))
        engine.step()
        assert engine.blocks.allocated_this_step == order and taken.is_finished

    def test_lfu_of_equals_takes_the_oldest(self) -> None:
        engine = toy_engine(6, eviction="lfu")
        complete(engine, range(8))
        order = list(engine.blocks.free)
        complete(engine, range(50, 62))
        assert engine.blocks.allocated_this_step == order[:3]

    def test_lfu_looks_at_the_64_oldest_only(self) -> None:
        """The first 64 that are free have been hit, the 65th has not."""
        engine = toy_engine(130, 1, eviction="lfu")
        blocks = engine.blocks
        order = list(blocks.free)
        for block in order[:64]:
            blocks.num_hits[block] = 2
        blocks.num_hits[order[63]] = 1
        assert LeastHit().choose(FreeBlocks(blocks.free, blocks.cache, blocks.num_hits)) == order[63]
        blocks.num_hits[order[63]] = 3
        assert LeastHit().choose(FreeBlocks(blocks.free, blocks.cache, blocks.num_hits)) == order[0]

    def test_hits_count_from_the_allocation_on(self) -> None:
        engine = toy_engine(3, eviction="lfu")
        for _ in range(3):
            seq = complete(engine, range(5))
        hit = engine.blocks.num_hits.index(2)
        assert seq.num_cached_tokens == 4 and sorted(engine.blocks.num_hits) == [0, 0, 2]
        complete(engine, range(50, 62))
        assert engine.blocks.num_hits == [0, 0, 0] and hit in engine.blocks.allocated_this_step

    @pytest.mark.parametrize("eviction", ["lru", "lfu"])
    @pytest.mark.parametrize("num_blocks", [5, 6, 9])
    def test_outputs_do_not_depend_on_it(self, eviction: str, num_blocks: int) -> None:
        rng = random.Random(num_blocks)
        engine = toy_engine(num_blocks, 2, eviction=eviction, max_num_batched_tokens=5)
        prompts = [[rng.randrange(2) for _ in range(rng.randint(1, 7))] for _ in range(12)]
        seqs = [engine.add_request(prompt, SamplingParams(max_tokens=4)) for prompt in prompts]
        while engine.has_unfinished:
            engine.step()
            check_invariants(engine)
        assert [seq.completion_token_ids for seq in seqs] == [unconstrained(prompt, 4) for prompt in prompts]


class DeepestFirst(Eviction):
    """A researcher's: the block that stands furthest back in its prompt; what holds nothing goes first."""

    name = "deepest_first"

    def choose(self, free: FreeBlocks) -> int:
        return max(islice(free, 64), key=lambda block: (not free.is_cached(block), free.depth(block)))


class TestOnesOwn:
    def test_it_decides_what_is_kept(self) -> None:
        """Two prompts of three full blocks in a pool of six: heads of both survive a third prompt."""
        kept = {}
        for eviction in (DeepestFirst(), "lru"):
            engine = toy_engine(6, eviction=eviction)
            complete(engine, range(11))
            complete(engine, range(20, 31))
            complete(engine, range(40, 47))
            check_invariants(engine)
            contents = [c for c in engine.blocks.cache.content if c is not None]
            kept[str(eviction)] = sorted(content.token_ids[0] for content in contents)
        mine, lru = kept.values()
        assert mine == [0, 4, 20, 24, 40] and lru != mine

    def test_what_it_sees(self) -> None:
        engine = toy_engine(6)
        complete(engine, range(11))
        complete(engine, [*range(8), 77])
        free = FreeBlocks(engine.blocks.free, engine.blocks.cache, engine.blocks.num_hits)
        order = list(free)
        assert len(free) == len(order) == 6 and free.oldest == order[0]
        cached = [block for block in order if free.is_cached(block)]
        assert [free.depth(block) for block in cached] == [1, 0], "of one sequence the tail comes before the head"
        assert [free.num_hits(block) for block in cached] == [1, 1]
        others = [block for block in order if not free.is_cached(block)]
        assert len(others) == 4 and {free.depth(block) for block in others} == {-1}
        assert {free.num_hits(block) for block in others} == {0}

    @pytest.mark.parametrize("wrong", ["held", "beyond", "negative", "None", "text", "True", "float"])
    def test_a_wrong_choice_is_an_error_and_the_engine_stays_usable(self, wrong: str) -> None:
        class Confused(Eviction):
            name = "confused"
            is_confused = False

            def choose(self, free: FreeBlocks) -> Any:
                if not self.is_confused:
                    return free.oldest
                choices = {"beyond": 8, "negative": -1, "None": None, "text": "0", "True": True, "float": 1.0}
                return holder.block_table[0] if wrong == "held" else choices[wrong]

        confused = Confused()
        engine = toy_engine(8, eviction=confused)
        holder = engine.add_request(range(6), SamplingParams(max_tokens=4))
        engine.step()
        late = engine.add_request(range(20, 26), SamplingParams(max_tokens=4))
        before = engine.snapshot()
        confused.is_confused = True
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"eviction 'confused' chose .*, which is not a free block"):
                engine.step()
            assert engine.snapshot().same_state(before)
        confused.is_confused = False
        run_to_end(engine)
        check_invariants(engine)
        for seq in (holder, late):
            assert seq.completion_token_ids == unconstrained(seq.prompt_token_ids, 4)

    def test_it_may_leave_a_choice_to_lru(self) -> None:
        class Mostly(Eviction):
            def choose(self, free: FreeBlocks) -> int:
                return 2 if 2 in free else super().choose(free)

        engine = toy_engine(4, eviction=Mostly())
        engine.add_request(range(12), SamplingParams(max_tokens=1))
        engine.step()
        assert engine.blocks.allocated_this_step == [2, 0, 1]

    def test_the_last_block_may_be_chosen(self) -> None:
        class Last(Eviction):
            def choose(self, free: FreeBlocks) -> int:
                return list(free)[-1]

        engine = toy_engine(4, eviction=Last())
        seq = engine.add_request(range(6), SamplingParams(max_tokens=1))
        engine.step()
        assert engine.blocks.allocated_this_step == [3, 2] and seq.is_finished


def test_an_undone_step_does_not_count_as_a_hit() -> None:
    fails: list[str] = []

    def interrupt(stage: str) -> None:
        if stage in fails:
            raise KeyboardInterrupt

    engine = toy_engine(4, interrupt=interrupt, eviction="lfu")
    complete(engine, range(9))
    complete(engine, range(9))
    before = list(engine.blocks.num_hits)
    assert sorted(before) == [0, 0, 1, 1]
    fails.append("write")
    # Hits two blocks, and allocates the other two, of which none has been hit.
    engine.add_request([*range(8), 50, 51, 52, 53, 54], SamplingParams(max_tokens=1))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.snapshot()
        assert engine.blocks.num_hits == before
    # And an allocation forgets the hits for good only if its step stands, or may have overwritten what was hit.
    engine.abort("2")
    engine.add_request(range(60, 76), SamplingParams(max_tokens=1))
    assert engine.plan().blocks.kind.count("allocated") == 4 and engine.blocks.num_hits == before
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.snapshot()
    assert engine.blocks.num_hits == [0] * 4
    fails.clear()
    run_to_end(engine)
    assert engine.blocks.num_hits == [0] * 4
    check_invariants(engine)


class TestForgotten:
    """Whatever takes a block's content takes its hits with it: what holds nothing is the first to go."""

    def hot(self, **options: Any) -> Engine:
        """Two blocks that were hit three times, in a pool of six."""
        engine = toy_engine(6, eviction="lfu", **options)
        for i in range(4):
            complete(engine, [*range(8), 90 + i])
        assert sorted(engine.blocks.num_hits) == [0, 0, 0, 0, 3, 3]
        return engine

    def test_by_a_reset_which_leaves_room_for_what_is_cached_later(self) -> None:
        engine = self.hot()
        engine.reset_prefix_cache()
        assert engine.blocks.num_hits == [0] * 6
        check_invariants(engine)
        complete(engine, range(40, 49))
        complete(engine, range(50, 63))  # four blocks: all but those of the one before
        assert complete(engine, range(40, 49)).num_cached_tokens == 8

    def test_by_a_reset_that_is_undone(self) -> None:
        engine = self.hot()
        before = deep_state(engine)
        engine.blocks.forget_all()
        assert engine.blocks.num_hits == [0] * 6
        engine._undo.rollback()
        assert deep_state(engine) == before and max(engine.blocks.num_hits) == 3

    def test_by_a_row_that_breaks_down(self) -> None:
        prompt = next([*range(8), i] for i in itertools.count() if is_broken([*range(8), i], 50))
        engine = self.hot(broken_every=50)
        seq = engine.add_request(prompt, SamplingParams(max_tokens=2))
        run_to_end(engine)
        assert seq.finish_reason == "error" and engine.blocks.num_hits == [0] * 6
        check_invariants(engine)

    def test_by_a_step_that_fails(self) -> None:
        fails: list[str] = []

        def interrupt(stage: str) -> None:
            if stage in fails:
                raise KeyboardInterrupt

        engine = self.hot(interrupt=interrupt)
        fails.append("begin")
        engine.add_request(range(50, 74), SamplingParams(max_tokens=1))  # takes all blocks
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.snapshot()
        assert engine.blocks.num_hits == [0] * 6
        check_invariants(engine)

    def test_by_another_with_the_same_hash(self) -> None:
        plain = toy_engine(8, eviction="lfu")
        engine = Engine(plain.limits, plain.runner, hash_function=lambda parent, ids: 7)
        for first in (0, 0, 50):
            complete(engine, range(first, first + 5))
        assert engine.blocks.num_hits == [0] * 8
        assert len(engine.blocks.cache) == 1, "the one that came last"

    def test_one_alone(self) -> None:
        engine = self.hot()
        hot = engine.blocks.num_hits.index(3)
        engine.blocks.evict(hot)
        assert engine.blocks.num_hits[hot] == 0 and sorted(engine.blocks.num_hits)[-2:] == [0, 3]
        engine._undo.rollback()
        assert engine.blocks.num_hits[hot] == 3
        check_invariants(engine)


class TestNames:
    def test_by_name_or_as_an_object(self) -> None:
        assert type(make_eviction("lru")) is Eviction and type(make_eviction("lfu")) is LeastHit
        mine = DeepestFirst()
        assert make_eviction(mine) is mine
        assert toy_engine(2).blocks.eviction.name == "lru" and toy_engine(2, eviction=mine).blocks.eviction is mine

    def test_what_is_neither_is_refused_and_says_what_there_is(self) -> None:
        expected = r"eviction='random': must be one of 'lru', 'lfu', or an Eviction object"
        for make in (make_eviction, lambda name: EngineLimits(num_blocks=4, eviction=name)):
            with pytest.raises(ValueError, match=expected):
                make("random")
            with pytest.raises(TypeError, match="eviction=3: must be a name or an Eviction object, not int"):
                make(3)
            with pytest.raises(TypeError, match="not type"):
                make(LeastHit)
