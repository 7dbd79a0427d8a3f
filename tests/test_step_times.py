"""The time of steps that overlap is counted once, wherever it is summed up or shown, from the first kept step on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore import frames
from nvexplore.explore.compare import compare
from nvexplore.explore.plots import plot_throughput
from nvexplore.explore.plots.throughput import intervals
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.step_times import own, own_run, took
from nvexplore.explore.trace import trace
from nvexplore.notebook.describe import describe_step
from nvexplore.notebook.still_panel import Scene
from nvexplore.notebook.still_rates import rates, throughput_panel
from nvexplore.notebook.throughput_view import EngineClock
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine
from tests.toy_device import ToyDevice
from tests.workloads import make_workload, run_workload

NUM_STEPS, STEP = 100, 0.01
MS = 1_000_000  # in ns
Item = Snapshot | StepRecord


def timed(record: StepRecord, time: float, plan: int, run: int, commit: int) -> StepRecord:
    """The record with other times: when it was committed, and milliseconds of its parts."""
    committed = replace(record.committed, plan_ns=plan * MS, run_ns=run * MS, commit_ns=commit * MS)
    return replace(record, time=time, committed=committed)


def overlapped_items() -> list[Item]:
    """A device that takes 10 ms a step, without a pause: each but the first was planned when the one before began."""
    engine, items = toy_engine(256, 4, make_runner=ToyDevice, overlap=True), list[Item]()
    engine.subscribe(items.append)
    for i in range(4):
        engine.add_request([i + 1, 2, 3], SamplingParams(max_tokens=NUM_STEPS))
    while engine.has_unfinished:
        engine.advance()
    snapshot, *records = items
    assert isinstance(snapshot, Snapshot) and len(records) == NUM_STEPS
    found: list[Item] = [replace(snapshot, time=0.0)]
    for i, record in enumerate(records):
        assert isinstance(record, StepRecord) and record.planned.is_ahead is (i > 0)
        found.append(timed(record, (i + 1) * STEP, 1, 18 if i else 8, 1))
    return found


def recorded(items: list[Item], max_steps: int = 10_000) -> Recorder:
    recorder = Recorder(max_steps, snapshot_every=8)
    for item in items:
        recorder.push(item)
    return recorder


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return overlapped_items()


def test_what_a_step_adds_is_what_comes_after_the_end_of_the_one_before(items: list[Any]) -> None:
    record = timed(items[1], 2.0, 100, 300, 100)
    assert took(record) == pytest.approx(0.5)
    for before, whole, run in (
        (float("-inf"), 0.5, 0.3),  # nobody knows of a step before
        (1.4, 0.5, 0.3),  # a pause
        (1.5, 0.5, 0.3),
        (1.55, 0.45, 0.3),  # it was planned while that one ran
        (1.7, 0.3, 0.2),
        (1.95, 0.05, 0.0),  # that one ended while this one was committed
        (2.5, 0.0, 0.0),  # clocks that disagree
    ):
        assert own(record, before) == pytest.approx(whole), before
        assert own_run(record, before) == pytest.approx(run), before


def test_all_sums_are_the_time_that_went_by(items: list[Any]) -> None:
    recorder, span = recorded(items), NUM_STEPS * STEP
    table = frames.steps(recorder)
    assert (table.plan_us + table.run_us + table.commit_us).sum() == pytest.approx(1e6 * (2 * span - STEP))
    assert table.work_us.tolist() == pytest.approx([1e6 * STEP] * NUM_STEPS)
    assert compare({"it": recorder}).loc["tokens sampled a second of steps", "it"] == pytest.approx(4 / STEP)
    # The runner had all but the first plan and the commits.
    assert frames.sequences(recorder)["run_share_s"].sum() == pytest.approx(span - 0.001 * (NUM_STEPS + 1))
    clock = EngineClock(recorder.records)
    assert [clock.at(time) for time in (0.0, 0.105, span)] == pytest.approx([0.0, 0.105, span])
    slices = [event for event in trace(recorder)["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
    assert sum(event["dur"] for event in slices) == pytest.approx(1e6 * span)
    for clock_name in ("wall", "busy"):
        begin, end = intervals(table, clock_name)
        assert begin.tolist() == pytest.approx([i * STEP for i in range(NUM_STEPS)])
        assert end.tolist() == pytest.approx([(i + 1) * STEP for i in range(NUM_STEPS)])
        legend = plot_throughput(table, clock=clock_name).get_legend()
        assert legend is not None
        assert legend.get_texts()[1].get_text() == "decode: 396 tokens, 396/s on average"


def test_pauses_are_left_out_and_overlap_with_them(items: list[Any]) -> None:
    """A second goes by before step 50, which was not planned ahead then."""
    late = [replace(record, time=record.time + (record.step >= 50)) for record in items[1:]]
    late[50] = timed(late[50], late[50].time, 1, 8, 1)
    table = frames.steps([items[0], *late])
    assert table.work_us.tolist() == pytest.approx([1e6 * STEP] * NUM_STEPS)
    assert intervals(table, "busy")[1][-1] == pytest.approx(NUM_STEPS * STEP)
    assert intervals(table, "wall")[0][50] == pytest.approx(50 * STEP + 1)


def test_the_first_step_that_is_kept_knows_when_the_one_before_ended(items: list[Any]) -> None:
    recorder = recorded(items, max_steps=32)
    table = frames.steps(recorder)
    assert 0 < len(table) <= 32 and table.step[0] > 60
    assert table.work_us.tolist() == pytest.approx([1e6 * STEP] * len(table))
    share = frames.sequences(recorder)["run_share_s"].sum()
    assert share == pytest.approx(len(table) * (STEP - 0.001))
    assert frames.steps(items[:1] + items[1:4]).work_us.tolist() == pytest.approx([1e6 * STEP] * 3)


def test_after_steps_that_are_missing_it_counts_from_the_snapshot(items: list[Any]) -> None:
    whole, records = recorded(items), items[1:]
    again = replace(whole.state_at(59).snapshot(), time=0.597)
    kept = [items[0], *records[:30], again, *records[60:]]
    recorder = recorded(kept)
    assert recorder.gaps == [(30, 59)]
    assert frames.steps(recorder).work_us.tolist() == pytest.approx([1e4] * 30 + [1.3e4] + [1e4] * 39)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_steps_of_a_run_never_add_up_to_more_than_it_took(seed: int, overlap: bool) -> None:
    work, recorder = make_workload(seed, overlap=overlap), Recorder()
    work.engine.subscribe(recorder)
    run_workload(work)
    table = frames.steps(recorder)
    ((snapshot, records),) = recorder.segments
    whole = table.plan_us + table.run_us + table.commit_us
    assert (table.work_us <= whole + 1e-3).all() and (table.work_us > 0).all()
    assert table.work_us.sum() <= 1e6 * (records[-1].time - snapshot.time) * (1 + 1e-9)
    is_alone = [not record.planned.is_ahead for record in records]
    np.testing.assert_allclose(table.work_us[is_alone], whole[is_alone])
    assert frames.sequences(recorder)["run_share_s"].sum() <= table.work_us.sum() / 1e6
    begin, end = intervals(table, "wall")
    assert (begin[1:] >= end[:-1] - 1e-9).all()


def test_the_picture_of_the_throughput_view_counts_once_too(items: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvexplore.notebook.still_rates.RATE_STEPS", 20)
    recorder = recorded(items)
    np.testing.assert_allclose(rates(recorder.records).work_us, frames.steps(recorder).work_us)
    panel = throughput_panel(Scene(80, np.zeros(4, np.uint8), recorder))
    assert panel is not None
    ax = Figure().add_subplot()
    panel.paint(ax)
    assert ax.get_xlabel() == "seconds spent in the last 20 steps, up to step 80"
    assert ax.get_xlim() == pytest.approx((0, 20 * STEP))
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_texts()[1].get_text() == "decode: 80 tokens, 400/s on average"


def test_a_step_in_words_says_what_its_milliseconds_are(items: list[Any]) -> None:
    log: Any = SimpleNamespace(name=str, text=lambda _: "", num_blocks=256, max_num_seqs=16)
    alone, ahead = (describe_step(record, log).headline.split("; ")[-1] for record in items[1:3])
    assert alone == "10.0 ms"
    assert ahead == "20.0 ms from plan to end, overlapping step 0"


def test_a_request_that_waits_is_told_what_was_known_when_it_was_planned(items: list[Any]) -> None:
    """The plan of step 2 knows nothing of what step 1 frees; its count of free blocks does."""
    engine, found = toy_engine(4, 4, make_runner=ToyDevice, overlap=True), list[Any]()
    engine.subscribe(found.append)
    engine.add_request(range(7), SamplingParams(max_tokens=2))
    engine.add_request(range(50, 54), SamplingParams(max_tokens=4))
    engine.advance()
    engine.add_request(range(20, 32), SamplingParams(max_tokens=2))
    while engine.has_unfinished:
        engine.advance()
    log: Any = SimpleNamespace(name=str, text=lambda _: "", num_blocks=4, max_num_seqs=16)
    told = {record.step: describe_step(record, log).notes for record in found[1:] if record.planned.waiting.reason}
    is_ahead = {record.step: record.planned.is_ahead for record in found[1:]}
    assert any(is_ahead[step] for step in told)
    for step, notes in told.items():
        (why,) = [note for note in notes if note.startswith("waiting: ")]
        assert why.endswith(f" can be had, as far as was known while step {step - 1} ran") is is_ahead[step], why
