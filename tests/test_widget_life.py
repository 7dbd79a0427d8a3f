"""Views come and go: what they leave in the kernel and in the saved notebook."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator

import ipywidgets
import pytest
from ipywidgets.embed import dependency_state

from nvexplore.notebook import rerun
from nvexplore.notebook.block_view import BlockView
from nvexplore.notebook.controls_view import ControlsView
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.schedule_view import ScheduleView
from nvexplore.sampling_params import SamplingParams
from tests.comms import RecordedComm, comm_of, displayed, recorded_comms, small_engine
from tests.fakes import toy_engine


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


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
    assert comm_of(explorer).sent[-2][1]["content"]["text"] == "1 2 3 4", "ids, now that the tokenizer is gone"


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
