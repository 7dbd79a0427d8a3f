"""First admissions and first tokens: told where they were recorded, and never guessed from what comes again later."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore import frames, lifecycle
from nvexplore.explore.compare import compare
from nvexplore.explore.lifecycle import Directory, RequestInfo, planned_time
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import load_recording, save_recording
from nvexplore.sampling_params import SamplingParams
from tests.drive import run_workload
from tests.fakes import run_to_end, toy_engine
from tests.test_requests import InterruptAt
from tests.workloads import make_workload

Items = list[Snapshot | StepRecord]
First = tuple[int | None, float | None]
FIRSTS = ["admitted_step", "admitted_s", "first_token_step", "first_token_s", "queue_time_s", "ttft_s"]


def crowded(*names: str, most: int = 12) -> Engine:
    """An engine whose pool is too small for its requests, of six tokens each."""
    engine = toy_engine(6, 4, max_model_len=24)
    for number, name in enumerate(names):
        prompt = list(range(10 * number, 10 * number + 6))
        engine.add_request(prompt, SamplingParams(max_tokens=most, ignore_eos=True), request_id=name)
    return engine


def of(recorder: Recorder, name: str) -> Any:
    """The row of a request in the frame of requests."""
    frame = frames.sequences(recorder)
    return frame[frame["request_id"] == name].iloc[0]


def recorded(items: Items, **options: int) -> Recorder:
    recorder = Recorder(**options)
    for item in items:
        recorder.push(item)
    return recorder


def random_run(seed: int, **options: int) -> Recorder:
    """With preemptions, aborts and requests that end in an error; one in three with steps that overlap."""
    work, recorder = make_workload(seed, overlap=seed % 3 == 0), Recorder(**options)
    work.engine.subscribe(recorder)
    run_workload(work)
    return recorder


def firsts(records: list[StepRecord]) -> dict[int, tuple[First, First]]:
    """seq_id -> (step, time) of its first admission and of its first token, of a run from its begin, row by row."""
    admitted, tokens = dict[int, First](), dict[int, First]()
    for record in records:
        for seq_id in record.planned.admitted.seq_id:
            admitted.setdefault(seq_id, (record.step, planned_time(record)))
        for seq_id in record.committed.seq_id:
            tokens.setdefault(seq_id, (record.step, record.time))
    unknown = (None, None)
    return {seq_id: (admitted[seq_id], tokens.get(seq_id, unknown)) for seq_id in admitted}


def told(info: RequestInfo) -> tuple[First, First]:
    return (info.admitted_step, info.admitted_time), (info.first_token_step, info.first_token_time)


def test_a_recorder_that_comes_later_does_not_know_what_came_first() -> None:
    engine, full, late = crowded("a", "b"), Recorder(), Recorder()
    engine.subscribe(full)
    for _ in range(4):
        engine.step()
    engine.subscribe(late)
    engine.add_request([40, 41], SamplingParams(max_tokens=2), request_id="new")
    run_to_end(engine)
    assert of(full, "b")["num_preemptions"] == 1, "it is admitted again while the late one records"
    for name in ("a", "b"):
        assert (of(full, name)["admitted_step"], of(full, name)["first_token_step"]) == (0, 0)
        assert of(late, name)[FIRSTS].isna().all()
        assert of(late, name)["finish_step"] == of(full, name)["finish_step"]
    assert of(late, "new")[FIRSTS].tolist() == of(full, "new")[FIRSTS].tolist()
    figures = compare({"late": late})["late"]
    assert figures["time to first token, median, s"] == of(full, "new")["ttft_s"] > 0
    assert figures["queue time, median, s"] == of(full, "new")["queue_time_s"]


def test_one_that_is_in_its_prefill_still_gets_its_first_token() -> None:
    """And one that waits its first admission: only what is past is unknown."""
    engine, full, late = toy_engine(20, 4, max_num_batched_tokens=4, max_num_seqs=1), Recorder(), Recorder()
    engine.subscribe(full)
    for name in ("prefill", "waits"):
        engine.add_request(list(range(10)), SamplingParams(max_tokens=3), request_id=name)
    engine.step()
    engine.subscribe(late)
    run_to_end(engine)
    assert math.isnan(of(late, "prefill")["admitted_s"]) and of(full, "prefill")["admitted_step"] == 0
    assert of(late, "prefill")["ttft_s"] == of(full, "prefill")["ttft_s"] > 0
    assert of(late, "waits")[FIRSTS].tolist() == of(full, "waits")[FIRSTS].tolist()


@pytest.mark.parametrize("seed", range(30))
def test_wherever_recording_begins_what_came_before_is_unknown(seed: int, tmp_path: Path) -> None:
    full, rng = random_run(seed), random.Random(seed)
    records = full.records
    truth = firsts(records)
    assert {seq_id: told(info) for seq_id, info in full.requests.items() if seq_id in truth} == truth
    for cut in {0, *(rng.randrange(len(records)) for _ in range(6))}:
        late = recorded([full.state_before(cut).snapshot(), *records[cut:]])
        assert late.requests and not late.begun
        for seq_id, info in late.requests.items():
            kept = [each if (each[0] or 0) >= cut else (None, None) for each in truth.get(seq_id, ((None, None),) * 2)]
            assert told(info) == tuple(kept)
        again = load_recording(save_recording(late, tmp_path / "late", replace=True)).recorder
        assert again.requests == late.requests


@pytest.mark.parametrize("seed", range(30))
def test_what_came_first_in_a_gap_is_unknown(seed: int, tmp_path: Path) -> None:
    full, rng = random_run(seed), random.Random(seed)
    records = full.records
    truth = firsts(records)
    for _ in range(6):
        gap, on = sorted(rng.sample(range(1, len(records)), 2))
        start, later = full.segments[0][0], full.state_before(on).snapshot()
        recorder = recorded([start, *records[:gap], later, *records[on:]])
        assert recorder.gaps == [(gap, on - 1)]
        for seq_id, info in recorder.requests.items():
            for part, first in zip(told(info), truth.get(seq_id, ((None, None),) * 2), strict=True):
                step = -1 if first[0] is None else first[0]
                assert part == ((None, None) if gap <= step < on else first)
        again = load_recording(save_recording(recorder, tmp_path / "gap", replace=True)).recorder
        assert again.requests == recorder.requests


@pytest.mark.parametrize("redact", [False, True])
def test_a_file_knows_what_came_before_its_first_step(redact: bool, tmp_path: Path) -> None:
    """Also one that was saved from a file."""
    engine, recorder = crowded("r0", "r1", "r2"), Recorder(12, snapshot_every=4)
    engine.subscribe(recorder)
    run_to_end(engine)
    before = frames.sequences(recorder)
    assert before["admitted_step"].min() == 0 < (recorder.first_step or 0) and len(recorder.begun) == len(before)
    first = load_recording(save_recording(recorder, tmp_path / "first", redact=redact))
    second = load_recording(save_recording(first.recorder, tmp_path / "second", redact=redact))
    for each in (first, second):
        assert frames.sequences(each.recorder).drop(columns="request_id").equals(before.drop(columns="request_id"))
        assert each.recorder.begun == recorder.begun
    figures = compare({"live": recorder, "file": second.recorder})
    assert figures["live"].equals(figures["file"])


@pytest.mark.parametrize("seed", range(40))
def test_files_of_random_runs_give_the_same_frames(seed: int, tmp_path: Path) -> None:
    """Of recorders that keep the last steps alone, with steps in between that nobody recorded."""
    whole, rng = random_run(seed), random.Random(seed)
    records = whole.records
    items: Items = [whole.state_before(0).snapshot()]
    is_kept = True
    for record in records:
        if rng.random() < 0.1:
            is_kept = not is_kept
            if is_kept:
                items.append(whole.state_before(record.step).snapshot())
        if is_kept:
            items.append(record)
    recorder = Recorder(rng.choice([4, 8, 24, 60]), snapshot_every=rng.choice([1, 3, 8]))
    for number, item in enumerate(items):
        recorder.push(item)
        if number % 7 and item is not items[-1]:
            continue
        again = load_recording(save_recording(recorder, tmp_path / "run", replace=True)).recorder
        assert again.requests == recorder.requests and again.begun == recorder.begun
        assert frames.sequences(again).equals(frames.sequences(recorder))


def test_who_left_in_a_gap_goes_with_the_steps_before_it() -> None:
    engine, recorder = crowded("a", most=2), Recorder(4, snapshot_every=1)
    with engine.subscribe(recorder):
        engine.step()
    run_to_end(engine)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True), request_id="b")
    engine.subscribe(recorder)
    while recorder.first_step == 0:
        assert [info.finish_reason for info in recorder.requests.values()][:1] == ["unknown"]
        engine.step()
    assert [info.request_id for info in recorder.requests.values()] == ["b"]


def test_clearing_forgets_no_first_admission(tmp_path: Path) -> None:
    engine, full, cleared = crowded("a", "b", "c"), Recorder(), Recorder()
    engine.subscribe(full), engine.subscribe(cleared)
    for _ in range(4):
        engine.step()
    cleared.clear()
    assert {info.seq_id: told(info) for info in full.requests.values()} == {
        info.seq_id: told(info) for info in cleared.requests.values()
    }
    assert load_recording(save_recording(cleared, tmp_path / "cleared")).recorder.requests == cleared.requests
    run_to_end(engine)
    for name in ("a", "b", "c"):
        assert of(cleared, name)[FIRSTS].tolist() == of(full, name)[FIRSTS].tolist() and of(full, name)["ttft_s"] > 0
    # Another engine's requests have the same numbers.
    cleared.clear()
    cleared.push(toy_engine(6, 4).snapshot())
    assert cleared.requests == {} and cleared.begun == []


def test_what_is_recalled_of_a_request_that_is_not_there_is_passed_over() -> None:
    engine, recorder = crowded("a", "b", "c"), Recorder(12, snapshot_every=4)
    engine.subscribe(recorder)
    run_to_end(engine)
    late = recorded([recorder.segments[0][0], *recorder.records])
    late.recall([lifecycle.Beginning(99, 1, 1.0, 1, 1.0)])
    assert late.requests.keys() == recorder.requests.keys() and late.begun == []
    assert frames.sequences(late)[FIRSTS].isna().all(axis=None)


def told_all(directory: Directory, items: Items) -> Directory:
    """The directory itself, which may know some of it already."""
    for item in items:
        if isinstance(item, Snapshot):
            directory.start(item)
        else:
            directory.see(item)
    return directory


def test_an_interrupt_in_the_middle_of_a_record_leaves_nothing_half_known() -> None:
    engine, items = crowded("a", "b"), Items()
    engine.subscribe(items.append)
    for _ in range(2):
        engine.step()
    wanted = told_all(Directory(), items)
    assert wanted and all(None not in told(info)[0] for info in wanted.values())
    for number in range(1, 1000):
        directory, interrupt = Directory(), InterruptAt(number, (lifecycle.__file__,))
        before = sys.gettrace()
        try:
            sys.settrace(interrupt)
            told_all(directory, items)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert told_all(directory, items) == wanted
        if interrupt.left > 0:
            break
    assert 50 < number < 999, "each of its lines, and then one that is not there"


def test_what_a_file_says_of_beginnings_holds_no_word(tmp_path: Path) -> None:
    """It is in a redacted file as it is, so numbers are all there may be."""
    engine, recorder = crowded("secret", "word"), Recorder(4, snapshot_every=1)
    engine.subscribe(recorder)
    run_to_end(engine)
    assert recorder.begun and lifecycle.Beginning._fields == (
        *("seq_id", "admitted_step", "admitted_time", "first_token_step", "first_token_time"),
    )
    assert all(isinstance(each, int | float) for row in msgspec.to_builtins(recorder.begun) for each in row)
