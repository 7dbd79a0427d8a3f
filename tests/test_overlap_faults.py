"""Overlapped steps that fail: in taking off, in landing, while they are given up; by an error or by Ctrl-C."""

from __future__ import annotations

import pytest

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.subscription import SnapshotNeeded
from nvexplore.sampling_params import SamplingParams
from tests.engine_state import deep_state
from tests.fakes import check_invariants, unconstrained
from tests.faults import Injected
from tests.follow import Follower, add, fallible, finish, in_the_air, numbers_of

PROMPT = [3, 1, 4, 1, 5]
SAID = unconstrained(PROMPT, 12)
ERRORS = (KeyboardInterrupt, Injected)
STAGES = ("begin", "write", "end")


class TestLaunch:
    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("stage", STAGES)
    @pytest.mark.parametrize("num_before", [0, 1, 3])
    def test_a_step_that_does_not_take_off_has_not_happened(
        self, stage: str, error: type[BaseException], num_before: int
    ) -> None:
        """With nothing in the air, or with a step there which lands later."""
        engine, follower, cut = fallible(max_num_batched_tokens=6)
        seqs = [add(engine, PROMPT, 6), add(engine, [*PROMPT, 9, 9], 6)]
        for _ in range(num_before):
            engine.advance()
        before, air = deep_state(engine), in_the_air(engine)
        for _ in range(2):
            cut.during(engine.advance, "launch", stage, error)
            assert deep_state(engine) == before and in_the_air(engine) == air
        finish(engine, follower, *seqs)

    @pytest.mark.parametrize("go_on", ["advance", "snapshot", "step"])
    def test_what_it_may_have_overwritten_is_forgotten_and_told_in_the_next_record(self, go_on: str) -> None:
        """The block that it took from the cache; the step in the air had not taken it, and knows nothing of it."""
        engine, follower, cut = fallible(4, 2)
        finish(engine, follower, add(engine, [1, 2, 3], 1))
        seq = add(engine, [5, 6, 7], 6)
        while len(engine.blocks.free) > 1:
            engine.advance()
        (block,) = engine.blocks.free
        (number,) = in_the_air(engine)
        assert engine.blocks.hash_of(block) is not None
        engine.advance()
        number += 1
        cut.during(engine.advance, "launch", "begin", Injected)
        assert engine.blocks.hash_of(block) is None and in_the_air(engine) == [number] and not seq.num_preemptions
        getattr(engine, go_on)()
        finish(engine, follower, seq)
        landed, after = follower.records[number : number + 2]
        assert landed.step == number and after.before.blocks.kind == ["evicted"] and after.before.blocks.seq_id == [-1]
        assert after.planned.is_ahead == (go_on == "advance")
        assert landed.committed.blocks.kind == ["hashed"] and after.before.blocks.number == [landed.event]


class TestLanding:
    def test_ctrl_c_leaves_it_in_the_air_however_often_it_comes(self) -> None:
        engine, follower, cut = fallible()
        seqs = [add(engine, PROMPT, 6, stop_token_ids=[SAID[2]]), add(engine, [8], 6)]
        engine.advance()
        for stage in (*STAGES, "begin", "end"):  # what is computed is not written again
            cut.during(engine.advance, "wait", stage, KeyboardInterrupt)
            assert in_the_air(engine) == [1, 2] and [seq.num_completion_tokens for seq in seqs] == [1, 1]
        cut.during(engine.snapshot, "wait", "begin", KeyboardInterrupt)
        assert in_the_air(engine) == [1, 2]
        engine.advance()
        assert in_the_air(engine) == [2] and [seq.num_completion_tokens for seq in seqs] == [2, 2]
        finish(engine, follower, *seqs)
        assert [record.planned.is_ahead for record in follower.records] == [False, *[True] * 5]

    def test_what_landed_before_an_interrupt_stays(self) -> None:
        engine, follower, cut = fallible()
        seq = add(engine, PROMPT, 6)
        engine.advance()
        cut.during(engine.advance, "wait", "end", KeyboardInterrupt)
        cut.during(engine.snapshot, "wait", "end", KeyboardInterrupt, nth=2)
        assert seq.completion_token_ids == SAID[:2] and in_the_air(engine) == [2]
        assert len(follower.records) == 1, "it is told with the next call"
        engine.snapshot()
        assert seq.completion_token_ids == SAID[:3] and in_the_air(engine) == [] and len(follower.records) == 3
        finish(engine, follower, seq)

    @pytest.mark.parametrize("stage", STAGES)
    def test_an_error_gives_up_all_that_is_in_the_air(self, stage: str) -> None:
        engine, follower, cut = fallible()
        seqs = [add(engine, PROMPT, 6), add(engine, [8], 6)]
        engine.advance()
        engine.advance()
        cut.during(engine.advance, "wait", stage, Injected)
        assert in_the_air(engine) == [] and engine.next_step == 2 and len(follower.records) == 2
        assert [seq.status for seq in seqs] == ["waiting"] * 2 and [seq.num_preemptions for seq in seqs] == [1, 1]
        assert [seq.seq_id for seq in engine.scheduler.queues.waiting] == [0, 1], "the oldest comes first"
        assert [seq.num_completion_tokens for seq in seqs] == [2, 2]
        check_invariants(engine)
        assert engine.snapshot().hash == [None] * 32, "nobody knows what was written"
        told = follower.items[-1]
        assert isinstance(told, Snapshot) and told.step == 2
        follower.compare(engine)
        engine.advance()
        assert [record.step for record in follower.records] == [0, 1, 2]
        again = follower.records[2]
        assert not again.planned.is_ahead and again.planned.start == [0, 0] and again.planned.count == [7, 3]
        # The events of the two that were in the air, their plans, are not numbered again, nor is one that never was.
        assert numbers_of(again)[0] == follower.records[1].event + 3
        assert told.event == again.before.preempted.number[-1] + 1
        assert again.before.preempted.seq_id == [1, 0] and again.before.preempted.cause == [-1, -1]
        finish(engine, follower, *seqs)

    def test_who_had_ended_already_leaves(self) -> None:
        engine, follower, cut = fallible()
        params = SamplingParams(max_tokens=6, n=2, stop_token_ids=[SAID[2]])
        first = engine.add_request(PROMPT, params, request_id="a")
        other = add(engine, [8], 6)
        for _ in range(3):
            engine.advance()
        assert first.stop_reason == SAID[2] and not first.is_finished
        cut.during(engine.advance, "wait", "begin", Injected)
        assert first.finish_reason == "stop" and first.completion_token_ids == SAID[:3]
        assert sorted(seq.request_id for seq in engine.live.values()) == ["2", "a#1"]
        finish(engine, follower, *first.samples, other)

    def test_an_error_in_the_commit(self) -> None:
        fails = [False, False, True]

        def match(seq: Sequence) -> str | None:
            if fails and fails.pop(0):
                raise ZeroDivisionError
            return None

        engine, follower, _ = fallible(stop_matcher=match)
        seqs = [add(engine, [8], 6), add(engine, PROMPT, 6, stop="x")]
        engine.advance()
        engine.advance()
        with pytest.raises(ZeroDivisionError):
            engine.advance()
        assert [seq.num_completion_tokens for seq in seqs] == [2, 2] and engine.next_step == 2
        finish(engine, follower, *seqs)

    def test_a_runner_that_returns_too_little(self) -> None:
        engine, follower, _ = fallible()
        seq = add(engine, PROMPT, 6)
        engine.advance()
        engine._steps.flights[0].launched.wait = list  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="returned 0 token ids for 1 sampling rows"):
            engine.advance()
        assert seq.num_preemptions == 1
        finish(engine, follower, seq)

    def test_whoever_calls_gets_the_error_and_may_call_again(self) -> None:
        engine, follower, cut = fallible()
        seq = add(engine, PROMPT, 6)
        engine.advance()
        cut.during(lambda: engine.add_request([9, 9]), "wait", "end", Injected)
        assert list(engine.live) == ["0"] and engine.next_step == 1
        finish(engine, follower, seq, add(engine, [9, 9], 3))

    def test_nobody_is_told_where_nobody_watches(self) -> None:
        engine, _, cut = fallible()
        engine._hub.subscriptions.clear()
        seq = add(engine, PROMPT, 6)
        engine.advance()
        cut.during(engine.advance, "wait", "end", Injected)
        assert not engine._hub.outbox
        follower = Follower()
        engine.subscribe(follower)
        finish(engine, follower)
        assert seq.completion_token_ids == SAID[:6]

    def test_an_error_while_a_watcher_waits_for_its_snapshot_is_not_its_own(self) -> None:
        engine, follower, cut = fallible()

        def watch(item: Snapshot | StepRecord) -> None:
            if isinstance(item, StepRecord) and item.step == 1:
                raise SnapshotNeeded
            follower(item)

        engine._hub.subscriptions.clear()
        subscription = engine.subscribe(watch)
        seq = add(engine, PROMPT, 6)
        engine.advance()
        cut.during(engine.advance, "wait", "begin", Injected, nth=2)
        assert subscription.is_active and seq.num_completion_tokens == 2 and seq.num_preemptions == 1
        del follower.items[:]
        engine.snapshot()
        assert [(type(item).__name__, item.step) for item in follower.items] == [("Snapshot", 2)] * 2
        finish(engine, follower, seq)
