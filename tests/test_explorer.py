"""The Explorer and its views without kernel or browser: what goes over the comm, and what is left when they go."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.notebook import rerun
from nvexplore.notebook.block_view import BlockView
from nvexplore.notebook.controls_view import ControlsView
from nvexplore.notebook.explorer import MAX_TEXT, Explorer
from nvexplore.notebook.schedule_view import ScheduleView
from nvexplore.sampling_params import SamplingParams
from tests.comms import RecordedComm, recorded_comms
from tests.fakes import toy_engine


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


def comm_of(widget: Any) -> RecordedComm:
    assert isinstance(widget.comm, RecordedComm)
    return widget.comm


def small_engine(prompt: tuple[int, ...] = (1, 2, 3, 4, 5, 6)) -> Engine:
    engine = toy_engine(16, 4, max_num_batched_tokens=8)
    engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), request_id="first")
    return engine


def displayed(engine: Engine, **options: Any) -> Explorer:
    explorer = Explorer(**options)
    engine.subscribe(explorer.push)
    explorer._repr_mimebundle_()
    return explorer


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
    name = "</script><b>\u202e\ud800"
    engine.add_request([1, 2], SamplingParams(max_tokens=5), request_id=name)
    explorer = displayed(engine)
    engine.step()
    explorer.flush()
    frame = comm_of(explorer).messages()[0]
    assert frame["names"] == [(0, "</script><b>\u202e?")]


# ---- what stays when they go


def test_an_explorer_holds_no_engine(comms: list[RecordedComm]) -> None:
    class Model:
        def decode(self, token_ids: list[int]) -> str:
            return "text"

        def command(self, name: str) -> None: ...

        def selected(self, kind: str, id: int) -> None: ...

    engine, model = small_engine(), Model()
    explorer = displayed(engine, decode=model.decode)
    explorer.on_command(model.command)
    explorer.on_select(model.selected)
    engine.step()
    gone = [weakref.ref(engine), weakref.ref(model)]
    del engine, model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    comm_of(explorer).send_custom(type="command", command="run")
    comm_of(explorer).send_custom(type="ask", ask="1", what="block", id=0)
    explorer.select("block", 1)
    assert texts(comm_of(explorer))[0]["text"] == "1 2 3 4", "ids, now that the tokenizer is gone"


def test_closing_frees_every_model(comms: list[RecordedComm]) -> None:
    instances = ipywidgets.widgets.widget._instances
    before, gone = len(instances), []
    explorer = displayed(small_engine())
    alive = len(instances)
    for _ in range(20):
        for kind in (ScheduleView, BlockView, ControlsView):
            view = kind(explorer)
            view._repr_mimebundle_()
            gone.append(weakref.ref(view))
            view.close()
            view.close()
            del view
    assert len(instances) == alive
    comms.clear()  # a kernel's comm manager forgets closed comms; this list does not
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []
    views = [BlockView(explorer), ScheduleView(explorer)]
    explorer.close()
    explorer.close()
    assert len(instances) == before and all(view.comm is None for view in views)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Pretend that a cell runs, for the n-th time."""
    now: list[tuple[str, int] | None] = [None]
    monkeypatch.setattr(rerun, "current_cell", lambda: now[0])

    def run(cell_id: str, count: int) -> None:
        now[0] = (cell_id, count)

    return run


def test_a_cell_that_runs_again_replaces_its_view(comms: list[RecordedComm], cell: Callable[[str, int], None]) -> None:
    explorer = displayed(small_engine())
    cell("a", 1)
    views = [BlockView(explorer), BlockView(explorer), ScheduleView(explorer)]
    cell("b", 2)
    other = BlockView(explorer)
    assert all(view.comm is not None for view in views)
    cell("a", 3)
    new = BlockView(explorer)
    assert [view.comm is None for view in (*views, other, new)] == [True, True, False, False, False]


def test_twenty_runs_of_a_cell_stay_small_in_the_saved_notebook(
    comms: list[RecordedComm], cell: Callable[[str, int], None]
) -> None:
    for count in range(20):
        cell("same", count)
        engine = toy_engine(96, 16, max_num_batched_tokens=128)
        explorer = displayed(engine)
        for i in range(8):
            params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
            engine.add_request([i + 1] * 30, params, request_id=f"request {i}")
        while engine.has_unfinished:
            engine.step()
        explorer.keyframe()
        for kind in (ScheduleView, BlockView):
            kind(explorer)._repr_mimebundle_()
    state = ipywidgets.Widget.get_manager_state()
    assert len(json.dumps(state)) < 1_000_000


def test_embedding_finds_the_explorer_behind_a_view(comms: list[RecordedComm]) -> None:
    from ipywidgets.embed import dependency_state

    explorer = displayed(small_engine())
    view = BlockView(explorer)
    assert explorer.model_id in dependency_state([view], drop_defaults=False)


def test_names(comms: list[RecordedComm]) -> None:
    explorer = Explorer()
    assert repr(explorer) == "Explorer(no engine yet)"
    small_engine().subscribe(explorer.push)
    view = ScheduleView(explorer)
    assert (view.view, view.key) == ("schedule_view", explorer.key)
    assert repr(view) == "ScheduleView of Explorer(step 0, 16 blocks)"
    assert view._repr_mimebundle_()[0]["text/plain"] == repr(view)
