"""Past steps made again from records: as they were, cheaply, or with a reason why not."""

from __future__ import annotations

import time
from array import array
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.past import Known, Past
from nvexplore.notebook.timeline import RECOMPUTE
from nvexplore.sampling_params import SamplingParams
from tests.fakes import run_to_end, toy_engine
from tests.watch import busy_engine, greedy

LIMITS = {"max_steps": 512, "max_entries": 20_000, "max_finished": 256}
NEAR = Known(first_column=0)


def recorded(engine: Engine, steps: int, **options: Any) -> tuple[Recorder, Past]:
    recorder = Recorder(**options)
    with engine.subscribe(recorder.push):
        for _ in range(steps):
            engine.step()
    return recorder, Past(recorder, LIMITS)


def ints(data: bytes) -> list[int]:
    return array("i", data).tolist()


def test_a_frame_of_a_past_step_is_the_one_that_was_sent_then() -> None:
    engine, feed, recorder = busy_engine(num_seqs=8, max_tokens=20), Feed(lambda message: None), Recorder()
    engine.subscribe(recorder.push)
    engine.subscribe(feed.push)
    sent = []
    while engine.has_unfinished:
        if engine.next_step == 9:
            engine.abort("r3")
        engine.step()
        sent.append(feed.frame())
    assert feed.mirror is not None
    past, known = Past(recorder, feed.limits), Known.of(feed.mirror)
    assert len(known.ended) == 8
    for step, then in enumerate(sent):
        now = past.frame(step, known, feed.run)
        assert (now["steps"], now["entries"], now["seq"]) == (b"", b"", 0), "a page has these columns"
        other = {"steps", "entries", "seq"}
        assert {k: v for k, v in now.items() if k not in other} == {k: v for k, v in then.items() if k not in other}


def test_a_step_that_is_not_kept_says_so() -> None:
    with pytest.raises(ValueError, match="step 3 can't be shown: nothing has been recorded yet"):
        Past(Recorder(), LIMITS).check(3)
    engine = busy_engine()
    recorder, past = recorded(engine, 20, max_steps=8, snapshot_every=2)
    assert recorder.first_step == 12
    with pytest.raises(ValueError, match="step 11 is no longer kept; the oldest is 12"):
        past.frame(11, NEAR, 1)
    with pytest.raises(ValueError, match="step 20 has not been made yet; the newest is 19"):
        past.mirror(20, NEAR)
    for _ in range(3):
        engine.step()
    with engine.subscribe(recorder.push):
        engine.step()
    with pytest.raises(ValueError, match="without 20 to 22"):
        past.mirror(21, NEAR)
    assert past.mirror(23, NEAR).state.step == 24


def test_a_step_before_all_columns_brings_those_around_it() -> None:
    engine = toy_engine(400, 4, max_num_seqs=2)
    for i in range(2):
        engine.add_request([i + 1] * 5, greedy(400))
    _, past = recorded(engine, 400)
    for step, first, last in ((5, 0, 127), (100, 0, 191), (200, 128, 319), (399, 320, 399)):
        message = past.frame(step, Known(first_column=400), 1)
        heads = ints(message["steps"])
        assert heads[::12] == list(range(first, last + 1))
        assert message["step"] == step + 1
    assert past.frame(100, Known(first_column=100), 1)["steps"] == b""
    few = Past(past.recorder, {**LIMITS, "max_entries": 60})
    numbers = ints(few.frame(100, Known(), 1)["steps"])[::12]
    assert numbers == list(range(86, 116)), "as many as fit, and as many before as after"


def test_what_is_computed_again_is_known_also_from_a_preemption_long_before() -> None:
    engine = toy_engine(90, 4, max_num_seqs=2, max_num_batched_tokens=256, enable_prefix_caching=False)
    engine.add_request([1] * 20, greedy(300), request_id="long")
    engine.add_request([2] * 20, greedy(300), request_id="other")
    recorder, past = recorded(engine, 500)
    lost = {record.step: record.planned.preempted.num_lost for record in recorder if record.planned.preempted.number}
    ((preempted, (num_lost,)),) = lost.items()
    again = next(r.step for r in recorder if r.step > preempted and r.planned.admitted.number)
    assert again - preempted > 130, "further than the columns around a step reach"
    message = past.frame(again + 1, Known(first_column=500), 1)
    (index,) = (i for i, step in enumerate(ints(message["steps"])[::12]) if step == again)
    assert ints(message["steps"])[index * 12 + 2] == num_lost
    assert any(kind & 15 == RECOMPUTE for kind in ints(message["entries"]))


def test_the_text_of_a_block_is_found_though_its_sequence_has_gone() -> None:
    engine = toy_engine(12, 4)
    prompt = list(range(1, 11))
    engine.add_request(prompt, greedy(3))
    recorder = Recorder()
    engine.subscribe(recorder.push)
    engine.step()
    table = list(next(iter(engine.live.values())).block_table)
    run_to_end(engine)
    engine.add_request([99] * 3, greedy(5))
    run_to_end(engine)
    past, newest = Past(recorder, LIMITS), engine.next_step - 1
    for step in (0, 2, newest):
        mirror = past.mirror(step, NEAR)
        assert [past.block_tokens(block, mirror) for block in table[:2]] == [prompt[:4], prompt[4:8]]
    before_any = past.mirror(0, NEAR)
    assert past.block_tokens(11, before_any) == []
    late = Recorder()
    with engine.subscribe(late.push):
        engine.add_request([7], greedy(2))
        engine.step()
    late_past = Past(late, LIMITS)
    assert late_past.block_tokens(table[0], late_past.mirror(newest + 1, NEAR)) is None, "filled before"


def test_the_last_mirrors_are_kept_and_looking_changes_nothing() -> None:
    engine = busy_engine()
    recorder, past = recorded(engine, 20)
    first = past.mirror(3, NEAR)
    before = first.state.snapshot()
    assert past.mirror(3, NEAR) is first
    for step in (4, 5):
        past.mirror(step, NEAR)
    again = past.mirror(3, NEAR)
    assert again is not first and again.state.snapshot().same_state(before)
    assert first.state.snapshot().same_state(before)
    assert recorder.state_at(3).snapshot().same_state(before)


def test_who_came_when_is_known_without_the_live_mirror() -> None:
    engine = toy_engine(40, 4, max_num_seqs=8)
    recorder = Recorder()
    engine.subscribe(recorder.push)
    for i in range(4):
        engine.add_request([i + 1] * 3, greedy(4 + i))
        engine.step()
    run_to_end(engine)
    mirror = Past(recorder, LIMITS).mirror(engine.next_step - 2, Known())
    assert mirror.born == {0: 0, 1: 1, 2: 2, 3: 3}
    ends = {info.seq_id: info.finish_step for info in recorder.requests.values()}
    assert {seq_id: ended.step for seq_id, ended in mirror.ended.items()} == {i: ends[i] for i in (0, 1, 2)}


def test_a_million_blocks_take_less_than_a_second() -> None:
    engine = toy_engine(1_000_000, 16, max_num_batched_tokens=2048)
    for i in range(8):
        engine.add_request([i + 1] * 100, SamplingParams(max_tokens=20, ignore_eos=True))
    _, past = recorded(engine, 20)
    begin = time.process_time()  # seconds of this process: other programs may be using the machine
    message = past.frame(10, NEAR, 1)
    assert time.process_time() - begin < 1.0
    assert len(message["words"]) == 2_000_000 and message["step"] == 11
