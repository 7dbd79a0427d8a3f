"""Public bug reports about schedulers and step loops, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Policies have more in
tests/test_policy.py, prefix caches in test_prefix_cache_reports.py, aborts and interrupts in
test_interrupt_reports.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import pytest

from nvexplore.engine.policy import Policy
from nvexplore.engine.sequence import Sequence
from tests.fakes import check_invariants, run_to_end, toy_engine
from tests.reports.common import add, finish, is_right
from tests.workloads import make_workload, run_workload

# ---------------------------------------------------------------------------------------------- N01, V17: sizes


@pytest.mark.parametrize(("prompt", "max_tokens", "needed"), [(8, 2, 3), (9, 1, 3), (1, 9, 3), (40, 1, 10)])
def test_n01_request_larger_than_the_pool_is_refused(prompt: int, max_tokens: int, needed: int) -> None:
    """nano-vllm#274: a sequence outgrows the pool, is preempted, and a bare assert ends the engine."""
    engine = toy_engine(2, 4)
    other = add(engine, [5], 4)
    engine.step()
    with pytest.raises(ValueError, match=rf"needs {needed} KV blocks .* num_blocks=2"):
        add(engine, list(range(prompt)), max_tokens)
    assert list(engine.live) == [other.request_id]
    run_to_end(engine)
    assert is_right(other)
    finish(engine, list(range(8)), 1)  # 8 tokens stored: exactly the pool
    finish(engine, list(range(4)), 5)


@pytest.mark.parametrize(
    ("limit", "prompt", "max_tokens", "fits"),
    [
        (16, 15, 1, True),
        (16, 12, 4, True),
        (16, 16, 1, False),
        (16, 12, 8, False),
        (13, 12, 1, True),
        (13, 9, 4, True),
        (13, 13, 1, False),
        (13, 9, 5, False),
    ],
)
def test_v17_the_length_limit_is_exact(limit: int, prompt: int, max_tokens: int, fits: bool) -> None:
    """vllm PR#10730: off by one at max_model_len. The policy here: refuse at submission."""
    engine = toy_engine(4, 4, max_model_len=limit)
    if not fits:
        with pytest.raises(ValueError, match=f"is {prompt + max_tokens}: must be at most max_model_len={limit}"):
            add(engine, list(range(prompt)), max_tokens)
        assert not engine.has_unfinished
        return
    seq = add(engine, list(range(prompt)), max_tokens)
    while engine.has_unfinished:
        planned = engine.plan()
        assert max(planned.context_len) < limit  # the last token is sampled and never stored
        assert len(set(planned.spans.block_id) | set(seq.block_table)) <= 4
        engine.step()
    assert is_right(seq)


# ---------------------------------------------------------------------------------------- N05, N11, V04: blocks


@pytest.mark.parametrize("num_blocks", [4, 5, 64])
def test_n05_a_repeated_prefill_yields_exactly_one_token(num_blocks: int) -> None:
    """nano-vllm PR#217: the token sampled by the prefill after a preemption was thrown away."""
    engine = toy_engine(num_blocks, 4)
    seqs = [add(engine, prompt, 6) for prompt in ([*range(1, 8)], [*range(11, 18)])]
    prefills = 0
    while engine.has_unfinished:
        output = engine.step(want_record=True)
        assert output.record is not None
        planned = output.record.planned
        prefills += sum(planned.is_prefill)
        assert all(planned.samples)  # no chunks here: each prefill is a whole one
        assert output.seq_ids == planned.seq_id and len(output.token_ids) == len(set(output.seq_ids))
    assert all(map(is_right, seqs))
    again = sum(seq.num_preemptions for seq in seqs)
    assert again == (0 if num_blocks == 64 else 1) and prefills == 2 + again


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_n11_a_new_block_exactly_when_the_tokens_exceed_the_table(block_size: int) -> None:
    """nano-vllm#30 and others, MinivLLM#75: the modulo that decides on a new block is off by one, or blind at 1."""
    engine = toy_engine(-(-14 // block_size), block_size)
    seq = add(engine, [5], 14)
    engine.step()
    for stored in range(1, 14):
        assert len(seq.block_table) == -(-stored // block_size)
        engine.step()
    assert is_right(seq) and seq.num_preemptions == 0


@pytest.mark.parametrize(("block_size", "older", "younger"), [(4, (4, 10), (4, 9)), (1, (1, 4), (1, 3))])
def test_n11_the_last_free_block_is_taken_by_another(
    block_size: int, older: tuple[int, int], younger: tuple[int, int]
) -> None:
    """The same with the pool exhausted: the younger one gives way, the older one goes on."""
    engine = toy_engine(4, block_size)
    first, second = add(engine, [1] * older[0], older[1]), add(engine, [2] * younger[0], younger[1])
    run_to_end(engine)
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    assert is_right(first) and is_right(second)


@pytest.mark.parametrize("seed", range(200))
def test_v04_a_small_pool_changes_no_output(seed: int) -> None:
    """vllm#16832: output after a preemption is cut short or has doubled tokens."""
    work = make_workload(seed + 1_000_000)
    assert run_workload(work)["steps"] > 0  # and every output was compared
    assert not work.engine.live


# ------------------------------------------------------------------------------------------ N36: the step's type


def test_n36_step_has_one_return_type_and_idle_ends() -> None:
    """MinivLLM PR#71: step() returns another number of values when nothing is scheduled."""
    engine = toy_engine(4, 4)
    idle = engine.step(want_record=True)
    assert (idle.seq_ids, idle.token_ids, idle.finished) == ([], [], [])
    assert idle.record is not None and idle.record.is_empty
    add(engine, [1], 1)
    busy = engine.step(want_record=True)
    assert type(busy) is type(idle) and busy.record is not None and not busy.record.is_empty
    assert engine.step().seq_ids == [] and engine.next_step == 1


def test_n36_a_step_that_can_schedule_nobody_is_an_idle_one() -> None:
    """The sibling: a request waits and nothing may run, here because a policy of one's own lets nobody in."""

    class Nobody(Policy):
        is_open = False

        def admission_order(self, waiting: SequenceOf[Sequence]) -> Iterable[Sequence]:
            return waiting if self.is_open else ()

    policy = Nobody()
    engine = toy_engine(4, 4, policy=policy)
    seq = add(engine, [1, 2], 2)
    for _ in range(3):
        output = engine.step()
        assert type(output) is type(toy_engine(4).step())
        assert (output.seq_ids, output.token_ids, output.finished) == ([], [], [])
        assert engine.has_unfinished
    policy.is_open = True
    assert run_to_end(engine) == 2 and is_right(seq)


# -------------------------------------------------------------------------- N26, V03, V34, V35: who runs, who waits


@pytest.mark.parametrize("length", [3, 40])
def test_n26_with_the_mixed_policy_whoever_runs_gets_a_token_in_every_step(length: int) -> None:
    """nano-vllm#73, PR#276, the sibling: two of them, and prompts of more than the budget arrive at each step."""
    engine = toy_engine(800, max_num_batched_tokens=16, policy="mixed", max_num_seqs=64)
    patient = [add(engine, [1, 2, 3], 50), add(engine, [4, 5], 50)]
    engine.step()
    for made in range(1, 50):
        assert [seq.num_completion_tokens for seq in patient] == [made, made]
        add(engine, list(range(made, made + length)), 1)
        engine.step()
    assert all(map(is_right, patient))


def test_v03_preemptions_are_few_and_told() -> None:
    """vllm#25538, the sibling: both requests finish, and the records tell of each preemption and what it cost."""
    told, engine = [], toy_engine(6, max_num_batched_tokens=4)
    seqs = [add(engine, [*range(12)], 8), add(engine, [*range(20, 28)], 8)]
    recomputed = 0
    while engine.has_unfinished:
        record = engine.step(want_record=True).record
        assert record is not None
        told += record.planned.preempted.seq_id
        recomputed += sum(record.planned.preempted.num_lost)
    assert all(map(is_right, seqs))
    assert [told.count(seq.seq_id) for seq in seqs] == [seq.num_preemptions for seq in seqs]
    assert 1 <= len(told) <= 3 and 0 < recomputed <= 3 * 20


@pytest.mark.parametrize("lookahead", [0, 1, 8])
def test_v34_big_and_small_both_start_whatever_the_policy(lookahead: int) -> None:
    """vllm#31731, the sibling, in a pool of 10: who is passed over is a choice, and nobody waits for ever."""

    class Chosen(Policy):
        pass

    Chosen.lookahead = lookahead
    engine = toy_engine(10, policy=Chosen())
    running = add(engine, [*range(15)], 6)  # 5 blocks in the end
    engine.step()
    big, small = add(engine, [*range(50, 80)], 3), add(engine, [90], 2)  # 8 blocks, 1 block
    engine.step()
    assert (len(small.block_table), len(big.block_table)) == (1 if lookahead else 0, 0)
    run_to_end(engine)
    assert all(map(is_right, (running, big, small)))
    check_invariants(engine)


@pytest.mark.parametrize(("budget", "lengths"), [(8, (20, 20, 3)), (3, (7, 9, 11, 1)), (1, (2, 3))])
@pytest.mark.parametrize("caching", [False, True])
def test_v35_many_prompts_in_chunks(budget: int, lengths: tuple[int, ...], caching: bool) -> None:
    """sglang#2255, the sibling: other budgets, and the switch that made the difference; one is half done at a time."""
    engine = toy_engine(32, enable_prefix_caching=caching, max_num_batched_tokens=budget)
    seqs = [add(engine, [*range(i * 20, i * 20 + n)], 4) for i, n in enumerate(lengths)]
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, sum(0 < seq.num_computed_tokens < seq.num_prompt_tokens for seq in seqs))
    assert all(map(is_right, seqs)) and most == 1
