"""Policies: who runs first, who is passed over, who gives way; and that none of it changes an output."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.policy import Mixed, Policy, make_policy
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained


def add(engine: Engine, prompt: Iterable[int], max_tokens: int, priority: int = 0) -> Sequence:
    return engine.add_request(prompt, SamplingParams(max_tokens=max_tokens), priority=priority)


def is_right(seq: Sequence) -> bool:
    return seq.completion_token_ids == unconstrained(seq.prompt_token_ids, seq.sampling_params.max_tokens)


def test_policies_by_name() -> None:
    assert type(make_policy("prefill_first")) is Policy and type(make_policy("mixed")) is Mixed
    mine = Mixed()
    assert make_policy(mine) is mine
    with pytest.raises(ValueError, match="policy='fair': must be one of 'prefill_first', 'mixed'"):
        make_policy("fair")
    with pytest.raises(TypeError, match="not int"):
        make_policy(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "most"), [("mixed", 60), ("prefill_first", 10_000)])
def test_n26_running_requests_do_not_starve(policy: str, most: int) -> None:
    """nano-vllm#73: prefill always wins, so running requests get nothing while new prompts keep arriving."""
    engine = toy_engine(64, max_num_batched_tokens=16, policy=policy)
    patient, steps = add(engine, [1, 2, 3], 50), 0
    engine.step()
    while not patient.is_finished:
        if steps < 60:
            add(engine, [steps, 7, 9], 1)
        engine.step()
        steps += 1
    assert is_right(patient)
    assert steps <= most and (policy == "mixed" or steps > 60)


def test_mixed_puts_decode_rows_and_chunks_in_one_batch() -> None:
    engine = toy_engine(64, max_num_batched_tokens=6, policy="mixed")
    add(engine, [1], 8)
    engine.step()
    add(engine, range(20, 32), 2)
    record = engine.step(want_record=True).record
    assert record is not None
    planned = record.planned
    assert (planned.is_prefill, planned.count, planned.samples) == ([False, True], [1, 5], [True, False])


def test_v03_recompute_is_bounded() -> None:
    """vllm#25538: a long request is resumed chunk by chunk and preempted again each time."""
    steps = {}
    for policy in ("prefill_first", "mixed"):
        for num_blocks in (6, 64):
            engine = toy_engine(num_blocks, max_num_batched_tokens=4, policy=policy)
            seqs = [add(engine, range(12), 8), add(engine, range(20, 28), 8)]
            steps[num_blocks] = run_to_end(engine)
            assert all(map(is_right, seqs))
        assert steps[6] <= 3 * steps[64]


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_v03_no_request_is_preempted_more_than_three_times(policy: str) -> None:
    """The sibling: many at once, in pools that hold about two of them."""
    for num_blocks in range(8, 16):
        engine = toy_engine(num_blocks, max_num_batched_tokens=5, policy=policy)
        seqs = [add(engine, range(i, i + 9), 20) for i in range(0, 90, 9)]
        run_to_end(engine)
        check_invariants(engine)
        assert all(map(is_right, seqs))
        assert max(seq.num_preemptions for seq in seqs) <= 3


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_v34_a_big_request_lets_small_ones_pass_but_not_for_ever(policy: str) -> None:
    """vllm#31731: one big waiting request stops small ones that would fit."""
    engine = toy_engine(6, policy=policy)
    running = add(engine, range(8), 5)  # 3 blocks
    engine.step()
    big, small = add(engine, range(50, 68), 1), add(engine, [90], 2)
    engine.step()
    assert small.block_table and not big.block_table and big.num_passed == 1
    for i in range(200):
        add(engine, [i], 2)
    steps = 0
    while not big.is_finished:
        engine.step()
        steps += 1
    assert 1 < big.num_passed <= Policy.max_passed and steps < 60
    run_to_end(engine)
    assert is_right(running) and is_right(big) and is_right(small)


def test_v34_lookahead_zero_is_strict() -> None:
    """The sibling: first come, first served, for those who want it."""

    class Strict(Policy):
        lookahead = 0

    engine = toy_engine(6, policy=Strict())
    add(engine, range(8), 5)
    engine.step()
    big, small = add(engine, range(50, 68), 1), add(engine, [90], 2)
    engine.step()
    assert not small.block_table
    run_to_end(engine)
    assert is_right(big) and is_right(small)


def test_priorities_order_admission() -> None:
    engine = toy_engine(32, max_num_seqs=1)
    seqs = [add(engine, [i], 2, priority) for i, priority in enumerate((0, 5, -1, 0, -1))]
    finished = []
    while engine.has_unfinished:
        finished += engine.step().finished
    assert [seqs.index(seq) for seq in finished] == [2, 4, 0, 3, 1]
    with pytest.raises(TypeError, match=r"priority=1\.5"):
        add(engine, [1], 1, 1.5)  # type: ignore[arg-type]


def test_the_least_urgent_gives_way_and_comes_back_first_of_its_kind() -> None:
    engine = toy_engine(4, policy="mixed")
    lax, urgent = add(engine, [1] * 7, 6, priority=3), add(engine, [2] * 7, 6)
    other = add(engine, [3] * 7, 6, priority=3)
    run_to_end(engine)
    assert lax.num_preemptions > 0 and urgent.num_preemptions == 0
    assert all(map(is_right, (lax, urgent, other)))


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_one_that_was_preempted_is_not_overtaken_for_ever_by_those_that_come_later(policy: str) -> None:
    """An urgent request grows: it takes the blocks of a big one, then those of small ones that had passed that."""
    engine = toy_engine(7, policy=policy)
    urgent, big = add(engine, [1] * 4, 25, priority=-1), add(engine, range(20, 35), 12)
    small: list[Sequence] = []
    while urgent.num_tokens < 24:
        if big.num_preemptions and len(small) < 3:
            small.append(add(engine, [50 + len(small)], 12))
        engine.step()
    assert [seq.num_preemptions > 0 for seq in (urgent, big, *small)] == [False, True, True, True, True]
    waiting = [seq for seq in engine.scheduler.queues.waiting if seq.num_preemptions]
    assert waiting == [big, *small] and big.num_passed >= 3, "by arrival"
    finished = []
    while engine.has_unfinished:
        finished += engine.step().finished
        check_invariants(engine)
    assert finished[:2] == [urgent, big] and all(map(is_right, finished))


class ShortestFirst(Policy):
    """A researcher's policy."""

    name = "shortest_first"

    def admission_order(self, waiting: SequenceOf[Sequence]) -> Iterable[Sequence]:
        return sorted(waiting, key=lambda seq: seq.num_tokens)

    def victim(self, candidates: SequenceOf[Sequence], needing: Sequence) -> Sequence:
        return max(candidates, key=lambda seq: seq.num_tokens)


def test_a_policy_of_ones_own() -> None:
    engine = toy_engine(16, max_num_seqs=1, policy=ShortestFirst())
    seqs = [add(engine, range(n), 2) for n in (9, 2, 5)]
    finished = []
    while engine.has_unfinished:
        finished += engine.step().finished
    assert [seqs.index(seq) for seq in finished] == [1, 2, 0] and all(map(is_right, seqs))


def test_a_policy_that_names_no_candidate_is_an_error_and_changes_nothing() -> None:
    class Confused(Policy):
        def victim(self, candidates: SequenceOf[Sequence], needing: Sequence) -> Sequence:
            return outsider

    engine = toy_engine(4, policy=Confused())
    seqs = [add(engine, [i] * 7, 6) for i in (1, 2)]
    outsider = Sequence(99, [1], SamplingParams(), request_id="outsider")
    with pytest.raises(RuntimeError, match="which is no candidate"):
        run_to_end(engine)
    check_invariants(engine)
    engine.scheduler.policy = Policy()
    run_to_end(engine)
    assert all(map(is_right, seqs))


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_v35_several_half_prefilled_without_caching(policy: str) -> None:
    """sglang#2255: more than one partly prefilled request breaks an assertion when caching is off."""
    engine = toy_engine(32, enable_prefix_caching=False, max_num_batched_tokens=8, policy=policy)
    seqs = [add(engine, range(i * 20, i * 20 + n), 4) for i, n in enumerate((20, 20, 3))]
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, sum(s.status == "prefill" for s in seqs))
    assert all(map(is_right, seqs))
    assert most == 1  # chunks are given first come, first served: one request at a time is half done


def test_a_policy_that_admits_who_does_not_wait_is_an_error_and_changes_nothing() -> None:
    class Confused(Policy):
        def admission_order(self, waiting: SequenceOf[Sequence]) -> Iterable[Sequence]:
            return [running, *waiting]

    engine = toy_engine(8, policy=Confused())
    engine.scheduler.policy = Policy()
    running = add(engine, [1] * 5, 4)
    engine.step()
    late = add(engine, [2] * 5, 4)
    before = engine.snapshot()
    engine.scheduler.policy = Confused()
    with pytest.raises(RuntimeError, match=r"'prefill_first' named Sequence\(0, .* for admission, which does not wait"):
        engine.step()
    assert engine.snapshot().same_state(before)
    engine.scheduler.policy = Policy()
    run_to_end(engine)
    assert is_right(running) and is_right(late)


def test_a_policy_may_change_its_mind_and_leave_nothing_to_a_prompt_that_has_begun() -> None:
    """Two sequences decode, a long prompt runs first; then decodes come first, and they fill the budget."""
    policy = Policy()
    engine = toy_engine(16, max_num_batched_tokens=2, policy=policy)
    seqs = [add(engine, [i], 3) for i in range(2)]
    engine.step()
    begun = add(engine, range(20, 25), 2)
    engine.step()
    assert begun.status == "prefill" and begun.num_computed_tokens == 2
    policy.decodes_first = True
    record = engine.step(want_record=True).record
    assert record is not None and record.planned.seq_id == [0, 1] and begun.num_computed_tokens == 2
    run_to_end(engine)
    assert is_right(begun) and all(map(is_right, seqs))


def test_more_decodes_than_the_budget_while_blocks_are_short() -> None:
    """The budget bounds a step in which somebody has to give way as well; nobody beyond it is preempted for nothing."""
    engine = toy_engine(3, max_num_batched_tokens=2)
    seqs = [add(engine, [i] * 3, 4) for i in range(3)]
    counts = []
    while engine.has_unfinished:
        counts.append(len(engine.step().seq_ids))
        check_invariants(engine)
    assert max(counts) == 2 and all(map(is_right, seqs))
