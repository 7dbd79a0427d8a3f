"""Public bug reports about views where no widget can be shown: a saved notebook, a converted one, other front ends.

The ids are this project's own numbering; each docstring names the public thread it comes from.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ipywidgets
import nbformat
import pytest
from IPython.core.error import UsageError
from nbconvert import HTMLExporter, MarkdownExporter

from nvexplore.engine.engine import Engine
from nvexplore.notebook import fallback, still
from nvexplore.notebook.answers import Answers, view_class
from nvexplore.notebook.block_view import BlockView
from nvexplore.notebook.display import MODULES
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.prefix_view import PrefixView
from nvexplore.notebook.schedule_view import ScheduleView
from nvexplore.notebook.why_view import WhyView
from tests.browser.demo_run import HOSTILE, decode, demo_engine, demo_steps
from tests.comms import RecordedComm, comm_of, displayed, recorded_comms, small_engine
from tests.fakes import run_to_end, toy_engine
from tests.notebook_fakes import FakeLLM, Shell
from tests.store_process import StoreProcess
from tests.watch import greedy

WIDGET, PNG = "application/vnd.jupyter.widget-view+json", "image/png"
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


def demo(steps: int = 38) -> tuple[Engine, Explorer]:
    engine = demo_engine()
    explorer = displayed(engine, decode=decode)
    for _ in demo_steps(engine, steps):
        pass
    return engine, explorer


def data_of(widget: Any) -> dict[str, Any]:
    data: dict[str, Any] = widget._repr_mimebundle_()[0]
    return data


def saved(*widgets: Any) -> nbformat.NotebookNode:
    """A notebook with a cell a widget, as it is saved where the widgets' state is not."""
    cells = []
    for widget in widgets:
        data, metadata = widget._repr_mimebundle_()
        output = nbformat.v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
        cells.append(nbformat.v4.new_code_cell("view", outputs=[output], execution_count=1))
    notebook: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells)
    nbformat.validate(notebook)
    return notebook


class Page(HTMLParser):
    """The images and the visible words of a converted notebook."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


# ---------------------------------------------------------------------------------------------------------- J08


def test_j08_a_saved_notebook_has_text_and_image_of_the_step_it_showed(comms: list[RecordedComm]) -> None:
    """ipywidgets#1664, #3773: "Error displaying widget: model not found" was all that a saved view said."""
    engine, explorer = demo()
    for widget in (explorer, BlockView(explorer), ScheduleView(explorer)):
        data, metadata = widget._repr_mimebundle_()
        lines = data["text/plain"].split("\n")
        state = engine.snapshot()
        used = sum(ref > 0 for ref in state.ref_count)
        assert lines[0] == repr(widget)
        assert lines[1] == f"after step 37: {len(state.running)} running, {len(state.waiting)} waiting"
        assert lines[2].startswith(f"{used} of 96 blocks in use, ")
        assert lines[3].startswith("step 37 ran 6 decode rows: 6 of the budget's 128 tokens")
        image = base64.b64decode(data[PNG], validate=True)
        assert image.startswith(SIGNATURE) and len(image) <= fallback.MAX_BYTES
        assert metadata[PNG]["alt"] == "; ".join(lines) and set(data) == {WIDGET, PNG, "text/plain"}
    assert json.loads(json.dumps(data)) == data


def test_j08_the_words_of_a_view_are_those_of_the_step_that_is_looked_at(comms: list[RecordedComm]) -> None:
    """ipyreact#40: of why the words are what counts, so no image stands in their place."""
    _, explorer = demo()
    explorer.look_at(31)
    why, prefix = data_of(WhyView(explorer)), data_of(PrefixView(explorer))
    assert "\nafter step 31: " in why["text/plain"] and "\nafter step 31: " in prefix["text/plain"]
    assert "\nchat-4 was preempted for chat-3, which needed a block: " in why["text/plain"]
    told = explorer._answers.answer("prefix_view", -1, 31)
    assert f"{told['cached']} blocks in the prefix cache, in {len(told['runs'])} runs" in prefix["text/plain"]
    assert f"\n  {max(run['length'] for run in told['runs'])} blocks (" in prefix["text/plain"]
    assert PNG not in why and PNG in prefix
    explorer.look_at(26)  # a name with markup and a text that turns the direction stay text on one line each
    assert all(line.isprintable() for line in data_of(WhyView(explorer))["text/plain"].split("\n"))
    assert "</script><img src=x onerror=alert(1)> \\u202edrawkcab" in data_of(WhyView(explorer))["text/plain"]
    assert HOSTILE in [info.request_id for info in explorer.recorder.requests.values()]


def test_j08_what_is_saved_of_the_widgets_is_the_last_frame(comms: list[RecordedComm]) -> None:
    """ipympl#255, ipywidgets#3773: a view that is opened again without a kernel shows the last state, not none."""
    engine, explorer = demo(12)
    run_to_end(engine)
    explorer.keyframe()
    state = ipywidgets.Widget.get_manager_state()["state"][explorer.model_id]
    frame = dict(state["state"]["frame"])
    for buffer in state["buffers"]:
        if buffer["path"][0] == "frame":
            frame[buffer["path"][1]] = base64.b64decode(buffer["data"])
    explorer.close()  # the kernel is gone
    store = StoreProcess()
    assert store.receive(frame)["verdict"] == "frame"
    shown = store.tell()
    store.close()
    assert shown["step"] == engine.next_step == explorer._feed.mirror.state.step  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------------- J15


def test_j15_converted_notebooks_show_the_image_or_the_words(comms: list[RecordedComm]) -> None:
    """jupyter_rfb#57: where there is no kernel behind the page, a cell with a widget came out empty."""
    _, explorer = demo()
    notebook = saved(explorer, BlockView(explorer), WhyView(explorer))
    for template in ("lab", "classic"):  # of these two only the second one takes the words that describe an image
        html, _ = HTMLExporter(template_name=template).from_notebook_node(notebook)
        page = Page(html)
        images = [image for image in page.images if (image["src"] or "").startswith("data:image/png;base64,")]
        assert len(images) == 2 and "haiku got its token 21 of at most 60" in "".join(page.words)
    assert all("after step 37: 6 running" in (image.get("alt") or "") for image in images)
    markdown, resources = MarkdownExporter().from_notebook_node(notebook)
    assert len(resources["outputs"]) == 2 and markdown.count("![") == 2
    assert all(picture.startswith(SIGNATURE) for picture in resources["outputs"].values())
    assert "haiku got its token 21 of at most 60" in markdown


@pytest.mark.parametrize("name", MODULES)
def test_j15_every_view_has_something_for_a_front_end_without_widgets(comms: list[RecordedComm], name: str) -> None:
    """colabtools#498, #587: where custom widgets are off, the name of a class was all that was shown."""
    _, explorer = demo(20)
    view = view_class(MODULES[name])
    assert view is not None
    data = data_of(view(explorer))
    assert WIDGET in data and "\nafter step 19: " in data["text/plain"]
    assert PNG in data or len(data["text/plain"].split("\n")) > 5


def test_j15_before_anything_has_run_a_view_says_its_name(comms: list[RecordedComm]) -> None:
    """anywidget#63: no image of nothing, and no second to import what would draw it."""
    empty, explorer = Explorer(), displayed(small_engine())
    for widget in (empty, explorer, BlockView(explorer)):
        assert set(data_of(widget)) == {WIDGET, "text/plain"} and data_of(widget)["text/plain"] == repr(widget)


def test_j15_without_ipywidgets_the_magic_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """colabtools#498: without the right packages the views were silently missing."""
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "made", [])
    shell = Shell(str(tmp_path))
    shell.run("%load_ext nvexplore", "%nvx_load", "%nvx_add --max-tokens 3 hello", "%nvx_run")
    monkeypatch.setitem(sys.modules, "nvexplore.notebook.explorer", None)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    for module in [name for name in sys.modules if name.startswith("nvexplore.notebook.explorer")]:
        monkeypatch.delitem(sys.modules, module)
    try:
        with pytest.raises(UsageError, match=r'pip install "nvexplore\[notebook\]"'):
            shell.run("%nvx_watch")
        assert len(shell.run("%nvx_frame steps")) == 3  # all else works
    finally:
        shell.run("%unload_ext nvexplore")
        shell.close()


def test_j15_a_large_pool_is_drawn_coarsely_and_a_broken_image_keeps_no_widget_away(
    comms: list[RecordedComm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """colabtools#587: what a front end can't do must not hide the rest; and what is saved must stay small."""
    engine = toy_engine(200_000, 4, max_num_batched_tokens=4_000)
    explorer = displayed(engine)
    for i in range(3):
        engine.add_request([i] * 4_000, greedy(5))
        engine.step()
    image = base64.b64decode(data_of(explorer)[PNG])
    states = fallback.block_states(explorer._feed.mirror.state)  # type: ignore[union-attr]
    pixels, a_cell = still.block_map(states)
    assert a_cell == 4 and pixels.shape[0] * pixels.shape[1] * a_cell >= 200_000 and len(image) < 60_000
    monkeypatch.setattr(still, "draw", lambda *arguments: 1 / 0)
    data, widget = data_of(explorer), WhyView(explorer)
    assert WIDGET in data and PNG not in data and data["text/plain"] == repr(explorer)
    monkeypatch.setattr(Answers, "answer", lambda *arguments: {"error": "no <b>reason</b>"})
    assert data_of(widget)["text/plain"].endswith("\nno <b>reason</b>")
    monkeypatch.setattr(still, "draw", lambda *arguments: bytes(fallback.MAX_BYTES + 1))
    assert PNG not in data_of(explorer) and "after step 2" in data_of(explorer)["text/plain"]
    assert comm_of(explorer).messages()
