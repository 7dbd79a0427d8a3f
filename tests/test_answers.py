"""What views ask of Python: which state it is answered from, how it travels, and what goes wrong."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import ipywidgets
import numpy as np
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook import answers
from nvexplore.notebook.answers import Answers, Context, packed, view_class
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.view import View, file_of
from tests.comms import RecordedComm, comm_of, displayed, recorded_comms, small_engine
from tests.watch import busy_engine

SEEN: list[Context] = []


class ProbeView(View):
    """A view that tells what it was given."""

    @staticmethod
    def answer(context: Context, id: int) -> dict[str, Any]:
        SEEN.append(context)
        if id == 13:
            raise ValueError("13 is no good")
        if id == 14:
            raise RuntimeError("broken")
        if id == 15:
            return {"what": object()}
        return {"step": context.step, "waiting": context.state.waiting, "bytes": [b"\x01\x02", {"more": b"\x03"}]}


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    SEEN.clear()
    yield
    ipywidgets.Widget.close_all()


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made


def answering(engine: Engine, **options: Any) -> tuple[Answers, Feed, Recorder]:
    feed, recorder = Feed(lambda message: None), Recorder(**options)
    engine.subscribe(recorder.push)
    engine.subscribe(feed.push)
    return Answers(feed, recorder, lambda: None), feed, recorder


def test_a_view_is_found_by_the_name_of_its_files() -> None:
    assert file_of(ProbeView) == "probe_view" and view_class("probe_view") is ProbeView
    assert view_class("block_view") is not None
    for name in ("no_such_view", "../view", "view", "os", ""):
        assert view_class(name) is None


def test_a_module_that_nobody_has_loaded_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(answers, "_views", {})
    monkeypatch.setattr(importlib, "import_module", loaded.append)
    view_class("schedule_view")
    assert loaded == ["nvexplore.notebook.schedule_view"]


def test_the_newest_step_is_answered_from_the_state_that_is_shown() -> None:
    engine = busy_engine()
    told, feed, recorder = answering(engine)
    for _ in range(5):
        engine.step()
    assert told.answer("probe_view", 0)["step"] == 4
    context = SEEN[-1]
    assert context.record is recorder.record_of(4) and context.recorder is recorder
    assert context.state.snapshot().same_state(engine.snapshot())
    assert (context.decode, context.memory, context.text([1, 2])) == (None, None, "1 2")
    late = engine.add_request([1, 2, 3], request_id="late")
    feed.push(engine.snapshot())
    assert late.seq_id in told.answer("probe_view", 0)["waiting"], "what happened since the step too"


def test_a_past_step_is_answered_from_its_own_state() -> None:
    engine = busy_engine(num_seqs=8)
    told, _, recorder = answering(engine)
    snapshots = []
    for _ in range(20):
        engine.step()
        snapshots.append(engine.snapshot())
    for step in (3, 19, 0):
        assert told.answer("probe_view", 0, step)["step"] == step
        context = SEEN[-1]
        assert context.record is recorder.record_of(step)
        assert context.state.snapshot().same_state(snapshots[step])
    block = snapshots[2].sequences.block_table[0][0]
    seq_id = snapshots[2].sequences.seq_id[0]
    then, now = told.answer("sequence", seq_id, 2), told.answer("sequence", seq_id)
    assert now["prompt"] == then["prompt"] and now["text"].startswith(then["text"]) and now["text"] != then["text"]
    hash_ = snapshots[2].hash[block]
    assert hash_ is not None and told.answer("block", block, 2)["hash"] == f"{hash_:016x}"


def test_before_anything_has_run_there_is_nothing_to_tell() -> None:
    feed = Feed(lambda message: None)
    told = Answers(feed, Recorder(), lambda: None)
    assert told.answer("probe_view", 0) == {} == told.answer("block", 0)
    assert told.answer("frame", 0, 0) == {"error": "step 0 can't be shown: nothing has been recorded yet"}
    engine = small_engine()
    engine.subscribe(feed.push)
    assert told.answer("probe_view", 0)["step"] == -1
    assert SEEN[-1].record is None


@pytest.mark.parametrize(("what", "id", "step"), [(3, 0, 0), ("block", "0", 0), ("block", True, 0), ("block", 0, None)])
def test_what_is_no_question_gets_no_answer(what: Any, id: Any, step: Any) -> None:
    told, _, _ = answering(small_engine())
    assert told.answer(what, id, step) == {}


def test_what_goes_wrong_is_told(comms: list[RecordedComm]) -> None:
    engine = small_engine()
    explorer = displayed(engine)
    engine.step()
    for number, id in enumerate((13, 14, 15)):
        comm_of(explorer).send_custom(type="ask", ask=str(number), what="probe_view", id=id)
    comm_of(explorer).send_custom(type="ask", ask="3", what="frame", id=7, step=7)
    contents = [data["content"] for _, data, _ in comm_of(explorer).sent if data.get("method") == "custom"]
    assert [content.get("error") for content in contents] == [
        "13 is no good",
        "RuntimeError: broken",
        "a object at what can't be sent to a page",
        "step 7 has not been made yet; the newest is 0",
    ]


def test_bytes_travel_as_buffers(comms: list[RecordedComm]) -> None:
    explorer = displayed(small_engine())
    comm_of(explorer).send_custom(type="ask", ask="a", what="probe_view", id=0)
    _, data, buffers = comm_of(explorer).sent[-1]
    content = data["content"]
    assert (content["type"], content["ask"], content["step"], content["waiting"]) == ("answer", "a", -1, [0])
    assert content["bytes"] == [None, {"more": None}] and content["buffers"] == [["bytes", 0], ["bytes", 1, "more"]]
    assert buffers == [b"\x01\x02", b"\x03"]


def test_what_can_be_sent_is_made_plain() -> None:
    value = {
        "numbers": [np.int64(3), np.float32(0.5), True, None, float("nan"), float("inf"), Fraction(1, 4)],
        2: ("a", "lone \ud800"),
        "part": memoryview(b"xy"),
    }
    assert packed(value) == (
        {"numbers": [3, 0.5, True, None, None, None, 0.25], "2": ["a", "lone ?"], "part": None},
        [["part"]],
        [b"xy"],
    )
    with pytest.raises(TypeError, match=r"a set at a\.1 can't be sent"):
        packed({"a": [0, {1}]})
