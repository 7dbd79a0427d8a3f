"""The Explorer without kernel or browser: what goes over its comm, and what comes back."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import ipywidgets
import pytest
from traitlets import TraitError

from nvexplore.explore.recorder import Recorder
from nvexplore.notebook.answers import MAX_TEXT
from nvexplore.notebook.block_view import BlockView
from nvexplore.notebook.explorer import POSITIONS, Explorer
from nvexplore.sampling_params import SamplingParams
from tests.comms import RecordedComm, comm_of, displayed, recorded_comms, small_engine
from tests.fakes import toy_engine


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


def texts(comm: RecordedComm, kind: str = "answer") -> list[dict[str, Any]]:
    contents = (data["content"] for _, data, _ in comm.sent if data.get("method") == "custom")
    return [content for content in contents if content.get("type") == kind]


# ---- messages


def test_nothing_is_sent_before_something_is_displayed(comms: list[RecordedComm]) -> None:
    engine, explorer = small_engine(), Explorer()
    engine.subscribe(explorer.push)
    view = BlockView(explorer)
    sent = len(comm_of(explorer).sent)
    for _ in range(5):
        engine.step()
    explorer.flush()
    explorer.keyframe()
    assert len(comm_of(explorer).sent) == sent
    view._repr_mimebundle_()
    (message,) = comm_of(explorer).messages()
    assert message["full"] and message["step"] == 5


def test_a_view_inside_another_widget_says_itself_that_it_is_shown(comms: list[RecordedComm]) -> None:
    engine, explorer = small_engine(), Explorer()
    engine.subscribe(explorer.push)
    engine.step()
    for _ in range(3):
        comm_of(explorer).send_custom(type="shown")
    assert [m["step"] for m in comm_of(explorer).messages()] == [1]


def test_frames_are_traits_and_deltas_are_custom_messages(comms: list[RecordedComm]) -> None:
    engine = small_engine()
    explorer = displayed(engine)
    for _ in range(4):
        engine.step()
        explorer.flush()
    explorer.keyframe()
    messages = comm_of(explorer).messages()
    assert [m["full"] for m in messages] == [True, False, False, False, False, True]
    assert [m["step"] for m in messages] == [0, 1, 2, 3, 4, 4]
    assert [m["seq"] for m in messages] == list(range(1, 7))
    assert all(isinstance(messages[-1][name], bytes) for name in ("rows", "tables", "words", "steps", "entries"))


def test_whoever_asks_for_the_state_gets_the_newest(comms: list[RecordedComm]) -> None:
    engine = small_engine()
    explorer = displayed(engine)
    for _ in range(3):
        engine.step()
    assert explorer.get_state()["frame"]["step"] == 3
    comm_of(explorer).sent.clear()
    comm_of(explorer).handle_msg({"content": {"data": {"method": "request_state"}}, "buffers": []})
    assert comm_of(explorer).messages()[-1]["step"] == 3


def test_a_question_about_what_was_lost_is_answered_with_everything(comms: list[RecordedComm]) -> None:
    engine = small_engine()
    explorer = displayed(engine)
    engine.step()
    comm_of(explorer).send_custom(type="resync")
    assert comm_of(explorer).messages()[-1]["full"] and comm_of(explorer).messages()[-1]["step"] == 1


def test_in_a_notebook_the_newest_step_is_shown_by_itself(comms: list[RecordedComm]) -> None:
    async def cell() -> None:
        engine = small_engine()
        explorer = displayed(engine)
        for _ in range(3):
            engine.step()
        await asyncio.sleep(0.2)
        assert comm_of(explorer).messages()[-1]["step"] == 3
        await asyncio.sleep(1.2)
        assert comm_of(explorer).messages()[-1]["full"]

    asyncio.run(cell())


def test_a_subscriber_that_is_closed_harms_nobody(comms: list[RecordedComm], caplog: Any) -> None:
    engine = small_engine()
    explorer = displayed(engine)
    engine.step()
    explorer.close()
    with caplog.at_level(logging.WARNING):
        engine.step()
    assert not caplog.records
    assert repr(explorer) == "Explorer(step 2, 16 blocks)"


# ---- selection, commands, questions


def test_a_selection_goes_both_ways(comms: list[RecordedComm]) -> None:
    explorer = Explorer()
    seen: list[tuple[str, int]] = []
    explorer.on_select(lambda kind, id: seen.append((kind, id)))
    comm_of(explorer).set_state(selection=["block", 7], cursor=3)
    assert explorer.selection == ("block", 7) and explorer.cursor == 3
    explorer.select("sequence", 2)
    assert comm_of(explorer).sent[-1][1]["state"]["selection"] == ("sequence", 2)
    assert seen == [("block", 7), ("sequence", 2)]
    with pytest.raises(Exception, match="selection"):
        explorer.select("everything", 1)


def test_a_token_is_selected_as_one_number(comms: list[RecordedComm]) -> None:
    explorer = Explorer()
    explorer.select("token", 3 * POSITIONS + 17)
    assert explorer.selection == ("token", 3 * POSITIONS + 17)


def test_which_views_are_open_is_a_trait_of_the_model(comms: list[RecordedComm]) -> None:
    explorer = Explorer()
    assert explorer.get_state()["panels"] == ["why_view", "throughput_view"]
    comm_of(explorer).set_state(panels=["memory_view"])
    assert explorer.panels == ["memory_view"] == explorer.get_state()["panels"]


# ---- the past


def test_a_past_step_is_a_frame_that_answers_a_question(comms: list[RecordedComm]) -> None:
    engine = small_engine()
    explorer = displayed(engine)
    for _ in range(6):
        engine.step()
    explorer.keyframe()
    comm, snapshot = comm_of(explorer), explorer.recorder.state_at(2).snapshot()
    comm.send_custom(type="ask", ask="p-1", what="frame", id=2, step=2)
    _, data, buffers = comm.sent[-1]
    content = data["content"]
    parts = {path[0]: buffer for path, buffer in zip(content["buffers"], buffers, strict=True)}
    live = comm.messages()[-1]
    assert {"type", "ask", "buffers"} <= set(content) and set(live) - {"oldest"} <= set(content)
    assert (content["step"], content["event"], content["run"]) == (3, snapshot.event, live["run"])
    words = [2 * n + (h is not None) for n, h in zip(snapshot.ref_count, snapshot.hash, strict=True)]
    assert parts["words"][::2] == bytes(words)
    assert explorer.get_state()["frame"]["step"] == 6, "the live state is another one"


def test_messages_tell_the_oldest_step_that_is_kept(comms: list[RecordedComm]) -> None:
    engine, recorder = small_engine(), Recorder(max_steps=4, snapshot_every=1)
    engine.subscribe(recorder.push)
    explorer = displayed(engine, recorder=recorder)
    for _ in range(6):
        engine.step()
        explorer.flush()
    assert explorer.recorder is recorder
    assert [message["oldest"] for message in comm_of(explorer).messages()] == [-1, 0, 0, 0, 0, 1, 2]


def test_the_cursor_is_set_from_python_too(comms: list[RecordedComm]) -> None:
    engine = small_engine()
    explorer = displayed(engine)
    for _ in range(4):
        engine.step()
    explorer.cursor = 2
    assert comm_of(explorer).sent[-1][1]["state"] == {"cursor": 2}
    explorer.look_at(3)
    with pytest.raises(ValueError, match="step 4 has not been made yet; the newest is 3"):
        explorer.look_at(4)
    assert comm_of(explorer).sent[-1][1]["state"] == {"cursor": 3}
    explorer.look_at(-1)
    assert comm_of(explorer).sent[-1][1]["state"] == {"cursor": -1}
    with pytest.raises(TraitError, match="cursor"):
        explorer.cursor = -2


def test_an_explorer_without_a_recorder_keeps_the_steps_of_one_engine(comms: list[RecordedComm]) -> None:
    first, second = small_engine(), small_engine((7, 8))
    explorer = displayed(first)
    for _ in range(3):
        first.step()
    with second.subscribe(explorer.push):
        second.step()
    assert (explorer.recorder.first_step, explorer.recorder.last_step) == (0, 0)
    comm_of(explorer).send_custom(type="ask", ask="p-1", what="sequence", id=0, step=0)
    assert texts(comm_of(explorer))[-1]["prompt"] == "7 8"


def test_answers_count_among_the_messages_of_a_second(comms: list[RecordedComm]) -> None:
    engine = small_engine()
    explorer = displayed(engine, decode=None)
    for number in range(29):
        comm_of(explorer).send_custom(type="ask", ask=str(number), what="block", id=0)
    sent = len(comm_of(explorer).sent)

    async def steps() -> None:
        for _ in range(5):
            engine.step()
            explorer.flush()

    asyncio.run(steps())
    assert len(comm_of(explorer).sent) == sent, "thirty have gone out: the next has to wait"


# ---- commands and questions


def test_answers_wait_where_a_second_has_enough_messages(comms: list[RecordedComm]) -> None:
    """A page may ask in bursts; all is answered, in its order, and no second has more messages than there may be."""
    comm, times = comm_of(displayed(small_engine(), max_hz=16)), list[float]()

    async def ask_in_a_burst() -> None:
        comm.on_send = lambda *message: times.append(asyncio.get_running_loop().time())
        for number in range(30):
            comm.send_custom(type="ask", what="block", id=0, ask=number)
        while len(texts(comm)) < 30:
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(ask_in_a_burst(), 20))
    assert [answer["ask"] for answer in texts(comm)] == list(range(30))
    assert times[-1] - times[0] > 1.0
    assert max(sum(begin <= time < begin + 0.99 for time in times) for begin in times) <= 16
    comm.on_send = None
    for number in range(30):  # where no event loop runs, nobody could come back to them
        comm.send_custom(type="ask", what="block", id=0, ask=30 + number)
    assert len(texts(comm)) == 60


def test_buttons_call_back_and_appear_with_the_first_callback(comms: list[RecordedComm]) -> None:
    explorer = Explorer()
    assert not explorer.has_controls
    pressed: list[str] = []
    explorer.on_command(pressed.append)
    assert explorer.has_controls
    for command in ("run", "pause", "step", "format the disk", None):
        comm_of(explorer).send_custom(type="command", command=command)
    assert pressed == ["run", "pause", "step"]


def test_text_is_told_when_it_is_asked_for(comms: list[RecordedComm]) -> None:
    hostile = "</script><img src=x> \u202e \ud800 🦜"
    engine = small_engine()
    explorer = displayed(engine, decode=lambda ids: hostile + " ".join(map(str, ids)))
    engine.step()
    comm = comm_of(explorer)
    table = next(iter(engine.live.values())).block_table
    comm.send_custom(type="ask", ask="p-1", what="block", id=table[0])
    comm.send_custom(type="ask", ask="p-2", what="sequence", id=0)
    block, sequence = texts(comm)
    assert block["ask"] == "p-1" and block["text"] == hostile.replace("\ud800", "?") + "1 2 3 4"
    assert block["hash"] is not None and int(block["hash"], 16) == engine.snapshot().hash[table[0]]
    assert sequence["prompt"].endswith("1 2 3 4 5 6") and sequence["text"].startswith("</script>")
    json.dumps(texts(comm), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("what", "id"), [("block", 999), ("block", -1), ("sequence", 999), ("file", 0), ("block", "0")]
)
def test_questions_about_nothing_are_answered_with_nothing(comms: list[RecordedComm], what: str, id: Any) -> None:
    explorer = displayed(small_engine())
    comm_of(explorer).send_custom(type="ask", ask="p-1", what=what, id=id)
    assert texts(comm_of(explorer)) == [{"type": "answer", "ask": "p-1"}]


def test_texts_are_cut_and_without_a_tokenizer_ids_are_shown(comms: list[RecordedComm]) -> None:
    engine = toy_engine(400, 4)
    engine.add_request(list(range(1, 900)), request_id="long")
    explorer = displayed(engine)
    engine.step()
    comm_of(explorer).send_custom(type="ask", ask="1", what="sequence", id=0)
    comm_of(explorer).send_custom(type="ask", ask="2", what="block", id=next(iter(engine.live.values())).block_table[1])
    sequence, block = texts(comm_of(explorer))
    assert len(sequence["prompt"]) == MAX_TEXT and sequence["prompt"].endswith("898 899")
    assert block["text"] == "5 6 7 8"


def test_hostile_request_ids_travel_as_text(comms: list[RecordedComm]) -> None:
    engine = toy_engine(16, 4)
    name = "</script><b>\u202e\ufdd0"
    engine.add_request([1, 2], SamplingParams(max_tokens=5), request_id=name)
    explorer = displayed(engine)
    engine.step()
    explorer.flush()
    frame = comm_of(explorer).messages()[0]
    assert frame["names"] == [(0, name)]
