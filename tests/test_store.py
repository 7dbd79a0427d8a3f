"""The store in the browser holds what Python's fold of the records holds, whatever gets lost."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.notebook import assets, timeline
from nvexplore.notebook.explorer import POSITIONS
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.mirror import STATUS
from tests.fakes import toy_engine
from tests.store_process import StoreProcess
from tests.watch import Watch, busy_engine, greedy


def check(store: StoreProcess, feed: Feed) -> None:
    """The store holds what Python's fold holds."""
    mirror = feed.mirror
    assert mirror is not None
    state, told = mirror.state, store.tell()
    assert (told["step"], told["event"]) == (state.step, state.event)
    assert [word >> 1 for word in told["words"]] == state.ref_count
    assert [bool(word & 1) for word in told["words"]] == [h is not None for h in state.hash]
    assert told["owners"] == [sorted(state.owners.get(block, ())) for block in range(state.num_blocks)]
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
            watch.wait(0.06)
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
            watch.wait(0.06)
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
            watch.wait(0.06)
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
    assert len(frame["names"]) == 5 and len(frame["entries"]) <= 60 * 16 and len(frame["steps"]) == 20 * 48
    store.receive(frame)
    check(store, watch.feed)


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


def test_the_codes_are_the_same_on_both_sides() -> None:
    wire = (assets.widgets_folder() / "wire.js").read_text(encoding="utf-8")
    assert "STATUS = [" + ", ".join(f'"{status}"' for status in STATUS) + "]" in wire
    for name in ("PREFILL", "RECOMPUTE", "DECODE", "PREEMPTED", "ADMITTED", "SAMPLES"):
        assert re.search(rf"\b{name} = {getattr(timeline, name)}\b", wire), name
    assert f"POSITIONS = 2 ** {POSITIONS.bit_length() - 1};" in wire and POSITIONS.bit_count() == 1
