"""What the browser is told: as often as it can bear, never less than the engine's state, whatever gets lost."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import FoldError
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.mirror import STATUS
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine
from tests.store_process import StoreProcess


class Watch:
    """A feed on an engine, with a clock and a timer that stand still until they are moved."""

    def __init__(self, *, has_timer: bool = True, **limits: Any) -> None:
        self.now = 100.0
        self.messages: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.timer: float | None = None
        self.feed = Feed(
            self._sent, later=self._later if has_timer else lambda _: False, clock=lambda: self.now, **limits
        )

    def _sent(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.times.append(self.now)

    def _later(self, seconds: float) -> bool:
        assert self.timer is None
        self.timer = self.now + seconds
        return True

    def wait(self, seconds: float) -> None:
        """Let time pass; what was to be called back is."""
        end = self.now + seconds
        while self.timer is not None and self.timer <= end:
            self.now, self.timer = max(self.now, self.timer), None
            self.feed.tick()
        self.now = end

    def most_in_a_second(self) -> int:
        return max(sum(t <= other < t + 1.0 for other in self.times) for t in self.times)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def busy_engine(num_blocks: int = 40, num_seqs: int = 6, max_tokens: int = 500) -> Engine:
    engine = toy_engine(num_blocks, 4, max_num_batched_tokens=16, max_num_seqs=8)
    for i in range(num_seqs):
        engine.add_request([1 + i % 3] * (5 + i), greedy(min(max_tokens, 4 * num_blocks - 20)), request_id=f"r{i}")
    return engine


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
    assert sum(not m["full"] for m in watch.messages) > 60


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


# ---- what is told


def check(store: StoreProcess, feed: Feed) -> None:
    """The store holds what Python's fold holds."""
    mirror = feed.mirror
    assert mirror is not None
    state, told = mirror.state, store.tell()
    assert (told["step"], told["event"]) == (state.step, state.event)
    assert [word >> 1 for word in told["words"]] == state.ref_count
    assert [bool(word & 1) for word in told["words"]] == [h is not None for h in state.hash]
    assert told["owners"] == [sorted(owners) for owners in state.owners]
    assert sum(word < 2 for word in told["words"]) == len(state.free)
    assert told["waiting"] == state.waiting and told["running"] == state.running
    assert told["written"] == mirror.written
    assert sorted(seq["id"] for seq in told["sequences"]) == sorted([*state.sequences, *mirror.ended])
    for row in told["sequences"]:
        seq = mirror.find(row["id"])
        assert seq is not None
        ended = mirror.ended.get(row["id"])
        assert row["name"] == seq.request_id and row["table"] == seq.block_table
        assert row["status"] == (ended.status if ended else seq.status)
        assert row["ended"] == (ended.step if ended else -1) and row["born"] == mirror.born[row["id"]]
        assert (row["numPrompt"], row["numTokens"]) == (seq.num_prompt_tokens, len(seq.token_ids))
        assert (row["numCached"], row["numComputed"]) == (seq.num_cached_tokens, seq.num_computed_tokens)
        assert row["numPreemptions"] == seq.num_preemptions
    for block, fill in enumerate(told["fills"]):
        tokens = mirror.block_tokens(block)
        assert tokens is None or fill == len(tokens)
    columns = list(mirror.timeline.columns)
    assert [c["step"] for c in told["columns"][-len(columns) :]] == [c.step for c in columns]
    for theirs, ours in zip(told["columns"][-len(columns) :], columns, strict=True):
        entries = zip(ours.seq_id, ours.kind, ours.start, ours.count, strict=True)
        assert theirs["entries"] == [list(entry) for entry in entries]
    for seq_id, spans in told["spans"]:
        if spans and seq_id in state.sequences:
            assert spans[-1][2] == (state.sequences[seq_id].status == "waiting")


@pytest.fixture
def store() -> Iterator[StoreProcess]:
    process = StoreProcess()
    yield process
    process.close()


def random_life(engine: Engine, rng: random.Random, steps: int) -> Iterator[None]:
    """Steps with requests that come and go between them."""
    for _ in range(steps):
        while rng.random() < 0.4:
            length, most = rng.randint(1, 18), rng.randint(1, 12)
            prompt = [rng.randint(1, 2) for _ in range(length)]
            if engine.limits.blocks_for(length + most) <= engine.limits.num_blocks:
                engine.add_request(prompt, greedy(most))
        if engine.live and rng.random() < 0.1:
            engine.abort(rng.choice(list(engine.live)))
        if rng.random() < 0.02:
            engine.reset_prefix_cache()
        engine.step()
        yield


@pytest.mark.parametrize("seed", range(8))
def test_the_store_equals_the_fold_whatever_gets_lost(store: StoreProcess, seed: int) -> None:
    rng = random.Random(seed)
    engine = toy_engine(
        rng.randint(6, 24), rng.randint(1, 4), max_num_batched_tokens=rng.randint(3, 20), max_num_seqs=6
    )
    watch = Watch(max_steps=50, max_entries=120, max_finished=10)
    feed = watch.feed
    delivered = resyncs = 0
    with engine.subscribe(feed.push):
        feed.start()
        for _ in random_life(engine, rng, 150):
            watch.wait(rng.choice([0.0, 0.01, 0.05, 0.4]))
            if rng.random() < 0.05:
                feed.keyframe()
            if rng.random() < 0.05:
                feed.push(engine.snapshot())
            if rng.random() < 0.05:
                store.receive(feed.frame())  # a page that is reloaded asks out of turn
            for message in watch.messages[delivered:]:
                if rng.random() < 0.85:
                    store.receive(message)
            delivered = len(watch.messages)
            if rng.random() < 0.3:
                for _ in range(store.run_timers()):
                    resyncs += 1
                    feed.resync()
        feed.keyframe()
        watch.wait(3)
    store.receive(watch.messages[-1])
    check(store, feed)
    assert feed.mirror is not None
    assert feed.mirror.state.snapshot().same_state(engine.snapshot())
    assert resyncs < delivered / 3


def test_the_store_equals_the_fold_after_every_message(store: StoreProcess) -> None:
    engine, watch = toy_engine(14, 2, max_num_batched_tokens=9, max_num_seqs=5), Watch(max_finished=6)
    delivered = 0
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in random_life(engine, random.Random(5), 120):
            watch.wait(0.05)
            watch.feed.fold()
            for message in watch.messages[delivered:]:
                assert store.receive(message)["verdict"] in ("frame", "delta")
            delivered = len(watch.messages)
            check(store, watch.feed)
    assert store.tell()["gaps"] == 0
    assert sum(not m["full"] for m in watch.messages) > 80


def test_one_lost_message_costs_one_question(store: StoreProcess) -> None:
    engine, watch = busy_engine(), Watch(frame_s=1000)
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(20):
            engine.step()
            watch.wait(0.05)
        lost = watch.messages.pop(7)
        verdicts = [store.receive(message)["verdict"] for message in watch.messages]
        assert verdicts == ["frame"] + ["delta"] * 6 + ["gap"] * (len(verdicts) - 7)
        assert store.run_timers() == 1, "one question for all that did not fit"
        assert store.receive(lost)["verdict"] == "delta"
        watch.feed.resync()
        assert store.receive(watch.messages[-1])["verdict"] == "frame"
        check(store, watch.feed)
        assert store.run_timers() == 0 and store.run_timers() == 0, "healed: no further question"


def test_messages_out_of_order_need_no_question(store: StoreProcess) -> None:
    engine, watch = busy_engine(), Watch(frame_s=0.3)
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(20):
            engine.step()
            watch.wait(0.05)
    # The front end takes trait updates (frames) in a later turn than custom messages (deltas).
    late = next(i for i, m in enumerate(watch.messages) if i and m["full"])
    order = (
        watch.messages[:late]
        + watch.messages[late + 1 : late + 3]
        + [watch.messages[late]]
        + watch.messages[late + 3 :]
    )
    for message in order:
        store.receive(message)
    check(store, watch.feed)
    assert store.run_timers() == 0


def test_a_frame_holds_a_bounded_past(store: StoreProcess) -> None:
    engine = toy_engine(400, 4, max_num_seqs=4)
    watch = Watch(max_steps=20, max_entries=60, max_finished=5)
    with engine.subscribe(watch.feed.push):
        for i in range(30):
            engine.add_request([i + 1, 2, 3], greedy(12), request_id=f"request {i}")
        while engine.has_unfinished:
            engine.step()
    frame = watch.feed.frame()
    assert len(frame["names"]) == 5 and len(frame["entries"]) <= 60 * 16 and len(frame["steps"]) == 20 * 44
    store.receive(frame)
    check(store, watch.feed)


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
        assert message["full"] and len(message["steps"]) == 5 * 44
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


def test_another_engine_is_another_run(store: StoreProcess) -> None:
    watch = Watch()
    watch.feed.start()
    for engine in (busy_engine(), busy_engine(20, 2)):
        with engine.subscribe(watch.feed.push):
            for _ in range(4 if engine.limits.num_blocks == 40 else 2):
                engine.step()
        watch.wait(3)
    for message in watch.messages:
        store.receive(message)
    check(store, watch.feed)
    assert len(store.tell()["words"]) == 20 and len(store.tell()["columns"]) == 2


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


def test_the_codes_are_the_same_on_both_sides() -> None:
    from nvexplore.notebook import assets, timeline

    wire = (assets.widgets_folder() / "wire.js").read_text()
    assert "STATUS = [" + ", ".join(f'"{status}"' for status in STATUS) + "]" in wire
    assert f"PREFILL = {timeline.PREFILL}, RECOMPUTE = {timeline.RECOMPUTE}, DECODE = {timeline.DECODE}" in wire
    assert f"ADMITTED = {timeline.ADMITTED}, SAMPLES = {timeline.SAMPLES}" in wire
