"""Who is admitted and who gives way, number by number: reserves after a preemption, lookahead, tight pools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.policy import Policy
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained


def add(engine: Engine, prompt: Iterable[int], max_tokens: int, **params: Any) -> Sequence:
    return engine.add_request(prompt, SamplingParams(max_tokens=max_tokens, **params))


def is_right(seq: Sequence) -> bool:
    return seq.completion_token_ids == unconstrained(seq.prompt_token_ids, seq.sampling_params.max_tokens)


def blocked(engine: Engine) -> list[tuple[int, str, int, int]]:
    """(sequence, reason, needed, available) of those who wait, as the next step would say."""
    waiting = engine.plan().waiting
    return list(zip(waiting.seq_id, waiting.reason, waiting.needed, waiting.available, strict=True))


class TestReserve:
    """What must stay free for the others when somebody who was preempted comes back."""

    def make(self, num_preemptions: int) -> Engine:
        """Two run, with 2 and 1 blocks of 4 left to grow; the one that waits needs 2 now and 3 later."""
        engine = toy_engine(12)
        add(engine, range(5), 12)  # at most 16 tokens stored: 4 blocks, 2 held
        add(engine, range(20, 22), 6)  # at most 7: 2 blocks, 1 held
        engine.step()
        late = add(engine, range(40, 46), 15)  # at most 20: 5 blocks, 2 at once
        late.num_preemptions = num_preemptions
        return engine

    @pytest.mark.parametrize(("num_preemptions", "needed"), [(0, 2), (1, 4), (2, 8), (3, 8)])
    def test_how_much(self, num_preemptions: int, needed: int) -> None:
        engine = self.make(num_preemptions)
        outsider = Sequence(99, [], SamplingParams(), request_id="x")
        for available in (needed - 1, needed):  # of the nine that are free the outsider holds the rest
            engine.blocks.release(outsider)
            engine.blocks.grow(outsider, 4 * (9 - available))
            engine._undo.commit()
            assert blocked(engine) == ([(2, "free_blocks", needed, available)] if available < needed else [])
        assert engine.plan().admitted.seq_id == [2]

    def test_hits_that_are_held_count_for_nothing(self) -> None:
        engine = toy_engine(4)
        add(engine, range(9), 3)
        engine.step()
        assert add(engine, range(9), 2).num_tokens == 9 and engine.plan().admitted.num_cached_tokens == [8]
        add(engine, range(50, 55), 2)
        assert blocked(engine) == [(2, "free_blocks", 2, 0)]


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "num_tokens", "left"),
    [(5, 1, 5, 0), (5, 4, 5, 0), (5, 5, 5, 1), (5, 8, 9, 0), (5, 8, 8, 1), (4, 2, 4, 1), (4, 1, 4, 0), (5, 4, 40, 0)],
)
def test_growth_left(num_prompt: int, max_tokens: int, num_tokens: int, left: int) -> None:
    """The last token is sampled but never stored."""
    seq = Sequence(0, list(range(num_prompt)), SamplingParams(max_tokens=max_tokens), request_id="a")
    assert toy_engine(8).blocks.growth_left(seq, num_tokens) == left


class TestLookahead:
    def test_as_many_are_passed_as_the_policy_says_and_no_more(self) -> None:
        class Two(Policy):
            lookahead = 2

        engine = toy_engine(6, policy=Two())
        running = add(engine, range(8), 9)
        engine.step()
        big = [add(engine, range(50 * i, 50 * i + 20), 1) for i in range(1, 4)]
        small = add(engine, [7], 1)
        assert blocked(engine) == [(i, "free_blocks", 5, 4) for i in (1, 2, 3)]
        engine.step()
        assert not small.block_table and [seq.num_passed for seq in big] == [0, 0, 0]
        engine.abort("3")
        engine.step()
        assert small.is_finished and [seq.num_passed for seq in big] == [1, 1, 0]
        run_to_end(engine)
        assert is_right(running) and is_right(small) and all(map(is_right, big[:2]))

    def test_the_defaults(self) -> None:
        assert (Policy.lookahead, Policy.max_passed, Policy.decodes_first) == (8, 16, False)

    def test_one_that_was_passed_often_enough_is_passed_no_more(self) -> None:
        class Twice(Policy):
            max_passed = 2

        engine = toy_engine(6, policy=Twice())
        add(engine, range(8), 12)
        engine.step()
        big = add(engine, range(50, 70), 1)
        small = [add(engine, [i], 1) for i in range(4)]
        for expected in (4, 4):
            engine.step()
            assert sum(seq.is_finished for seq in small) == expected
            assert big.num_passed == 4, "each admission past it counts"
            small += [add(engine, [9], 1)]
            assert [row[0] for row in blocked(engine)] == [1]

    def test_the_one_behind_all_that_are_admitted_is_told_why_it_waits(self) -> None:
        class Strict(Policy):
            lookahead = 0

        engine = toy_engine(8, max_num_batched_tokens=2, policy=Strict())
        for i in range(4):
            add(engine, [i], 1)
        assert engine.plan().seq_id == [0, 1] and blocked(engine) == [(2, "token_budget", 1, 0)]

    def test_a_budget_or_a_place_that_lacks_ends_the_search(self) -> None:
        engine = toy_engine(16, max_num_batched_tokens=4)
        add(engine, range(4), 2)
        add(engine, range(10, 13), 2)
        add(engine, [7], 2)
        assert blocked(engine) == [(1, "token_budget", 1, 0)] and engine.plan().waiting.num_not_examined == 1
        engine = toy_engine(16, max_num_seqs=1)
        add(engine, range(4), 2)
        add(engine, range(10, 13), 2)
        assert blocked(engine) == [(1, "max_num_seqs", 1, 0)]


class TestTightPools:
    @pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
    @pytest.mark.parametrize("block_size", [1, 2, 3])
    @pytest.mark.parametrize("num_blocks", [12, 14])
    def test_steps_that_need_blocks_are_right(self, policy: str, block_size: int, num_blocks: int) -> None:
        engine = toy_engine(num_blocks, block_size, policy=policy, max_num_batched_tokens=5)
        seqs = [add(engine, [i] * (i % 3 + 1), 9) for i in range(6)]
        while engine.has_unfinished:
            engine.step()
            check_invariants(engine)
        assert all(map(is_right, seqs)) and any(seq.num_preemptions for seq in seqs)

    def test_who_needs_no_block_goes_on_while_another_gives_way_for_itself(self) -> None:
        """The pool is full; the newer one needs a block at once and is the victim: it waits, the other runs."""
        engine = toy_engine(3)
        first, second = add(engine, range(6), 4), add(engine, range(20, 24), 4)
        engine.step()
        assert len(first.block_table) == 2 and len(second.block_table) == 1
        output = engine.step()
        assert output.seq_ids == [0] and second.num_preemptions == 1 and first.num_preemptions == 0
        run_to_end(engine)
        assert is_right(first) and is_right(second)

    @pytest.mark.parametrize(("num_first", "num_second"), [(3, 4), (4, 2)])
    def test_those_behind_one_that_gives_way_go_on(self, num_first: int, num_second: int) -> None:
        """For itself or for the first one; the victim is the second since it has a priority of its own."""
        engine = toy_engine(3)
        first = add(engine, range(num_first), 4)
        second = engine.add_request(range(20, 20 + num_second), SamplingParams(max_tokens=4), priority=1)
        engine.step()
        third = add(engine, range(40, 42), 4)
        engine.step()
        assert [len(seq.block_table) for seq in (first, second, third)] == [1, 1, 1]
        planned = engine.plan()
        assert planned.seq_id == [0, 2] and planned.preempted.seq_id == [1]
        assert ("hashed" in planned.blocks.kind) == (num_first == 3), "the token that fills the first one's block"
        run_to_end(engine)
        assert is_right(first) and is_right(second) and is_right(third)

    def test_a_full_pool_is_no_reason_to_look_for_a_victim_while_nobody_needs_a_block(self) -> None:
        engine = toy_engine(2)
        seqs = [add(engine, range(20 * i, 20 * i + 3), 2) for i in range(2)]
        engine.step()
        assert not len(engine.blocks.free)
        planned = engine.plan()
        assert planned.seq_id == [0, 1] and planned.blocks.kind == ["hashed", "hashed"]
        run_to_end(engine)
        assert all(map(is_right, seqs))

    def test_no_more_blocks_than_tokens_need(self) -> None:
        engine = toy_engine(8)
        seq = add(engine, range(3), 8)
        lengths = []
        while engine.has_unfinished:
            engine.step()
            lengths.append((seq.num_computed_tokens, len(seq.block_table)))
        assert lengths[:-1] == [(n, -(-n // 4)) for n in range(3, 10)] and lengths[-1][0] == 10

    def test_full_blocks_are_registered_as_they_fill(self) -> None:
        engine = toy_engine(8)
        seq = add(engine, range(3), 11)
        chains = []
        while engine.has_unfinished:
            engine.step()
            chains.append(len(seq.chain))
        assert chains[:-1] == [n // 4 for n in range(3, 13)]


def test_a_prompt_that_an_undone_plan_had_preempted_goes_on() -> None:
    """mixed: a plan takes blocks from a prompt that has begun; it is undone, and the one that needed them goes away."""
    engine = toy_engine(4, max_num_batched_tokens=6, policy="mixed")
    first, begun = add(engine, range(4), 9), add(engine, range(20, 30), 3)
    engine.step()
    assert first.status == "decode" and begun.status == "prefill" and not len(engine.blocks.free)
    assert engine.plan().preempted.seq_id == [1]
    assert begun.status == "prefill" and engine.abort("0")
    record = engine.step(want_record=True).record
    assert record is not None and record.planned.start == [2] and record.planned.is_prefill == [True]
    run_to_end(engine)
    assert is_right(begun)
