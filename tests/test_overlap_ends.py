"""Overlapped steps: who ends while the next step has a row for it, and what is called while a step is in the air."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.subscription import SnapshotNeeded
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, free_run, next_id, unconstrained
from tests.follow import Follower, add, finish, in_the_air, overlapped

PROMPT = [3, 1, 4, 1, 5]
SAID = unconstrained(PROMPT, 12)
BROKEN_EVERY = 20


class TestLateRows:
    """Who has ended finishes when the row lands that it has in the next step; the token of that row is dropped."""

    def test_a_stop_token(self) -> None:
        engine, follower = overlapped()
        seqs = [add(engine, PROMPT, 12, stop_token_ids=[SAID[2]]), add(engine, [7], 12)]
        for _ in range(3):
            engine.advance()
        seq = seqs[0]
        assert seq.completion_token_ids == SAID[:3] and (seq.stop_reason, seq.finish_reason) == (SAID[2], None)
        assert "0" in engine.live and in_the_air(engine) == [3]
        engine.advance()
        assert seq.completion_token_ids == SAID[:3] and seq.finish_reason == "stop" and "0" not in engine.live
        assert [record.planned.seq_id for record in follower.records] == [[0, 1]] * 4
        assert [record.committed.seq_id for record in follower.records] == [[0, 1]] * 3 + [[1]]
        assert [record.committed.finished_seq_id for record in follower.records] == [[], [], [], [0]]
        finish(engine, follower, *seqs)
        assert follower.records[4].planned.seq_id == [1]

    def test_one_that_all_others_share(self) -> None:
        """Samples that end at different times; the id is free when the last has left."""
        eos = frozenset({SAID[1], *free_run(PROMPT, SamplingParams(max_tokens=4), sample_index=1)[0][3:]})
        engine, follower = overlapped(eos=eos)
        first = engine.add_request(PROMPT, SamplingParams(max_tokens=9, n=3), request_id="a")
        while first.finish_reason is None:
            engine.advance()
        assert len(engine.live) == 2
        finish(engine, follower, *first.samples, eos=eos)
        assert {seq.finish_reason for seq in first.samples} == {"stop", "length"}
        finish(engine, follower, engine.add_request(PROMPT, SamplingParams(max_tokens=2), request_id="a"), eos=eos)

    def test_a_stop_string(self) -> None:
        """It is asked about each token that counts, once."""
        asked: list[int] = []

        def match(seq: object) -> str | None:
            asked.append(len(seq.completion_token_ids))  # type: ignore[attr-defined]
            return "found" if asked[-1] == 4 else None

        engine, follower = overlapped(stop_matcher=match)
        seq = add(engine, PROMPT, 12, stop="found", min_tokens=2)
        while not seq.is_finished:
            engine.advance()
        assert asked == [3, 4] and seq.completion_token_ids == SAID[:4] and seq.stop_reason == "found"
        assert [len(record.committed.token_id) for record in follower.records] == [1, 1, 1, 1, 0]
        follower.compare(engine)

    def test_the_last_token_leaves_no_row_behind(self) -> None:
        engine, follower = overlapped()
        seqs = [add(engine, PROMPT, 3, stop_token_ids=[SAID[2]]), add(engine, [7], 3), add(engine, [8], 5)]
        finish(engine, follower, *seqs)
        assert [len(record.planned.seq_id) for record in follower.records] == [3, 3, 3, 1, 1]
        assert follower.records[2].committed.finished_seq_id == [0, 1] and seqs[0].finish_reason == "stop"

    def test_token_0_is_one_like_any_other(self) -> None:
        prompt = next([n] for n in range(9_999) if next_id([n]) == 0)
        engine, follower = overlapped()
        seq = add(engine, prompt, 3)
        finish(engine, follower, seq)
        assert seq.completion_token_ids[0] == 0

    @pytest.mark.parametrize("block_size", [1, 2])
    @pytest.mark.parametrize("max_tokens", [3, 12])
    def test_a_row_that_fails(self, block_size: int, max_tokens: int) -> None:
        """What it wrote is forgotten, also the block that was filled by the row that failed."""
        params = SamplingParams(max_tokens=max_tokens)
        ends = {
            token_id: free_run([token_id, 0], params, broken_every=BROKEN_EVERY) for token_id in range(9, 99)
        }  # fmt: skip
        bad = next(token_id for token_id, (ids, why) in ends.items() if (len(ids), why) == (2, "error"))
        good = next(token_id for token_id, (ids, why) in ends.items() if why == "length")
        engine, follower = overlapped(32, block_size, broken_every=BROKEN_EVERY)
        seqs = [engine.add_request([token_id, 0], params) for token_id in (bad, good)]
        for _ in range(3):
            engine.advance()
        is_late = max_tokens > 3
        assert seqs[0].error is not None and seqs[0].finish_reason == (None if is_late else "error")
        table = seqs[0].block_table
        engine.advance()
        assert seqs[0].finish_reason == "error" and seqs[0].completion_token_ids == ends[bad][0]
        hashes = engine.snapshot().hash
        assert all(hashes[block] is None for block in table)
        while not seqs[1].is_finished:
            engine.advance()
        follower.compare(engine)
        check_invariants(engine)
        assert (seqs[1].completion_token_ids, seqs[1].finish_reason) == ends[good]
        again = engine.add_request([bad, 0, 1], params)
        engine.step()
        assert again.num_cached_tokens == 0


def mid_air() -> tuple[Engine, Follower]:
    """Two requests with two tokens each; the third is being computed, and stops the first one."""
    engine, follower = overlapped()
    add(engine, PROMPT, 12, stop_token_ids=[SAID[2]])
    add(engine, [7], 6)
    engine.advance()
    engine.advance()
    assert in_the_air(engine) == [2] and len(follower.records) == 2
    return engine, follower


CALLS: dict[str, Callable[[Engine], object]] = {
    "add": lambda engine: engine.add_request([9, 9], SamplingParams(max_tokens=3)),
    "abort": lambda engine: engine.abort("nobody"),
    "abort one that runs": lambda engine: engine.abort("1"),
    "plan": lambda engine: engine.plan(),
    "settle": lambda engine: engine.settle(),
    "snapshot": lambda engine: engine.snapshot(),
    "subscribe": lambda engine: engine.subscribe(lambda item: None),
    "reset": lambda engine: engine.reset_prefix_cache(),
}


class TestCallsInMidAir:
    @pytest.mark.parametrize("name", CALLS)
    def test_what_is_in_the_air_lands_first(self, name: str) -> None:
        engine, follower = mid_air()
        seqs = list(engine.live.values())
        CALLS[name](engine)
        assert in_the_air(engine) == [] and len(follower.records) == 3 and engine.next_step == 3
        assert [seq.num_completion_tokens for seq in seqs] == [3, 3]
        assert seqs[0].finish_reason == "stop", "nothing is in the air that it would have to wait for"
        assert seqs[1].finish_reason == ("abort" if name == "abort one that runs" else None)
        check_invariants(engine)
        engine.step()  # which tells of the abort
        finish(engine, follower, *(seq for seq in seqs if seq.finish_reason != "abort"))

    def test_a_request_that_can_never_run_is_refused_at_once(self) -> None:
        engine, _ = mid_air()
        with pytest.raises(ValueError, match="empty"):
            engine.add_request([])
        assert in_the_air(engine) == [2]

    def test_who_has_ended_in_the_air_is_not_aborted(self) -> None:
        for count in (0, 1):  # the end itself is in the air, or the late row
            engine, follower = mid_air()
            seq = engine.live["0"]
            for _ in range(count):
                engine.advance()
            assert not engine.abort("0") and seq.finish_reason == "stop"
            finish(engine, follower, seq)

    def test_a_step_is_one_of_its_own(self) -> None:
        engine, follower = mid_air()
        seqs = list(engine.live.values())
        output = engine.step()
        assert (output.step, output.seq_ids, output.token_ids) == (3, [1], [seqs[1].token_ids[-1]])
        assert output.finished == [] and output.record is follower.records[3] and not output.record.planned.is_ahead
        assert seqs[1].num_completion_tokens == 4 and in_the_air(engine) == []
        finish(engine, follower, *seqs)

    def test_a_reset_comes_after_the_commit(self) -> None:
        engine, follower = mid_air()
        engine.reset_prefix_cache()
        assert all(hash_ is None for hash_ in engine.snapshot().hash)
        engine.advance()
        assert follower.records[3].before.cache_reset_number == [follower.records[2].event]
        follower.compare(engine)


class TestWatchersInMidAir:
    """They are told of a step while the next one is in the air."""

    def watch(self, call: Callable[[Engine], object], at: int = 2) -> tuple[Engine, Follower, list[tuple[str, int]]]:
        """Another watcher, who is told first, does this when it is told of step ``at``."""
        engine, follower = overlapped()
        engine._hub.subscriptions.clear()
        seen: list[tuple[str, int]] = []

        def watch(item: Snapshot | StepRecord) -> None:
            seen.append((type(item).__name__, item.step))
            if isinstance(item, StepRecord) and item.step == at:
                call(engine)

        engine.subscribe(watch)
        engine.subscribe(follower)
        add(engine, PROMPT, 7)
        return engine, follower, seen

    @pytest.mark.parametrize("name", ["step", "advance", "add_request", "snapshot"])
    def test_one_may_call_the_engine(self, name: str) -> None:
        arguments = ([9, 9],) if name == "add_request" else ()
        engine, follower, seen = self.watch(lambda engine: getattr(engine, name)(*arguments))
        seq = engine.live["0"]
        finish(engine, follower, seq)
        assert all(subscription.is_active for subscription in engine._hub.subscriptions)
        assert seen == [("Snapshot", 0), *(("StepRecord", record.step) for record in follower.records)]
        assert [record.step for record in follower.records] == list(range(engine.next_step))

    def test_one_that_lost_its_place_gets_a_snapshot_of_what_has_landed(self) -> None:
        def lose(engine: Engine) -> None:
            raise SnapshotNeeded

        engine, follower, seen = self.watch(lose)
        finish(engine, follower, engine.live["0"])
        assert seen[3:5] == [("StepRecord", 2), ("Snapshot", 4)] and seen[5:] == [("StepRecord", n) for n in (4, 5, 6)]
        assert len(follower.records) == 7

    def test_one_that_fails_leaves_the_step_in_the_air(self, caplog: pytest.LogCaptureFixture) -> None:
        engine, follower, seen = self.watch(lambda engine: 1 // 0)
        seq, (bad, _) = engine.live["0"], engine._hub.subscriptions
        for _ in range(3):
            engine.advance()
        assert isinstance(bad.error, ZeroDivisionError) and not bad.is_active and in_the_air(engine) == [3]
        assert "failed at step 2" in caplog.text and "ZeroDivisionError" in caplog.text
        finish(engine, follower, seq)
        assert seen[-1] == ("StepRecord", 2)
