"""The recorder: any kept step again exactly, bounds, gaps, duplicates, interrupts, and what a push does not do."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import Any

import msgspec
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore import frames
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import FoldError, State
from nvexplore.sampling_params import SamplingParams
from tests import hand_made
from tests.fakes import toy_engine
from tests.workloads import make_workload, run_workload

Items = list[Snapshot | StepRecord]


def recorded(items: Items, **options: int) -> Recorder:
    recorder = Recorder(**options)
    for item in items:
        recorder.push(item)
    return recorder


def busy_engine(seed: int = 0, num_requests: int = 12) -> Engine:
    """An engine with requests enough for some hundred steps."""
    rng = random.Random(seed)
    engine = toy_engine(24, 4, max_num_batched_tokens=16, max_num_seqs=4)
    for _ in range(num_requests):
        prompt = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        engine.add_request(prompt, SamplingParams(max_tokens=40))
    return engine


def run(engine: Engine, num_steps: int) -> dict[int, Snapshot]:
    """Step; returns the engine's own snapshot after each step."""
    after = {}
    for _ in range(num_steps):
        engine.step()
        after[engine.next_step - 1] = engine.snapshot()
    return after


# ---------------------------------------------------------------- time travel


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("look_while_it_runs", [False, True])
def test_the_state_after_every_step_is_the_engines(seed: int, look_while_it_runs: bool) -> None:
    stages = random.Random(seed)

    def interrupt(stage: str) -> None:
        if stages.random() < 0.002:
            raise KeyboardInterrupt

    work = make_workload(seed, interrupt)
    recorder = Recorder(snapshot_every=7)
    work.engine.subscribe(recorder)
    after: dict[int, Snapshot] = {}

    def look(engine: Engine) -> None:
        step = engine.next_step - 1
        if step < 0 or step in after:
            return  # an interrupted step: what was undone is told by the record of the next one
        after[step] = engine.snapshot()
        if look_while_it_runs:
            assert recorder.state.snapshot().same_state(after[step])

    run_workload(work, look)
    assert [record.step for record in recorder] == list(after) == list(range(len(recorder)))
    for step in after:
        assert recorder.state_at(step).snapshot().same_state(after[step])
        if step:
            assert recorder.state_before(step).snapshot().same_state(after[step - 1])


def test_the_state_is_the_readers_own() -> None:
    recorder = recorded(hand_made.items())
    recorder.state_at(3).running.clear()
    recorder.state_at(3).sequences[hand_made.A].token_ids.clear()
    assert recorder.state_at(3).running == [hand_made.A, hand_made.B]
    assert recorder.state_at(3).sequences[hand_made.A].token_ids == [1, 2, 3, 4, 5, 6, 11, 12, 13]


def test_the_running_state_moves_on() -> None:
    items = hand_made.items()
    recorder = recorded(items[:3])
    assert recorder.state.step == 2
    recorder.push(items[3])
    assert recorder.state.step == 3


def test_a_step_that_is_not_kept_is_named_with_those_that_are() -> None:
    recorder = recorded(hand_made.items(), max_steps=8, snapshot_every=2)
    for call in (recorder.state_at, recorder.state_before, recorder.record_of):
        with pytest.raises(ValueError, match=r"step 1 is not recorded: kept are steps 2 to 8$"):
            call(1)
        with pytest.raises(ValueError, match="step 9 is not recorded"):
            call(9)
        with pytest.raises(TypeError, match="step='3'"):
            call("3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing is"):
        Recorder().state_at(0)
    with pytest.raises(ValueError, match="nothing is recorded yet"):
        _ = Recorder().state


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(("max_steps", "snapshot_every"), [(1, 256), (2, 1), (10, 3), (40, 8), (64, 256), (1000, 16)])
def test_no_more_than_max_steps_are_kept_and_each_can_be_folded(max_steps: int, snapshot_every: int) -> None:
    engine = busy_engine()
    recorder = Recorder(max_steps, snapshot_every=snapshot_every)
    engine.subscribe(recorder)
    after: dict[int, Snapshot] = {}
    while engine.has_unfinished:
        after |= run(engine, 1)
        assert len(recorder) <= max_steps
        # The oldest go in portions, but three quarters of what is allowed always stay.
        assert len(recorder) >= min(len(after), max_steps * 3 // 4)
        assert recorder.last_step == engine.next_step - 1
        assert recorder.first_step == engine.next_step - len(recorder)
    assert len(after) > 120
    for record in recorder:
        assert recorder.state_at(record.step).snapshot().same_state(after[record.step])


def test_requests_are_forgotten_with_the_records_in_which_they_left() -> None:
    engine = busy_engine()
    recorder = Recorder(40, snapshot_every=8)
    engine.subscribe(recorder)
    gone: dict[int, int] = {}
    while engine.has_unfinished:
        output = engine.step()
        gone |= {seq.seq_id: output.step for seq in output.finished}
        assert recorder.first_step is not None
        kept = {s for s, step in gone.items() if step >= recorder.first_step}
        assert recorder.requests.keys() == kept | {seq.seq_id for seq in engine.live.values()}
    assert len(recorder.requests) < 12


def test_the_directory_outlives_the_sequence() -> None:
    recorder = recorded(hand_made.items())
    b = recorder.requests[hand_made.B]
    assert (b.request_id, b.num_prompt_tokens, b.arrival) == ("b", 6, 0.5)
    assert (b.admitted_step, b.first_token_step, b.finish_step, b.finish_reason) == (0, 1, 6, "stop")
    assert (b.admitted_time, b.first_token_time, b.finish_time) == (pytest.approx(0.91), 2.0, 7.0)
    c = recorder.requests[hand_made.C]
    assert (c.admitted_step, c.first_token_step, c.finish_step, c.finish_reason) == (None, None, 3, "abort")
    assert recorder.requests[hand_made.F].finish_step is None


def test_what_a_request_did_before_the_kept_records_is_still_known() -> None:
    frame = frames.sequences(recorded(hand_made.items(), max_steps=4, snapshot_every=1))
    b = frame[frame["request_id"] == "b"].iloc[0]
    assert (b["admitted_step"], b["num_completion_tokens"], b["num_preemptions"]) == (0, 4, 1)
    assert b["num_run_tokens"] == 9  # of the kept steps: 8 in step 5, 1 in step 6


def test_an_empty_recorder_is_one() -> None:
    assert Recorder()
    assert len(Recorder()) == 0


def test_clear_forgets_the_records_and_goes_on() -> None:
    engine = busy_engine()
    recorder = Recorder()
    recorder.clear()
    engine.subscribe(recorder)
    run(engine, 20)
    recorder.clear()
    assert (len(recorder), recorder.first_step, recorder.last_step, recorder.records) == (0, None, None, [])
    assert recorder.requests.keys() == {seq.seq_id for seq in engine.live.values()}
    after = run(engine, 10)
    assert [record.step for record in recorder] == list(after)
    assert all(recorder.state_at(step).snapshot().same_state(after[step]) for step in after)


# ---------------------------------------------------------------- what may arrive


def test_a_record_that_is_here_is_passed_over() -> None:
    items = hand_made.items()
    recorder = Recorder(snapshot_every=2)
    for item in items:
        recorder.push(item)
        recorder(item)
    assert recorder.records == items[1:]
    assert recorder.requests == recorded(items).requests
    assert recorder.gaps == []


def test_a_record_that_does_not_follow_is_refused_and_changes_nothing() -> None:
    items = hand_made.items()
    recorder = recorded(items[:3])
    with pytest.raises(FoldError, match="step 3 does not follow: the recorder waits for step 2"):
        recorder.push(items[4])
    recorder.push(items[3])
    assert recorder.records == items[1:4]


def test_a_record_before_any_snapshot_is_refused() -> None:
    with pytest.raises(FoldError, match="step 0 came before any snapshot"):
        Recorder().push(hand_made.records()[0])
    with pytest.raises(FoldError, match="before any snapshot"):
        frames.steps(hand_made.records())


def test_another_engines_snapshot_is_refused_until_the_recorder_is_cleared() -> None:
    recorder = recorded(hand_made.items())
    with pytest.raises(ValueError, match="at step 9"):
        recorder.push(hand_made.snapshot())
    assert len(recorder) == 9
    recorder.clear()
    recorder.push(hand_made.snapshot())
    recorder.push(hand_made.records()[0])
    assert recorder.requests.keys() == {hand_made.A, hand_made.B}


def test_other_versions_and_other_types_are_refused() -> None:
    items = hand_made.items()
    with pytest.raises(FoldError, match="snapshot version 99"):
        Recorder().push(msgspec.structs.replace(items[0], version=99))
    recorder = recorded(items[:1])
    with pytest.raises(FoldError, match="record version 99"):
        recorder.push(msgspec.structs.replace(items[1], version=99))
    with pytest.raises(TypeError, match="not dict"):
        recorder.push({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_steps=0"):
        Recorder(0)


def test_subscribing_again_without_a_missed_step_leaves_no_trace() -> None:
    engine = busy_engine()
    recorder = Recorder()
    after = {}
    for _ in range(5):
        with engine.subscribe(recorder):
            after |= run(engine, 3)
            engine.add_request([1, 2, 3], SamplingParams(max_tokens=2))
        assert engine.abort(next(iter(engine.live)))
        engine.add_request([2, 2, 2], SamplingParams(max_tokens=2))
    assert recorder.gaps == []
    assert len(recorder.segments) == 1
    assert len(recorder) == 15
    assert recorder.state_at(14).snapshot().same_state(after[14])


def test_steps_that_nobody_recorded_are_a_gap() -> None:
    engine = busy_engine()
    recorder = Recorder(snapshot_every=4)
    with engine.subscribe(recorder):
        after = run(engine, 10)
    run(engine, 60)
    with engine.subscribe(recorder):
        after |= run(engine, 10)
    assert recorder.gaps == [(10, 69)]
    assert [record.step for record in recorder] == list(after) == [*range(10), *range(70, 80)]
    assert all(recorder.state_at(step).snapshot().same_state(after[step]) for step in after)
    with pytest.raises(ValueError, match=r"step 30 is not recorded: kept are steps 0 to 79, without 10 to 69$"):
        recorder.state_at(30)
    left_unseen = {i.seq_id for i in recorder.requests.values() if i.finish_reason == "unknown"}
    assert left_unseen
    assert not left_unseen & set(after[79].sequences.seq_id)
    sequences = frames.sequences(recorder).set_index("seq_id")
    assert set(sequences.index[sequences["finish_reason"] == "unknown"]) == left_unseen
    for seq in engine.live.values():
        assert sequences["num_completion_tokens"][seq.seq_id] == seq.num_completion_tokens
    # The directory keeps what left in the gap no longer than the records before the gap.
    with engine.subscribe(small := Recorder(8, snapshot_every=2)):
        run(engine, 1)
    run(engine, 40)
    with engine.subscribe(small):
        run(engine, 20)
    assert small.gaps == []
    assert all(i.finish_reason != "unknown" for i in small.requests.values())


def test_a_subscriber_that_lost_its_place_gets_a_snapshot_and_goes_on() -> None:
    engine = busy_engine()
    recorder = Recorder()
    lost = [3, 4]

    def lossy(item: Snapshot | StepRecord) -> None:
        if isinstance(item, Snapshot) or item.step not in lost:
            recorder.push(item)

    with engine.subscribe(lossy) as subscription:
        after = run(engine, 12)
        assert subscription.is_active
    assert recorder.gaps == [(3, 5)]
    assert recorder.state_at(11).snapshot().same_state(after[11])


def test_a_request_that_came_and_went_before_the_subscription_is_unknown() -> None:
    engine = toy_engine(24, 4)
    engine.add_request([1, 2, 3], request_id="gone")
    engine.step()
    engine.abort("gone")
    engine.add_request([1, 2], request_id="also gone")
    engine.abort("also gone")
    engine.add_request([1, 2], SamplingParams(max_tokens=2), request_id="here")
    recorder = Recorder()
    engine.subscribe(recorder)
    after = run(engine, 2)
    assert [info.request_id for info in recorder.requests.values()] == ["here"]
    assert frames.sequences(recorder)["request_id"].tolist() == ["here"]
    assert set(frames.schedule(recorder)["seq_id"]) == {2}
    assert all(recorder.state_at(step).snapshot().same_state(after[step]) for step in (1, 2))


# ---------------------------------------------------------------- interrupts, cost, references


@pytest.mark.parametrize("at", range(1, 60, 4))
def test_an_interrupt_while_folding_does_no_harm(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = busy_engine()
    recorder = Recorder(64, snapshot_every=8)
    engine.subscribe(recorder)
    run(engine, 30)
    calls = 0
    original = State.block_event

    def interrupted(self: State, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(State, "block_event", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _ = recorder.state
    after = run(engine, 10)
    assert recorder.state.snapshot().same_state(engine.snapshot())
    assert all(recorder.state_at(step).snapshot().same_state(after[step]) for step in after)


def test_a_push_folds_nothing_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: State, record: StepRecord) -> None:
        raise AssertionError("a push folded a record")

    engine = busy_engine()
    recorder = Recorder(1000, snapshot_every=8)
    engine.subscribe(recorder)
    with monkeypatch.context() as patch:
        patch.setattr(State, "apply", fail)
        after = run(engine, 100)
    assert len(recorder) == 100
    assert recorder.state.snapshot().same_state(after[99])


def test_recording_does_not_change_the_tokens() -> None:
    plain, watched = busy_engine(), busy_engine()
    recorder = Recorder(16)
    watched.subscribe(recorder)
    for engine in (plain, watched):
        while engine.has_unfinished:
            engine.step()
    assert plain.snapshot().hash == watched.snapshot().hash
    assert plain.snapshot().free == watched.snapshot().free


def test_it_holds_no_engine() -> None:
    engine = busy_engine()
    recorder = Recorder()
    engine.subscribe(recorder)
    run(engine, 5)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert len(recorder) == 5


def test_another_thread_may_read_while_the_engine_steps() -> None:
    engine = busy_engine(num_requests=30)
    recorder = Recorder(50, snapshot_every=5)
    engine.subscribe(recorder)
    engine.step()
    errors: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                with recorder.lock:  # several readings of one moment: fifty steps may pass between two of them
                    last = recorder.last_step
                    assert last is not None
                    assert recorder.state_at(last).step == last + 1
                assert recorder.state.step > last
                assert len(frames.steps(recorder)) <= 50
                assert len(frames.sequences(recorder)) <= 30
                frames.prefix_hits(recorder)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        while engine.has_unfinished:
            engine.step()
    finally:
        done.set()
        thread.join()
    assert not errors
