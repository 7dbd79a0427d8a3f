"""The engine's own surface: requests, ids, refusals, plan, snapshot, subscribers."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Planned, Snapshot, StepRecord
from nvexplore.engine.limits import EngineLimits
from nvexplore.explore.state import FoldError, State
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained
from tests.faults import InterruptAt

THREE = SamplingParams(max_tokens=3)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], ValueError, "at least 1 token"),
        ([1, -1], ValueError, r"token_ids\[1\]=-1: must be at least 0"),
        ([500], ValueError, r"token_ids\[0\]=500: must be at most 499"),
        ([1.5], TypeError, r"token_ids\[0\]=1\.5: must be an integer, not float"),
        ([True], TypeError, "not bool"),
        (["a"], TypeError, "not str"),
        ("text", TypeError, "text is for LLM.add_request"),
        (7, TypeError, "must be integers"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused(prompt: Any, error: type[Exception], message: str) -> None:
    engine = toy_engine(4)
    engine.vocab_size = 500
    with pytest.raises(error, match=message):
        engine.add_request(prompt)
    assert not engine.has_unfinished and engine.step().seq_ids == []


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, "3"])
def test_max_tokens_must_be_a_positive_integer(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_tokens="):
        SamplingParams(max_tokens=bad)


def test_numpy_ids_are_welcome_and_copied() -> None:
    engine, ids = toy_engine(4), np.array([3, 1, 2])
    seq = engine.add_request(ids, THREE)
    ids[:] = 0
    run_to_end(engine)
    assert seq.completion_token_ids == unconstrained([3, 1, 2], 3)
    assert all(type(t) is int for t in seq.token_ids)


def test_request_ids() -> None:
    engine = toy_engine(8)
    first = engine.add_request([1], THREE, request_id="a")
    with pytest.raises(ValueError, match="'a': a live request has this id"):
        engine.add_request([1], THREE, request_id="a")
    with pytest.raises(TypeError, match="must be a str, not int"):
        engine.add_request([1], THREE, request_id=5)  # type: ignore[arg-type]
    run_to_end(engine)
    again = engine.add_request([1], THREE, request_id="a")
    assert again.seq_id != first.seq_id
    engine.add_request([1], THREE, request_id=str(again.seq_id + 2))
    assert engine.add_request([1], THREE).request_id == f"{again.seq_id + 2}'"


@pytest.mark.parametrize(
    "field", ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"]
)
@pytest.mark.parametrize("bad", [0, -3, 1.5, True])
def test_limits_are_checked(field: str, bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{field}="):
        EngineLimits(**{"num_blocks": 4, field: bad})


def test_other_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="policy='fair'"):
        EngineLimits(num_blocks=4, policy="fair")
    with pytest.raises(TypeError, match="enable_prefix_caching=1"):
        EngineLimits(num_blocks=4, enable_prefix_caching=1)  # type: ignore[arg-type]


def test_the_budget_cuts_prompts_into_chunks_first_come_first_served() -> None:
    engine = toy_engine(32, max_num_batched_tokens=5)
    engine.add_request(range(8), THREE)
    engine.add_request(range(20, 24), THREE)
    rows = []
    while engine.has_unfinished:
        record = engine.step(want_record=True).record
        assert record is not None
        p = record.planned
        rows.append(list(zip(p.seq_id, p.start, p.count, p.is_prefill, p.samples, strict=True)))
    assert rows[:3] == [
        [(0, 0, 5, True, False)],
        [(0, 5, 3, True, True), (1, 0, 2, True, False)],
        [(1, 2, 2, True, True)],
    ]
    assert rows[3] == [(0, 8, 1, False, True), (1, 4, 1, False, True)]


def test_decoding_obeys_the_budget_too() -> None:
    engine = toy_engine(32, max_num_batched_tokens=2)
    seqs = [engine.add_request([i], THREE) for i in range(4)]
    while engine.has_unfinished:
        assert len(engine.step().seq_ids) <= 2
    assert [s.completion_token_ids for s in seqs] == [unconstrained([i], 3) for i in range(4)]


def plan_of(engine: Engine) -> Planned:
    before = engine.snapshot()
    planned = engine.plan()
    assert engine.snapshot().same_state(before)
    return planned


def test_plan_says_what_the_next_step_does() -> None:
    engine = toy_engine(6, max_num_batched_tokens=9, max_num_seqs=2)
    for i in range(4):
        engine.add_request(range(i * 10, i * 10 + 7), SamplingParams(max_tokens=8))
    while engine.has_unfinished:
        planned = plan_of(engine)
        record = engine.step(want_record=True).record
        assert record is not None and planned == record.planned
    assert plan_of(engine).seq_id == []


@pytest.mark.parametrize(
    ("limits", "reason", "needed", "available"),
    [
        ({"max_num_batched_tokens": 4}, "token_budget", 1, 0),
        ({"max_num_seqs": 1}, "max_num_seqs", 1, 0),
        ({"num_blocks": 3}, "free_blocks", 2, 1),
    ],
)
def test_the_plan_says_why_the_next_in_line_waits(
    limits: dict[str, int], reason: str, needed: int, available: int
) -> None:
    engine = toy_engine(limits.pop("num_blocks", 16), **limits)
    for first in (0, 10, 20):
        engine.add_request(range(first, first + 5), THREE)
    waiting = plan_of(engine).waiting
    # Behind one that lacks blocks others are tried: they may be smaller.
    looked_at = 2 if reason == "free_blocks" else 1
    assert waiting.seq_id == [1, 2][:looked_at] and waiting.num_not_examined == 2 - looked_at
    assert waiting.reason == [reason] * looked_at
    assert waiting.needed == [needed] * looked_at and waiting.available == [available] * looked_at


def test_a_hit_on_a_free_block_counts_as_needed() -> None:
    engine = toy_engine(3)
    engine.add_request(range(8), SamplingParams(max_tokens=1))
    run_to_end(engine)
    holder = engine.add_request(range(50, 54), SamplingParams(max_tokens=3))  # takes one block, then a second
    engine.step()
    engine.step()
    late = engine.add_request(range(9), SamplingParams(max_tokens=1))
    assert plan_of(engine).waiting.reason == ["free_blocks"]
    run_to_end(engine)
    assert holder.completion_token_ids == unconstrained(list(range(50, 54)), 3)
    assert late.completion_token_ids == unconstrained(list(range(9)), 1)


def test_prefix_caching_can_be_turned_off() -> None:
    engine = toy_engine(16, enable_prefix_caching=False)
    for _ in range(3):
        seq = engine.add_request(range(9), THREE)
        run_to_end(engine)
        assert seq.num_cached_tokens == 0 and seq.completion_token_ids == unconstrained(list(range(9)), 3)
    assert engine.snapshot().hash == [None] * 16


def test_reset_prefix_cache_forgets_but_keeps_the_running() -> None:
    engine = toy_engine(16)
    seq = engine.add_request(range(9), SamplingParams(max_tokens=9))
    for _ in range(3):
        engine.step()
    engine.reset_prefix_cache()
    check_invariants(engine)
    assert engine.snapshot().hash == [None] * 16
    run_to_end(engine)
    assert seq.completion_token_ids == unconstrained(list(range(9)), 9)


def test_a_runner_that_returns_the_wrong_number_of_ids() -> None:
    engine = toy_engine(8)
    seq = engine.add_request([1, 2], THREE)
    run, engine.runner.run = engine.runner.run, lambda batch: [1, 2]  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="returned 2 token ids for 1 sampling rows"):
        engine.step()
    engine.runner.run = run  # type: ignore[method-assign]
    run_to_end(engine)
    assert seq.completion_token_ids == unconstrained([1, 2], 3)


def test_calls_from_inside_a_step_are_refused() -> None:
    engine = toy_engine(8)
    seq = engine.add_request([1, 2], THREE)
    caught: list[str] = []

    def nosy(batch: ScheduledBatch) -> list[int]:
        for call in (
            engine.step,
            engine.plan,
            engine.snapshot,
            lambda: engine.add_request([1], THREE),
            lambda: engine.abort("0"),
        ):
            with pytest.raises(RuntimeError, match="in the middle of a step") as error:
                call()
            caught.append(str(error.value))
        return run(batch)

    run, engine.runner.run = engine.runner.run, nosy  # type: ignore[method-assign]
    engine.step()
    assert len(caught) == 5 and seq.num_completion_tokens == 1


class TestSubscribers:
    def test_snapshot_first_then_each_record(self) -> None:
        engine = toy_engine(16)
        engine.add_request([1, 2, 3], THREE)
        engine.step()
        items: list[Snapshot | StepRecord] = []
        with engine.subscribe(items.append) as subscription:
            run_to_end(engine)
            assert subscription.is_active
        assert not subscription.is_active
        subscription.close()
        engine.add_request([1], THREE)
        engine.step()
        assert [type(item) for item in items] == [Snapshot, StepRecord, StepRecord]
        assert [item.step for item in items] == [1, 1, 2]

    def test_requests_added_before_subscribing_are_in_the_snapshot_only(self) -> None:
        engine = toy_engine(16)
        engine.add_request([1, 2, 3], THREE)
        items: list[Any] = []
        engine.subscribe(items.append)
        engine.step()
        state = State(items[0])
        assert list(state.sequences) == [0]
        state.apply(items[1])  # tells of the request again; its number says that the state holds it
        assert state.snapshot().same_state(engine.snapshot())

    def test_one_that_raises_is_detached_and_harms_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        engine, seen = toy_engine(16), []

        def broken(item: Snapshot | StepRecord) -> None:
            if isinstance(item, StepRecord):
                raise ZeroDivisionError("mine")

        bad, _ = engine.subscribe(broken), engine.subscribe(seen.append)
        seq = engine.add_request([1, 2], THREE)
        with caplog.at_level(logging.ERROR):
            run_to_end(engine)
        assert isinstance(bad.error, ZeroDivisionError) and not bad.is_active
        assert "detached" in caplog.text
        assert len(seen) == 4 and seq.completion_token_ids == unconstrained([1, 2], 3)

    def test_one_that_raises_at_its_snapshot_is_not_attached(self) -> None:
        engine = toy_engine(16)
        with pytest.raises(ZeroDivisionError):
            engine.subscribe(lambda item: 1 // 0)
        engine.add_request([1], THREE)
        assert engine.step().record is None

    def test_whoever_is_attached_has_seen_a_snapshot_wherever_an_interrupt_comes(self) -> None:
        nth, is_over = 0, False
        while not is_over:
            nth += 1
            engine, seen = toy_engine(2), list[Snapshot | StepRecord]()
            with suppress(KeyboardInterrupt), InterruptAt(nth) as interrupt:
                engine.subscribe(seen.append)
            is_over = not interrupt.place
            engine.add_request([1], THREE)
            run_to_end(engine)
            assert not seen or isinstance(seen[0], Snapshot), interrupt.place
        assert nth > 50 and len(seen) == 4

    def test_one_that_lost_its_place_gets_a_snapshot(self) -> None:
        engine, states = toy_engine(16), []

        def follow(item: Snapshot | StepRecord) -> None:
            if isinstance(item, Snapshot):
                states.append(State(item))
            else:
                states[-1].apply(item)

        engine.subscribe(follow)
        engine.add_request(range(5), SamplingParams(max_tokens=6))
        engine.step()
        states[-1].step -= 1  # as if a record had been missed
        run_to_end(engine)
        assert len(states) == 2 and states[-1].snapshot().same_state(engine.snapshot())

    def test_interrupt_in_a_callback_loses_no_record(self) -> None:
        engine, seen, fired = toy_engine(16), [], []

        def interrupted(item: Snapshot | StepRecord) -> None:
            if item.step == 1 and isinstance(item, StepRecord) and not fired:
                fired.append(True)
                raise KeyboardInterrupt
            seen.append(item.step)

        engine.subscribe(interrupted)
        seq = engine.add_request([1, 2], SamplingParams(max_tokens=4))
        engine.step()
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        run_to_end(engine)
        assert seen == [0, 0, 1, 2, 3] and seq.completion_token_ids == unconstrained([1, 2], 4)

    def test_one_may_step_the_engine(self) -> None:
        engine, seen = toy_engine(16), []

        def eager(item: Snapshot | StepRecord) -> None:
            seen.append(item.step)
            if engine.has_unfinished:
                engine.step()

        seq = engine.add_request([1, 2], SamplingParams(max_tokens=4))
        engine.subscribe(eager)
        run_to_end(engine)
        assert seen == [0, 0, 1, 2, 3]  # the snapshot, then each step once and in order
        assert seq.completion_token_ids == unconstrained([1, 2], 4)


class TestRecords:
    def records(self) -> list[StepRecord]:
        engine = toy_engine(7, 2, max_num_batched_tokens=5)
        found: list[StepRecord] = []
        engine.subscribe(lambda item: found.append(item) if isinstance(item, StepRecord) else None)
        for prompt in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [9]):
            engine.add_request(prompt, SamplingParams(max_tokens=4))
        run_to_end(engine)
        return found

    def test_events_are_numbered_without_a_gap(self) -> None:
        numbers: list[int] = []
        for record in self.records():
            before, planned, committed = record.before, record.planned, record.committed
            for part in (before.blocks, before.preempted, before.added, planned.blocks, planned.preempted):
                numbers += part.number  # type: ignore[attr-defined]
            numbers += before.aborted_number + before.cache_reset_number + planned.admitted.number
            numbers += committed.blocks.number + committed.finished_number
            numbers += [n for n in (planned.number, committed.number) if n is not None]
            assert max(numbers) == record.event - 1
        assert sorted(numbers) == list(range(len(numbers)))

    def test_spans_are_the_slots(self) -> None:
        for record in self.records():
            planned, tables = record.planned, {}
            rows = list(zip(*(getattr(planned.spans, c) for c in ("row", "block_id", "offset", "length")), strict=True))
            assert [
                sum(length for r, _, _, length in rows if r == i) for i in range(len(planned.count))
            ] == planned.count
            for row, block, offset, length in rows:
                tables.setdefault(row, []).append(block)
                assert 0 <= offset < 2 and 1 <= length <= 2 - offset

    @pytest.mark.parametrize("every", [1, 2, 3, 5])
    def test_a_record_is_the_same_whether_the_steps_before_were_recorded_or_not(self, every: int) -> None:
        def engine() -> Engine:
            made = toy_engine(14, 2, max_num_batched_tokens=6)
            for prompt in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [9], [8, 8]):
                made.add_request(prompt, SamplingParams(max_tokens=9))
            return made

        always, sometimes, step = engine(), engine(), 0
        while always.has_unfinished:
            full = always.step(want_record=True).record
            some = sometimes.step(want_record=step % every == 0).record
            if some is not None:
                assert full is not None
                for column in ("seq_id", "start", "count", "num_cached_tokens", "context_len", "spans", "waiting"):
                    assert getattr(some.planned, column) == getattr(full.planned, column), (step, column)
            step += 1
        assert step > 12

    def test_records_and_snapshots_survive_json_and_msgpack(self) -> None:
        engine = toy_engine(4)
        engine.add_request([1, 2, 3, 4, 5], THREE)
        items: list[Snapshot | StepRecord] = [*self.records(), engine.snapshot()]
        for item in items:
            for codec in (msgspec.json, msgspec.msgpack):
                assert codec.decode(codec.encode(item), type=Snapshot | StepRecord) == item

    def test_another_version_is_refused(self) -> None:
        engine = toy_engine(4)
        snapshot = engine.snapshot()
        with pytest.raises(FoldError, match="version 99"):
            State(msgspec.structs.replace(snapshot, version=99))
        record = engine.step(want_record=True).record
        with pytest.raises(FoldError, match="version 99"):
            State(snapshot).apply(msgspec.structs.replace(record, version=99))

    def test_a_gap_is_refused_and_a_repetition_is_harmless(self) -> None:
        first, second, third = self.records()[:3]
        state = State(toy_engine(7, 2).snapshot())
        state.apply(first)
        before = state.snapshot()
        state.apply(first)
        assert state.snapshot() == before
        with pytest.raises(FoldError, match="waits for step 1"):
            state.apply(third)
        state.apply(second)
