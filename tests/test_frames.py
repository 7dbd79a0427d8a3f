"""Frames: exact numbers of a run made by hand, what must hold in random runs, columns and dtypes."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pandas as pd
import pytest

from nvexplore.engine.events import SlotSpans, Snapshot, StepRecord
from nvexplore.explore import frames
from nvexplore.explore.frames._ledger import BlockLedger
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.step_numbers import NUMBERS
from nvexplore.sampling_params import SamplingParams
from tests import hand_made
from tests.fakes import run_to_end, toy_engine
from tests.hand_made import A, B, C, D, E, F
from tests.toy_device import ToyDevice
from tests.workloads import make_workload, run_workload

NAMES = list(frames.COLUMNS)
NA = pd.NA


def values(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame[list(columns)].astype(object).itertuples(index=False)]


@pytest.fixture(scope="module")
def items() -> list[Snapshot | StepRecord]:
    return hand_made.items()


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_shows_every_column_with_its_meaning(name: str) -> None:
    document = getattr(frames, name).__doc__
    for column, (_, meaning) in frames.COLUMNS[name].items():
        assert f"    {column} " in document
        assert meaning in document


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["nothing", "a snapshot", "a run"])
def test_columns_and_dtypes_are_those_of_the_table(name: str, what: str, items: list[Any]) -> None:
    source = {"nothing": [], "a snapshot": items[:1], "a run": items}[what]
    frame = getattr(frames, name)(source)
    assert list(frame.columns) == list(frames.COLUMNS[name])
    for column, (dtype, _) in frames.COLUMNS[name].items():
        assert frame.dtypes[column] == dtype, column
    assert isinstance(frame.index, pd.RangeIndex)
    if what != "a run":
        assert len(frame) == (hand_made.NUM_BLOCKS if (name, what) == ("blocks", "a snapshot") else 0)


def test_a_table_takes_exactly_its_columns() -> None:
    with pytest.raises(ValueError, match="'block_id'"):
        frames.COLUMNS["slots"].frame({"row": [1]})


@pytest.mark.parametrize("name", NAMES)
def test_a_recorder_and_its_items_give_the_same_frame_and_stay_as_they_are(name: str, items: list[Any]) -> None:
    recorder = Recorder()
    for item in items:
        recorder.push(item)
    make = getattr(frames, name)
    pd.testing.assert_frame_equal(make(recorder), make(iter(items)))
    assert recorder.records == items[1:]


# ---------------------------------------------------------------- by hand


def test_steps(items: list[Any]) -> None:
    frame = frames.steps(items)
    assert frame["step"].tolist() == list(range(9))
    assert frame["time_s"].tolist() == [float(i) for i in range(1, 10)]
    expected = {
        "num_seqs": [2, 1, 2, 2, 1, 1, 1, 2, 1],
        "num_prefill_tokens": [8, 4, 0, 0, 0, 8, 1, 3, 8],
        "num_decode_tokens": [0, 0, 2, 2, 1, 0, 0, 0, 0],
        "num_recompute_tokens": [0, 0, 0, 0, 0, 8, 0, 0, 0],
        "budget": [8] * 9,
        "budget_used": [8, 4, 2, 2, 1, 8, 1, 3, 8],
        "num_sampled_tokens": [1, 1, 2, 2, 1, 0, 1, 2, 1],
        "num_waiting": [0, 1, 1, 0, 1, 0, 0, 0, 0],
        "num_running": [2, 2, 2, 2, 1, 1, 1, 2, 3],
        "num_used_blocks": [4, 4, 4, 4, 3, 3, 3, 3, 5],
        "num_shared_blocks": [0, 0, 0, 0, 0, 0, 0, 1, 1],
        "num_free_blocks": [1, 1, 1, 1, 2, 2, 2, 2, 0],
        "num_cached_blocks": [0, 0, 0, 0, 1, 0, 0, 1, 0],
        "num_allocated": [4, 0, 0, 0, 1, 3, 0, 2, 2],
        "num_hit_blocks": [0, 0, 0, 0, 0, 0, 0, 2, 0],
        "num_evicted": [0, 0, 0, 0, 0, 0, 0, 0, 1],
        "num_added": [2, 1, 0, 0, 0, 0, 0, 2, 1],
        "num_admitted": [2, 0, 0, 0, 0, 1, 0, 2, 1],
        "num_preempted": [0, 0, 0, 0, 1, 0, 0, 0, 0],
        "num_finished": [0, 0, 0, 0, 1, 0, 1, 0, 0],
        "num_aborted": [0, 0, 0, 1, 0, 0, 0, 0, 0],
        "plan_us": [10_000.0] * 9,
        "run_us": [80_000.0, 40_000.0, 20_000.0, 20_000.0, 10_000.0, 80_000.0, 10_000.0, 30_000.0, 80_000.0],
        "commit_us": [10_000.0] * 9,
        "eager_reason": ["by hand"] * 9,
        "prefill_backend": ["pen"] * 9,
        "decode_backend": ["paper"] * 9,
    }
    for name, column in expected.items():
        assert frame[name].tolist() == column, name
    assert frame["graph_size"].isna().all()
    assert frame["padding"].isna().all()
    assert frame["waiting_reason"].dropna().to_dict() == {1: "free_blocks"}


def test_sequences(items: list[Any]) -> None:
    frame = frames.sequences(items)
    assert values(frame, "seq_id", "request_id", "status", "finish_reason") == [
        (A, "a", "finished", "length"),
        (B, "b", "finished", "stop"),
        (C, "c", "finished", "abort"),
        (D, "d", "decode", NA),
        (E, "e", "decode", NA),
        (F, "f", "decode", NA),
    ]
    assert values(frame, "admitted_step", "first_token_step", "finish_step") == [
        (0, 0, 4),
        (0, 1, 6),
        (NA, NA, 3),
        (7, 7, NA),
        (7, 7, NA),
        (8, 8, NA),
    ]
    nan = math.nan
    expected = {
        "arrival_s": [0.25, 0.5, 1.5, 7.0, 7.5, 8.5],
        # planned 10 ms of commit and 10 ms a token of run before the commit
        "admitted_s": [0.91, 0.91, nan, 7.96, 7.96, 8.91],
        "first_token_s": [1.0, 2.0, nan, 8.0, 8.0, 9.0],
        "finish_s": [5.0, 7.0, 3.96, nan, nan, nan],
        "queue_time_s": [0.66, 0.41, nan, 0.96, 0.46, 0.41],
        "ttft_s": [0.75, 1.5, nan, 1.0, 0.5, 0.5],
        # a's tokens come at 1, 3, 4, 5 seconds; b's at 2, 3, 4, 7
        "inter_token_mean_s": [4 / 3, 5 / 3, nan, nan, nan, nan],
        "inter_token_max_s": [2.0, 3.0, nan, nan, nan, nan],
        "latency_s": [4.75, 6.5, 2.46, nan, nan, nan],
        "num_prompt_tokens": [6, 6, 12, 5, 6, 8],
        "num_completion_tokens": [4, 4, 0, 1, 1, 1],
        "num_cached_tokens": [0, 0, 0, 4, 4, 0],
        "num_preemptions": [0, 1, 0, 0, 0, 0],
        "num_run_tokens": [9, 17, 0, 1, 2, 8],
        "num_recomputed_tokens": [0, 8, 0, 0, 0, 0],
        "run_share_s": [0.09, 0.17, 0.0, 0.01, 0.02, 0.08],
    }
    for name, column in expected.items():
        assert frame[name].tolist() == pytest.approx(column, nan_ok=True), name


def test_the_shares_of_all_requests_add_up_to_the_steps(items: list[Any]) -> None:
    assert frames.sequences(items)["run_share_s"].sum() == pytest.approx(frames.steps(items)["run_us"].sum() / 1e6)


def test_blocks(items: list[Any]) -> None:
    assert values(frames.blocks(items, 7), *frames.COLUMNS["blocks"]) == [
        (0, "used", 1, (E,), 2, NA, 1, True),
        (1, "used", 1, (D,), 1, NA, 1, True),
        (2, "cached", 0, (), 4, "00000000000000b1", NA, False),
        (3, "shared", 2, (D, E), 4, "00000000000000a0", 0, False),
        (4, "free", 0, (), 0, NA, NA, False),
    ]
    # b holds block 2 and 3 before its first tokens are written into the second of them
    assert values(frames.blocks(items, 0), "state", "num_tokens", "is_written")[2:4] == [
        ("used", 2, True),
        ("used", 0, False),
    ]
    assert frames.blocks(items).equals(frames.blocks(items, 8))


def test_slots(items: list[Any]) -> None:
    assert values(frames.slots(items, 7), *frames.COLUMNS["slots"]) == [
        (0, D, "d", 7, 4, 1, 1, 0, 4, True),
        (1, E, "e", 8, 4, 1, 0, 0, 0, True),
        (1, E, "e", 8, 5, 1, 0, 1, 1, True),
    ]
    # the tokens sampled in step 2 run in step 3, in which b's block 3 becomes full
    assert values(frames.slots(items, 3), *frames.COLUMNS["slots"]) == [
        (0, A, "a", 12, 7, 1, 1, 3, 7, False),
        (1, B, "b", 22, 7, 1, 3, 3, 15, False),
    ]
    assert frames.slots(items).equals(frames.slots(items, 8))


def test_slots_follow_a_scattered_block_table() -> None:
    start = hand_made.snapshot()
    table = [4, 5, 9, 3, 11]
    sequence = msgspec.structs.replace(
        start.sequences,
        seq_id=[0],
        request_id=["long"],
        arrival=[0.0],
        priority=[0],
        status=["prefill"],
        num_prompt_tokens=[38],
        num_cached_tokens=[0],
        num_computed_tokens=[1],
        num_preemptions=[0],
        token_ids=[list(range(38))],
        block_table=[table],
    )
    start = msgspec.structs.replace(
        start,
        block_size=8,
        num_blocks=12,
        running=[0],
        sequences=sequence,
        ref_count=[int(b in table) for b in range(12)],
        hash=[None] * 12,
        free=[b for b in range(12) if b not in table],
    )
    spans = [(0, 4, 1, 7), (0, 5, 0, 8), (0, 9, 0, 8), (0, 3, 0, 8), (0, 11, 0, 6)]
    writer = hand_made.Writer()
    writer.step(rows=[(0, 1, 37, True, False)], spans=spans, sampled=[], free=7, running=1)
    frame = frames.slots([start, *writer.records])
    expected = [*range(33, 40), *range(40, 48), *range(72, 80), *range(24, 32), *range(88, 94)]
    assert frame["slot"].tolist() == expected
    assert frame["token_id"].tolist() == frame["position"].tolist() == list(range(1, 38))


def test_a_token_the_host_did_not_know_yet_is_missing(items: list[Any]) -> None:
    ahead = msgspec.structs.replace(
        items[3].planned,
        start=[6, 7],
        context_len=[7, 8],
        spans=SlotSpans(row=[0, 1], block_id=[1, 3], offset=[2, 3], length=[1, 1]),
    )
    records = [*items[:3], msgspec.structs.replace(items[3], planned=ahead)]
    assert frames.slots(records, 2)["token_id"].tolist() == [11, NA]


def test_prefix_hits(items: list[Any]) -> None:
    unknown = (NA, NA, NA, NA)  # the records by hand say nothing of why
    assert values(frames.prefix_hits(items), *frames.COLUMNS["prefix_hits"]) == [
        (0, A, "a", 6, 6, 1, 0, 0, 0.0, NA, False, *unknown),
        (0, B, "b", 6, 6, 1, 0, 0, 0.0, NA, False, *unknown),
        (5, B, "b", 6, 9, 2, 0, 0, 0.0, NA, True, *unknown),
        (7, D, "d", 5, 5, 1, 1, 4, 1.0, B, False, *unknown),
        (7, E, "e", 6, 6, 1, 1, 4, 1.0, B, False, *unknown),
        (8, F, "f", 8, 8, 1, 0, 0, 0.0, NA, False, *unknown),
    ]


def test_prefix_hits_tell_why_there_were_no_more() -> None:
    """Two prompts in one step, one whose second block differs, and one whose block was evicted."""
    engine, recorder = toy_engine(3), Recorder()
    engine.subscribe(recorder.push)
    for prompts in ([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], [[1, 2, 9, 9, 9]], [[7] * 12], [[1, 2, 3, 4, 5]]):
        for prompt in prompts:
            engine.add_request(prompt, SamplingParams(max_tokens=1))
        run_to_end(engine)
    columns = ("step", "num_hit_tokens", "miss_cause", "miss_position", "miss_block_id", "miss_step")
    assert values(frames.prefix_hits(recorder), *columns) == [
        (0, 0, "unseen", NA, NA, NA),
        (0, 4, "partial", NA, NA, NA),
        (1, 0, "differs", 2, 0, NA),
        (2, 0, "unseen", NA, NA, NA),
        (3, 0, "evicted", NA, NA, 2),
    ]


def test_a_prompt_too_short_to_hit_has_no_rate() -> None:
    writer = hand_made.Writer()
    writer.step(
        added=[(0, "short", 0.0, [1, 2, 3, 4])],
        plan=[("admitted", 0, 0), ("allocated", 0, 0, None)],
        rows=[(0, 0, 4, True, True)],
        spans=[(0, 0, 0, 4)],
        sampled=[(0, 5)],
        free=4,
        running=1,
    )
    frame = frames.prefix_hits([hand_made.snapshot(), *writer.records])
    assert frame["num_possible_blocks"].tolist() == [0]
    assert frame["hit_rate"].isna().all()


def test_schedule(items: list[Any]) -> None:
    assert values(frames.schedule(items), *frames.COLUMNS["schedule"]) == [
        (0, 1, A, "prefill", 6),
        (0, 1, B, "prefill", 2),
        (1, 1, A, "idle", 0),
        (1, 1, B, "prefill", 4),
        (1, 2, C, "waiting", 0),
        (2, 1, A, "decode", 1),
        (2, 1, B, "decode", 1),
        (3, 1, A, "decode", 1),
        (3, 1, B, "decode", 1),
        (3, 1, C, "aborted", 0),
        (4, 1, A, "decode", 1),
        (4, 1, A, "finished", 0),
        (4, 1, B, "waiting", 0),
        (4, 1, B, "preempted", 0),
        (5, 1, B, "recompute", 8),
        (6, 1, B, "prefill", 1),
        (6, 1, B, "finished", 0),
        (7, 1, D, "prefill", 1),
        (7, 1, E, "prefill", 2),
        (8, 1, D, "idle", 0),
        (8, 1, E, "idle", 0),
        (8, 1, F, "prefill", 8),
    ]


@pytest.mark.parametrize("name", ["blocks", "slots"])
def test_an_unknown_step_is_named_with_the_steps_that_are_kept(name: str, items: list[Any]) -> None:
    with pytest.raises(ValueError, match="step 9 is not recorded: kept are steps 0 to 8"):
        getattr(frames, name)(items, 9)
    with pytest.raises(ValueError, match="step 0 is not recorded: nothing is"):
        getattr(frames, name)(items[:1], 0)
    with pytest.raises(TypeError, match=r"step=1\.5"):
        getattr(frames, name)(items, 1.5)


# ---------------------------------------------------------------- random runs


@pytest.mark.parametrize("seed", range(15))
def test_random_runs_add_up(seed: int) -> None:
    work = make_workload(seed)
    recorder = Recorder()
    seen: dict[int, Any] = {}
    work.engine.subscribe(recorder)

    def look(engine: Any) -> None:
        seen.update({seq.seq_id: seq for seq in engine.live.values()})

    run_workload(work, look)
    steps, sequences, schedule = frames.steps(recorder), frames.sequences(recorder), frames.schedule(recorder)
    ledger = BlockLedger(recorder.segments[0][0])
    again: dict[int, int] = {}
    num_recomputed = 0
    for i, record in enumerate(recorder):
        ledger.plan(record)
        assert work.engine.limits.num_blocks - ledger.num_used == record.planned.num_free_blocks
        assert steps["num_used_blocks"][i] == ledger.num_used
        ledger.commit(record)
        blocks = frames.blocks(recorder, record.step)
        count = blocks["state"].value_counts()
        assert (ledger.num_used, ledger.num_shared, ledger.num_cached) == (
            count["used"] + count["shared"],
            count["shared"],
            count["cached"],
        )
        slots = frames.slots(recorder, record.step)
        assert len(slots) == sum(record.planned.count)
        assert slots["slot"].is_unique
        # Recomputed is what runs at positions where the sequence had KV before, its own or the cache's.
        for seq_id, num_cached in zip(
            record.planned.admitted.seq_id, record.planned.admitted.num_cached_tokens, strict=True
        ):
            again[seq_id] = max(again.get(seq_id, 0), num_cached)
        for seq_id, start, end in zip(
            record.planned.seq_id, record.planned.start, record.planned.context_len, strict=True
        ):
            num_recomputed += max(0, min(end, again.get(seq_id, 0)) - start)
            again[seq_id] = max(again.get(seq_id, 0), end)
    assert steps["num_recompute_tokens"].sum() == num_recomputed == sequences["num_recomputed_tokens"].sum()
    assert steps["budget_used"].sum() == sequences["num_run_tokens"].sum() == schedule["num_tokens"].sum()
    assert steps["num_preempted"].sum() == (schedule["phase"] == "preempted").sum()
    run_us = steps["run_us"][steps["num_seqs"] > 0]  # a step that only tells of an abort ran nothing
    assert sequences["run_share_s"].sum() == pytest.approx(run_us.sum() / 1e6)
    for row in sequences.itertuples():
        seq = seen.get(row.seq_id)
        if seq is not None:
            assert row.status == "finished"
            assert row.num_completion_tokens == seq.num_completion_tokens
            assert row.num_preemptions == seq.num_preemptions
            assert row.finish_reason == seq.finish_reason
    check_schedule(schedule, recorder)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_counts_of_a_step_are_of_one_moment(seed: int, overlap: bool) -> None:
    """While it ran: after its plan and, where that was made ahead, after the commit of the step before."""
    work, recorder = make_workload(seed, overlap=overlap), Recorder()
    pool = work.engine.limits.num_blocks
    work.engine.subscribe(recorder)
    run_workload(work)
    table = frames.steps(recorder)
    assert (table.num_used_blocks + table.num_free_blocks == pool).all()
    assert (table.num_cached_blocks <= table.num_free_blocks).all()
    assert (table.num_shared_blocks <= table.num_used_blocks).all()
    for record, row in zip(recorder, table.itertuples(), strict=True):
        after = recorder.state_at(record.step)
        assert row.num_running == len(after.running) + row.num_finished
        assert row.num_waiting == len(after.waiting)
        for name in ("num_running", "num_waiting", "num_free_blocks"):  # a breakpoint sees the same
            assert NUMBERS[name](record) == getattr(row, name), name


def test_a_record_that_counts_its_free_blocks_earlier_gives_the_same_counts() -> None:
    """Records of old recordings told of a plan made ahead what its scheduler had seen."""
    engine, recorder = toy_engine(16, 4, make_runner=ToyDevice, overlap=True), Recorder()
    engine.subscribe(recorder)
    engine.add_request(range(30), SamplingParams(max_tokens=2))
    engine.add_request([7, 8], SamplingParams(max_tokens=5))
    while engine.has_unfinished:
        engine.advance()
    (snapshot, records), *_ = recorder.segments
    old = [msgspec.structs.replace(r, planned=msgspec.structs.replace(r.planned, num_free_blocks=3)) for r in records]
    pd.testing.assert_frame_equal(frames.steps([snapshot, *old]), frames.steps(recorder))


def check_schedule(schedule: pd.DataFrame, recorder: Recorder) -> None:
    """While a request lives it does exactly one thing in each step."""
    events = schedule["phase"].isin(["preempted", "finished", "aborted"])
    doing: dict[tuple[int, int], str] = {}
    for row in schedule[~events].itertuples():
        for step in range(row.step, row.step + row.num_steps):
            assert (step, row.seq_id) not in doing
            doing[step, row.seq_id] = row.phase
    for record in recorder:
        before = recorder.state_at(record.step)
        alive = {s for t, s in doing if t == record.step}
        assert alive == set(before.sequences) | set(record.committed.finished_seq_id)
        waiting = {s for s in alive if doing[record.step, s] == "waiting"}
        assert waiting == set(before.waiting)
