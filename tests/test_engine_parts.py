"""Small parts of the engine: a batch's columns, a sequence's views of itself, who is subscribed to what."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest

from nvexplore.engine.batch import Dispatch, Sampled, ScheduledBatch
from nvexplore.engine.events import Planned, Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.snapshot import sequence_columns
from nvexplore.engine.subscription import Hub, SnapshotNeeded
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine


def seq_of(length: int, computed: int = 0, **params: Any) -> Sequence:
    seq = Sequence(length, list(range(length)), SamplingParams(**params), request_id=f"r{length}")
    seq.num_computed_tokens = computed
    return seq


class TestBatch:
    def test_rows_in_the_order_they_are_added(self) -> None:
        batch = ScheduledBatch()
        decoding, whole, part = seq_of(5, 4), seq_of(4), seq_of(9, 2)
        batch.add_decodes([decoding])
        batch.add(whole, 4, is_prefill=True)
        batch.add(part, 3, is_prefill=True)
        assert batch.seqs == [decoding, whole, part]
        assert (batch.starts, batch.counts) == ([4, 0, 2], [1, 4, 3])
        assert batch.samples == [True, True, False] and batch.is_prefill == [False, True, True]
        assert batch.num_tokens == 8 and batch.blocked == []

    def test_an_empty_one(self) -> None:
        batch = ScheduledBatch()
        assert batch.num_tokens == 0 and batch.seqs == batch.samples == []
        assert Dispatch() == (None, None, None, None, None)
        assert Sampled([3]).logprobs == Sampled([3]).prompt_logprobs == {}


class TestSequence:
    def test_a_new_one(self) -> None:
        seq = Sequence(3, [5, 6], SamplingParams(), request_id="a")
        assert (seq.status, seq.arrival, seq.priority, seq.sample_index) == ("waiting", 0.0, 0, 0)
        counts = (seq.num_cached_tokens, seq.num_computed_tokens, seq.num_preemptions, seq.num_passed)
        assert counts == (0, 0, 0, 0) and seq.num_prompt_tokens == 2
        assert seq.block_table == [] and seq.chain == [] and seq.siblings == ()
        assert seq.logprobs is seq.prompt_logprobs is seq.finish_reason is seq.stop_reason is seq.error is None
        assert seq.stop_ids == frozenset() and seq.is_plain and not seq.is_finished and not seq.lacks_prompt_logprobs
        assert seq.samples == (seq,)

    def test_prompt_and_completion(self) -> None:
        seq = seq_of(3)
        seq.token_ids += [8, 9]
        assert (seq.num_tokens, seq.num_completion_tokens) == (5, 2)
        assert seq.prompt_token_ids == [0, 1, 2] and seq.completion_token_ids == [8, 9]

    def test_what_ends_it(self) -> None:
        eos = frozenset({1, 2})

        def stop_ids(**params: Any) -> frozenset[int]:
            return Sequence(0, [5], SamplingParams(**params), request_id="a", eos_token_ids=eos).stop_ids

        assert stop_ids() == {1, 2} and stop_ids(ignore_eos=True) == set()
        assert stop_ids(stop_token_ids=[2, 7]) == {1, 2, 7}
        assert stop_ids(stop_token_ids=[2, 7], ignore_eos=True) == {2, 7}

    def test_log_probabilities_are_kept_for_those_who_ask(self) -> None:
        params = SamplingParams(logprobs=0, prompt_logprobs=0)
        first, second = (Sequence(i, [5, 6], params, request_id="a", sample_index=i) for i in (0, 1))
        assert first.logprobs == second.logprobs == [] and not first.is_plain
        assert first.prompt_logprobs == [None] and second.prompt_logprobs is None
        assert first.lacks_prompt_logprobs and not second.lacks_prompt_logprobs
        first.prompt_logprobs = [None, {}]
        assert not first.lacks_prompt_logprobs

    def test_it_shows_where_it_is(self) -> None:
        seq = seq_of(3, computed=2)
        seq.block_table = [4]
        seq.token_ids.append(9)
        assert repr(seq) == "Sequence(3, waiting, tokens=3+1, computed=2, block_table=[4])"

    def test_sequences_as_columns(self) -> None:
        seq = seq_of(3, computed=2)
        seq.num_cached_tokens, seq.num_preemptions, seq.block_table = 1, 4, [7]
        columns = sequence_columns([seq, seq_of(2)])
        assert columns.seq_id == [3, 2] and columns.request_id == ["r3", "r2"] and columns.status == ["waiting"] * 2
        assert (columns.num_prompt_tokens, columns.num_cached_tokens) == ([3, 2], [1, 0])
        assert (columns.num_computed_tokens, columns.num_preemptions) == ([2, 0], [4, 0])
        assert columns.token_ids == [[0, 1, 2], [0, 1]] and columns.block_table == [[7], []]
        seq.token_ids.append(1)
        assert columns.token_ids[0] == [0, 1, 2], "a snapshot is a copy"


class Watcher:
    """Keeps what it gets; ``refuses`` and ``fails`` at steps."""

    def __init__(self, refuses: int = -1, fails: int = -1) -> None:
        self.items: list[tuple[str, int]] = []
        self.refuses = refuses
        self.fails = fails

    def __call__(self, item: Snapshot | StepRecord) -> None:
        if isinstance(item, StepRecord) and item.step == self.refuses:
            raise SnapshotNeeded("lost")
        if item.step == self.fails:
            raise ZeroDivisionError
        self.items.append((type(item).__name__, item.step))


def record_of(step: int) -> StepRecord:
    """A record of an idle engine, numbered ``step``."""
    record = toy_engine(2).step(want_record=True).record
    assert record is not None
    return msgspec.structs.replace(record, step=step)


def snapshot_of(step: int) -> Snapshot:
    return msgspec.structs.replace(toy_engine(2).snapshot(), step=step)


class TestHub:
    def make(self, now: int = 0) -> Hub:
        self.now = now
        return Hub(lambda: snapshot_of(self.now))

    def test_records_go_to_all_in_order(self) -> None:
        hub = self.make()
        assert not hub
        first, second = Watcher(), Watcher()
        hub.subscribe(first, snapshot_of(3))
        hub.subscribe(second, snapshot_of(4))
        assert hub
        hub.outbox += [record_of(3), record_of(4)]
        hub.deliver()
        hub.deliver()
        assert first.items == [("Snapshot", 3), ("StepRecord", 3), ("StepRecord", 4)]
        assert second.items == [("Snapshot", 4), ("StepRecord", 4)], "its snapshot holds step 3 already"
        assert hub.outbox == deque()

    def test_a_snapshot_takes_the_place_of_a_record_that_is_refused(self) -> None:
        hub, watcher = self.make(now=5), Watcher(refuses=3)
        subscription = hub.subscribe(watcher, snapshot_of(3))
        hub.outbox += [record_of(3), record_of(4), record_of(5)]
        hub.deliver()
        assert watcher.items == [("Snapshot", 3), ("Snapshot", 5), ("StepRecord", 5)]
        assert subscription.is_active and subscription.error is None and subscription.next_step == 6

    def test_one_that_fails_is_detached_with_its_error(self, caplog: pytest.LogCaptureFixture) -> None:
        hub, bad, good = self.make(), Watcher(fails=4), Watcher()
        subscription = hub.subscribe(bad, snapshot_of(3))
        hub.subscribe(good, snapshot_of(3))
        hub.outbox += [record_of(3), record_of(4), record_of(5)]
        hub.deliver()
        assert bad.items == [("Snapshot", 3), ("StepRecord", 3)] and len(good.items) == 4
        assert isinstance(subscription.error, ZeroDivisionError) and not subscription.is_active
        assert "at step 4" in caplog.text and len(hub.subscriptions) == 1

    def test_one_that_fails_at_the_snapshot_it_asked_for(self, caplog: pytest.LogCaptureFixture) -> None:
        hub, watcher = self.make(now=4), Watcher(refuses=3, fails=4)
        subscription = hub.subscribe(watcher, snapshot_of(3))
        hub.outbox.append(record_of(3))
        hub.deliver()
        assert isinstance(subscription.error, ZeroDivisionError) and not hub and not hub.outbox

    def test_one_may_leave_or_ask_for_more_while_it_is_told(self) -> None:
        hub = self.make()
        seen: list[int] = []

        def leave(item: Snapshot | StepRecord) -> None:
            seen.append(item.step)
            hub.deliver()  # told already
            if isinstance(item, StepRecord):
                subscription.close()

        subscription = hub.subscribe(leave, snapshot_of(0))
        other = Watcher()
        with hub.subscribe(other, snapshot_of(0)) as last:
            hub.outbox += [record_of(0), record_of(1)]
            hub.deliver()
            assert last.is_active
        assert seen == [0, 0] and other.items == [("Snapshot", 0), ("StepRecord", 0), ("StepRecord", 1)]
        assert not hub and not last.is_active
        last.close()

    def test_an_interrupt_leaves_the_record_in_the_outbox(self) -> None:
        hub, fails, seen = self.make(), [True], []

        def interrupted(item: Snapshot | StepRecord) -> None:
            if isinstance(item, StepRecord) and fails[0]:
                raise KeyboardInterrupt
            seen.append(item.step)

        hub.subscribe(interrupted, snapshot_of(2))
        hub.outbox.append(record_of(2))
        with pytest.raises(KeyboardInterrupt):
            hub.deliver()
        assert len(hub.outbox) == 1
        fails[0] = False
        hub.deliver()
        assert seen == [2, 2] and not hub.outbox

    def test_an_interrupt_at_the_first_snapshot_attaches_nobody(self) -> None:
        hub = self.make()
        with pytest.raises(ZeroDivisionError):
            hub.subscribe(Watcher(fails=2), snapshot_of(2))
        assert not hub


def test_an_idle_step_is_empty_and_says_so() -> None:
    empty = record_of(0)
    assert empty.is_empty
    planned: Planned = msgspec.structs.replace(empty.planned, seq_id=[1])
    assert not msgspec.structs.replace(empty, planned=planned).is_empty


def test_the_tokens_of_a_step_are_told_without_those_that_could_not_be_chosen() -> None:
    """Token 0 is a token."""
    engine = toy_engine(8)
    engine.runner.run = lambda batch: [0, -1, 5]  # type: ignore[method-assign]
    seqs = [engine.add_request([1], SamplingParams(max_tokens=1)) for _ in range(3)]
    output = engine.step()
    assert (output.seq_ids, output.token_ids, output.finished) == ([0, 2], [0, 5], seqs)
    assert [seq.finish_reason for seq in seqs] == ["length", "error", "length"]
