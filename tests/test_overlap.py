"""Overlapped steps: one is brought to its end while the next is computed, and nothing comes out differently."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nvexplore.engine import steps
from nvexplore.engine.events import StepRecord
from nvexplore.engine.policy import Policy
from nvexplore.engine.scheduler import NEEDS_HOST, NO_BLOCKS_AHEAD
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.engine_state import deep_state
from tests.fakes import toy_engine, unconstrained
from tests.follow import Follower, add, advance_to_end, finish, in_the_air, overlapped
from tests.toy_device import ToyDevice

PROMPT = [3, 1, 4, 1, 5]
SAID = unconstrained(PROMPT, 12)


def test_each_call_brings_one_step_to_its_end_and_leaves_the_next_in_the_air() -> None:
    engine, follower = overlapped()
    seq = add(engine, PROMPT, 4)
    seen = []
    while engine.advance():
        seen.append((seq.completion_token_ids, in_the_air(engine), engine.next_step, len(follower.records)))
    assert seen == [(SAID[:1], [1], 2, 1), (SAID[:2], [2], 3, 2), (SAID[:3], [3], 4, 3), (SAID[:4], [], 4, 4)]
    assert seq.finish_reason == "length" and not engine.advance() and engine.next_step == 4
    assert isinstance(engine.runner, ToyDevice)
    assert (engine.runner.num_ahead, engine.runner.num_fed) == (3, 3)
    finish(engine, follower, seq)


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("budget", [1, 3, 64])
def test_tokens_are_those_of_single_steps_and_records_fold(policy: str, block_size: int, budget: int) -> None:
    """Blocks from 1 token on, chunks, shared prefixes, samples, a pool so small that somebody must give way."""
    engine, follower = overlapped(
        24 // block_size, block_size, policy=policy, max_num_batched_tokens=budget, max_num_seqs=3
    )
    seqs: list[Sequence] = []
    for prompt, params in [
        ([1, 2, 3, 4, 5, 6, 7, 9], SamplingParams(max_tokens=9)),
        ([1, 2, 3, 4, 5, 6, 7, 8, 8], SamplingParams(max_tokens=6, n=2)),
        ([5, 5], SamplingParams(max_tokens=12, stop_token_ids=[unconstrained([5, 5], 5)[-1]])),
        ([1, 2, 3, 4], SamplingParams(max_tokens=9, cache_salt="a")),
    ]:
        seqs += engine.add_request(prompt, params).samples
    finish(engine, follower, *seqs)
    assert sum(record.planned.is_ahead for record in follower.records) > len(follower.records) // 3
    assert budget == 1 or sum(seq.num_preemptions for seq in seqs) > 0


def test_a_prompt_runs_in_chunks_ahead() -> None:
    engine, follower = overlapped(max_num_batched_tokens=4)
    seq = add(engine, list(range(10)), 2)
    finish(engine, follower, seq)
    rows = [(p.start, p.count, p.is_prefill, p.samples, p.is_ahead) for p in (r.planned for r in follower.records)]
    assert rows == [
        ([0], [4], [True], [False], False),
        ([4], [4], [True], [False], True),
        ([8], [2], [True], [True], True),
        ([10], [1], [False], [True], True),
    ]


def test_the_times_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at around the plan, once in the next plan, which finds nothing to do, and around the commit."""
    ticks = iter([100, 103, 105, 110, 150])
    engine, follower = overlapped()
    seq = add(engine, PROMPT, 1)
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks)))
    finish(engine, follower, seq)
    committed = follower.records[0].committed
    assert (committed.plan_ns, committed.run_ns, committed.commit_ns) == (3, 7, 40)


def test_the_devices_own_clock() -> None:
    engine, follower = overlapped()
    finish(engine, follower, add(engine, PROMPT, 3), add(engine, [7], 2))
    measured = [record.committed.device_ns for record in follower.records]
    assert measured == [None, None, 1000], "the toy device has a clock for odd batches"
    times = [record.time for record in follower.records]
    assert times == sorted(times)


class TestNotAhead:
    """What is not planned before the step in the air has landed, and that its record says why."""

    def reasons(self, follower: Follower) -> list[tuple[bool, str | None]]:
        return [(record.planned.is_ahead, record.planned.sync_reason) for record in follower.records]

    def test_the_first_step_has_none_and_those_planned_ahead_neither(self) -> None:
        engine, follower = overlapped()
        finish(engine, follower, add(engine, PROMPT, 3))
        finish(engine, follower, add(engine, PROMPT, 2))
        assert self.reasons(follower) == [(False, None), (True, None), (True, None), (False, None), (True, None)]

    def test_somebody_would_have_to_give_way(self) -> None:
        engine, follower = overlapped(3, 2)
        seqs = [add(engine, [1, 2], 4), add(engine, [3, 4], 4)]
        engine.advance()
        assert in_the_air(engine) == [] and [seq.num_preemptions for seq in seqs] == [0, 0]
        assert self.reasons(follower) == [(False, None)]
        engine.advance()
        assert self.reasons(follower)[1] == (False, NO_BLOCKS_AHEAD) and seqs[1].num_preemptions == 1
        finish(engine, follower, *seqs)

    def test_a_pool_that_is_just_large_enough(self) -> None:
        engine, follower = overlapped(4, 2)
        finish(engine, follower, add(engine, [1, 2], 3), add(engine, [3, 4], 3))
        assert self.reasons(follower) == [(False, None), (True, None), (True, None)]

    @pytest.mark.parametrize("params", [{"logprobs": 1}, {"prompt_logprobs": 1}, {"presence_penalty": 0.5}])
    def test_the_host_is_needed(self, params: dict[str, Any]) -> None:
        """By the one that comes second and ends first; as long as it has rows, no step overlaps with another."""
        engine, follower = overlapped(policy="mixed", max_num_batched_tokens=5)
        seqs = [add(engine, PROMPT, 6), add(engine, [7, 7], 2, **params)]
        finish(engine, follower, *seqs)
        alone, both, again = (False, None), (False, NEEDS_HOST), (True, None)
        expected = [alone, both, both, alone, again, again]
        assert self.reasons(follower) == expected

    def test_an_engine_that_does_not_overlap_gives_no_reason(self) -> None:
        engine, follower = toy_engine(16), Follower()
        engine.subscribe(follower)
        add(engine, PROMPT, 2, logprobs=1)
        advance_to_end(engine)
        assert self.reasons(follower) == [(False, None)] * 2

    def test_the_reason_is_that_of_the_next_step_whoever_makes_it(self) -> None:
        engine, follower = overlapped(3, 2)
        seqs = [add(engine, [1, 2], 4), add(engine, [3, 4], 4)]
        engine.advance()
        engine.step()
        engine.step()
        assert self.reasons(follower) == [(False, None), (False, NO_BLOCKS_AHEAD), (False, None)]
        finish(engine, follower, *seqs)
        assert self.reasons(follower)[3][1] is None

    def test_a_policy_that_admits_nobody(self) -> None:
        class Nobody(Policy):
            is_open = True

            def admission_order(self, waiting: Any) -> Any:
                return waiting if self.is_open else []

        policy = Nobody()
        engine, follower = overlapped(policy=policy)
        first = add(engine, PROMPT, 5)
        engine.advance()
        policy.is_open = False
        second = add(engine, PROMPT, 3)
        engine.advance()
        assert in_the_air(engine) == [3]
        while not first.is_finished:
            assert engine.advance()
        number = engine.next_step
        assert not engine.advance() and not engine.advance() and engine.next_step == number
        assert engine.has_unfinished and not second.num_completion_tokens
        policy.is_open = True
        finish(engine, follower, first, second)


def without_times(record: StepRecord) -> Any:
    fields = msgspec.to_builtins(record)
    del fields["time"]
    for name in ("plan_ns", "run_ns", "commit_ns"):
        del fields["committed"][name]
    del fields["before"]["added"]["arrival"]
    return fields


def test_without_overlap_it_is_a_step() -> None:
    engines = [toy_engine(9, 2, max_num_batched_tokens=5) for _ in range(2)]
    followers = [Follower(), Follower()]
    for engine, follower in zip(engines, followers, strict=True):
        engine.subscribe(follower)
        add(engine, PROMPT, 4)
        add(engine, [2, 2, 2], 5, n=2, logprobs=1)
    calls: list[Callable[[], object]] = [engines[0].step, engines[1].advance]
    while engines[0].has_unfinished:
        results = [call() for call in calls]
        assert results[1] is True and not in_the_air(engines[1])
    assert engines[1].advance() is False and not engines[1].has_unfinished
    assert [without_times(r) for r in followers[0].records] == [without_times(r) for r in followers[1].records]
    states = [deep_state(engine) for engine in engines]
    assert states[0] == states[1]


@pytest.mark.parametrize("overlap", [False, True])
def test_an_idle_engine(overlap: bool) -> None:
    engine = toy_engine(4, make_runner=ToyDevice, overlap=overlap)
    assert engine.advance() is False and engine.next_step == 0
    add(engine, [1], 2)
    assert engine.abort("0")
    assert engine.advance() is True and engine.next_step == 1, "a step that has something to tell gets a number"
    assert engine.advance() is False and engine.next_step == 1
