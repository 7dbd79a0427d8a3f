"""The browser is told as often as it can bear, and what gets lost on the way from the engine is noticed."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import pytest

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import FoldError
from nvexplore.notebook.feed import Feed
from tests.fakes import toy_engine
from tests.watch import Watch, busy_engine, greedy

# ---- pace


def test_no_message_until_somebody_looks() -> None:
    watch, engine = Watch(), busy_engine()
    with engine.subscribe(watch.feed.push):
        for _ in range(200):
            engine.step()
        watch.feed.flush()
        watch.feed.keyframe()
        watch.wait(5)
    assert watch.messages == []
    watch.feed.start()
    assert [m["full"] for m in watch.messages] == [True]
    assert watch.messages[0]["step"] == engine.next_step


def test_a_flood_of_steps_is_thirty_messages_a_second_and_ends_with_the_last_step() -> None:
    watch, engine = Watch(), toy_engine(400, 4)
    engine.add_request([1, 2, 3], greedy(1500))
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        while engine.has_unfinished:
            engine.step()
            watch.now += 0.0005
            watch.wait(0)
        watch.feed.flush()
        watch.feed.keyframe()
        watch.wait(3)
    assert watch.most_in_a_second() <= 30
    assert len(watch.messages) < 40
    last = watch.messages[-1]
    assert last["full"] and last["step"] == engine.next_step
    assert [m["seq"] for m in watch.messages] == list(range(1, len(watch.messages) + 1))


def test_the_end_of_a_run_is_told_at_once() -> None:
    """A program that runs a notebook hears of nothing after the last cell."""
    watch, engine = Watch(), toy_engine(400, 4)
    engine.add_request([1, 2, 3], greedy(1500))
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(1010):
            engine.step()
            watch.wait(0.003)
        sent = len(watch.messages)
        watch.feed.keyframe()
    assert len(watch.messages) == sent + 1 and watch.messages[-1]["full"]
    assert watch.messages[-1]["step"] == engine.next_step and watch.most_in_a_second() <= 30


def test_many_flushes_stay_within_the_limit_and_the_last_step_is_shown() -> None:
    watch, engine = Watch(), busy_engine()
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(200):
            engine.step()
            watch.feed.flush()
            watch.feed.keyframe()
            watch.wait(0.004)
        watch.wait(3)
    assert watch.most_in_a_second() <= 30
    assert watch.messages[-1]["step"] == engine.next_step


def test_what_others_send_counts_in_the_limit_too() -> None:
    watch, engine = Watch(), busy_engine()
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for i in range(500):
            if i % 5 == 0:  # 20 a second
                watch.feed.note_message()
                watch.times.append(watch.now)
            engine.step()
            watch.wait(0.01)
        watch.wait(3)
    in_a_second = [sum(t <= other < t + 1.0 for other in watch.times) for t in watch.times]
    assert max(in_a_second[30:]) <= 31 and max(in_a_second) <= 40, "the feed gives way as soon as it has noticed"
    assert watch.messages[-1]["step"] == engine.next_step


def test_a_page_that_asks_leaves_no_second_with_more_than_thirty_messages() -> None:
    """As widgets/questions.js paces it: five views ask at once, and the next time half a second after the answers."""
    watch, engine = Watch(), toy_engine(400, 4)
    engine.add_request([1, 2, 3], greedy(1500))
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for i in range(600):
            if i % 52 == 1:
                for _ in range(5):
                    watch.feed.note_message()
                    watch.times.append(watch.now)
            engine.step()
            if i % 3 == 0:
                watch.feed.flush()
            watch.wait(0.01)
    assert watch.most_in_a_second() <= 30
    assert len(watch.messages) >= 6 * 18, "twenty a second are left"


def test_without_a_timer_a_flush_is_never_swallowed() -> None:
    watch, engine = Watch(has_timer=False), busy_engine()
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(100):
            engine.step()
            watch.feed.flush()
    assert watch.messages[-1]["step"] == engine.next_step


def test_the_newest_step_is_shown_and_then_saved_without_a_flush() -> None:
    watch, engine = Watch(), busy_engine()
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(3):
            engine.step()
        watch.wait(0.1)
        assert watch.messages[-1]["step"] == 3 and not watch.messages[-1]["full"]
        watch.wait(2)
    assert watch.messages[-1]["step"] == 3 and watch.messages[-1]["full"]
    count = len(watch.messages)
    watch.wait(60)
    assert len(watch.messages) == count and watch.timer is None, "at rest nothing ticks"


def test_a_frame_each_second_and_deltas_in_between() -> None:
    watch, engine = Watch(), busy_engine()
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(150):
            engine.step()
            watch.wait(0.02)
    frames = [t for t, m in zip(watch.times, watch.messages, strict=True) if m["full"]]
    assert len(frames) == 3 and all(1.0 <= b - a < 1.1 for a, b in pairwise(frames))
    assert sum(not m["full"] for m in watch.messages) > 50


def test_a_large_frame_comes_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvexplore.notebook.feed.FRAME_BYTES_PER_S", 10_000)
    watch, engine = Watch(), toy_engine(15_000, 1, max_num_batched_tokens=16)
    engine.add_request([1, 2], greedy(500))
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(100):
            engine.step()
            watch.wait(0.05)
    frames = [t for t, m in zip(watch.times, watch.messages, strict=True) if m["full"]]
    assert [3.0 <= b - a < 4.0 for a, b in pairwise(frames)] == [True]


@pytest.mark.parametrize("num_blocks", [96, 20_000])
def test_pushing_costs_microseconds(num_blocks: int) -> None:
    engine = toy_engine(num_blocks, 4, max_num_seqs=8)
    for i in range(8):
        engine.add_request([i + 1] * 5, greedy(30))
    items: list[Snapshot | StepRecord] = []
    engine.subscribe(items.append)
    while engine.has_unfinished:
        engine.step()
    sent: list[dict[str, Any]] = []
    costs: list[float] = []
    feed = Feed(sent.append)
    feed.start()
    for item in items:
        begin = time.perf_counter_ns()
        feed.push(item)
        costs.append((time.perf_counter_ns() - begin) / 1000)
    assert statistics.median(costs) < 30, "microseconds; 1 to 2 on a machine of its own"


# ---- trouble


def test_a_snapshot_between_steps_keeps_the_past() -> None:
    watch, engine = Watch(), busy_engine()
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(5):
            engine.step()
        engine.add_request([1, 2], greedy(3), request_id="new")
        engine.abort("r0")
        watch.feed.push(engine.snapshot())
        watch.feed.flush()
        message = watch.messages[-1]
        assert message["full"] and len(message["steps"]) == 5 * 48
        assert "new" in dict(message["names"]).values()
        mirror = watch.feed.mirror
        assert mirror is not None and mirror.ended[0].status == "abort"
        engine.step()
        watch.feed.fold()
        assert [c.step for c in mirror.timeline.columns] == list(range(6))
        assert mirror.state.snapshot().same_state(engine.snapshot())


def test_a_missing_record_asks_for_a_snapshot_and_repeated_ones_do_not_matter() -> None:
    engine, items = busy_engine(), []
    with engine.subscribe(items.append):
        for _ in range(8):
            engine.step()
    watch = Watch()
    for item in (*items[:4], items[3], items[2]):
        watch.feed.push(item)
    watch.feed.push(items[6])
    watch.feed.fold()
    with pytest.raises(FoldError):
        watch.feed.push(items[7])
    watch.feed.push(engine.snapshot())
    watch.feed.fold()
    mirror = watch.feed.mirror
    assert mirror is not None and mirror.state.step == 8
    assert not mirror.timeline.columns, "the steps in between are not known"


def test_recomputed_tokens_are_told_apart() -> None:
    engine = toy_engine(8, 2, max_num_batched_tokens=32, enable_prefix_caching=False)
    watch, records = Watch(), []
    engine.subscribe(watch.feed.push)
    engine.subscribe(records.append)
    for i in range(3):
        engine.add_request([i + 1] * 3, greedy(9), request_id=f"r{i}")
    while engine.has_unfinished:
        engine.step()
    watch.feed.fold()
    assert watch.feed.mirror is not None
    lost = sum(sum(r.planned.preempted.num_lost) for r in records[1:])
    columns = watch.feed.mirror.timeline.columns
    assert lost > 0 and sum(column.head[2] for column in columns) == lost
    total = sum(sum(r.planned.count) for r in records[1:])
    assert sum(sum(column.head[1:4]) for column in columns) == total


def test_tokens_of_a_block_are_found_also_after_their_sequence_has_gone() -> None:
    engine, feed = toy_engine(12, 4), Feed(lambda message: None)
    prompt = list(range(1, 11))
    with engine.subscribe(feed.push):
        engine.add_request(prompt, greedy(3))
        engine.step()
        feed.fold()
        assert feed.mirror is not None
        table = next(iter(feed.mirror.state.sequences.values())).block_table
        assert [feed.mirror.block_tokens(b) for b in table] == [prompt[:4], prompt[4:8], prompt[8:]]
        table = list(table)
        while engine.has_unfinished:
            engine.step()
        feed.fold()
        assert [feed.mirror.block_tokens(b) for b in table[:2]] == [prompt[:4], prompt[4:8]]
    late = Feed(lambda message: None)
    with engine.subscribe(late.push):
        late.fold()
        assert late.mirror is not None and late.mirror.block_tokens(table[0]) is None
