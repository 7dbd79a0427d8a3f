"""J15: front ends that show widgets in their own ways, or not at all (googlecolab/colabtools#498, #587;
manzt/anywidget#63; vispy/jupyter_rfb#57).

Colab and VS Code can't be run here. What is known of them is played: a module ``google.colab`` as anywidget asks it,
the environment that VS Code sets, and a front end that delivers binary parts in any of the ways that are reported, or
drops them. What is not played, and not claimed: that the real ones load anywidget's module, which they fetch from a
CDN; that in Colab the messages of later cells reach a view of an earlier one (where they do not, the view stays at its
last frame); and that the real ones take it well when the output of an earlier cell is written again. Without
ipywidgets there are no views at all, and the magic says what to install. The page's side is tested in
widgets/wire.test.js and explorer.test.js, and how a view falls back to text in test_saved_view_reports.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from playwright.sync_api import Page, sync_playwright

from nvexplore.notebook.block_view import BlockView
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.why_view import WhyView
from tests.browser.bridge import FLAGS, Bridge
from tests.browser.demo_run import decode, demo_engine, demo_steps
from tests.browser.pages import BLOCKS, number, wait_for
from tests.comms import RecordedComm, comm_of, displayed, recorded_comms
from tests.conftest import RunPython
from tests.store_process import StoreProcess

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


COLAB = """
import sys, types, json
calls = []
colab = types.ModuleType("google.colab.output")
colab.enable_custom_widget_manager = lambda: calls.append(1)
colab._widgets = types.SimpleNamespace(_installed_url="https://colab.test/manager.js")
for name in ("google", "google.colab"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["google.colab.output"] = colab
"""
VS_CODE = "import json, os\nos.environ['VSCODE_PID'] = '1'\ncalls = []\n"
SHOWN = """
from tests.comms import displayed, recorded_comms, small_engine
with recorded_comms():
    engine = small_engine()
    explorer = displayed(engine)
    engine.step()
    data, metadata = explorer._repr_mimebundle_()
print(json.dumps([len(calls), sorted(data), metadata.get("application/vnd.jupyter.widget-view+json")]))
"""


@pytest.mark.parametrize("front_end", ["colab", "vs code"])
def test_j15_a_widget_and_what_stands_in_for_it_are_sent_everywhere(run_python: RunPython, front_end: str) -> None:
    """colabtools#498: custom widgets must be switched on there, which anywidget does once; both are sent at once."""
    code = (COLAB if front_end == "colab" else VS_CODE) + SHOWN
    calls, mimes, of_widget = json.loads(run_python(code, env={"PYTHONPATH": str(CHECKOUT)}).splitlines()[-1])
    assert mimes == ["application/vnd.jupyter.widget-view+json", "image/png", "text/plain"]
    is_colab = front_end == "colab"
    url = {"colab": {"custom_widget_manager": {"url": "https://colab.test/manager.js"}}}
    assert (calls, of_widget) == ((1, url) if is_colab else (0, None))


def test_j15_binary_goes_as_binary_until_a_page_says_that_none_arrives(comms: list[RecordedComm]) -> None:
    """colabtools#587, anywidget#63: then all of it is text in JSON: frames, deltas, answers, and what is saved."""
    engine = demo_engine()
    explorer = displayed(engine, decode=decode)
    steps = demo_steps(engine, 12)
    for _ in range(3):
        next(steps)
    explorer.flush()
    comm = comm_of(explorer)
    assert any(buffers for _, _, buffers in comm.sent)
    comm.sent.clear()
    comm.send_custom(type="resync", text=True)
    (_, update, buffers) = comm.sent[0]
    frame = update["state"]["frame"]
    assert buffers == [] and isinstance(frame["words"], str) and json.dumps(update)
    with closing(StoreProcess()) as store:
        assert store.receive(from_text(frame))["verdict"] == "frame"
        before = len(comm.sent)
        for _ in steps:
            explorer.flush()
        verdicts = set()
        for _, message, _ in comm.sent[before:]:
            if "frame" in message.get("state", ()):  # in place of a delta, each second
                assert store.receive(from_text(message["state"]["frame"]))["verdict"] == "frame"
            elif (told := message.get("content", {})).get("type") == "delta":
                delta = dict(zip(told["buffers"], told["texts"], strict=True)) | told
                verdicts.add(store.receive(from_text(delta))["verdict"])
        assert verdicts == {"delta"}
        shown = store.tell()
    assert shown["step"] == engine.next_step == 12 and shown["running"] == engine.snapshot().running
    comm.send_custom(type="ask", ask="1", what="prefix_view", id=-1)
    answer = comm.sent[-1][1]["content"]
    assert len(answer["texts"]) == len(answer["buffers"]) > 0 and not any(buffers for _, _, buffers in comm.sent)
    saved = ipywidgets.Widget.get_manager_state()["state"][explorer.model_id]
    assert saved.get("buffers", []) == [] and saved["state"]["frame"]["words"] == explorer._take_frame()["words"]


def from_text(message: dict[str, Any]) -> dict[str, Any]:
    """As the page reads it: what is base64 becomes bytes."""
    binary = ("rows", "tables", "words", "block_ids", "written", "waiting", "running", "steps", "entries")
    return {name: base64.b64decode(part) if name in binary else part for name, part in message.items()}


def test_j15_text_and_image_can_be_had_without_a_widget(comms: list[RecordedComm]) -> None:
    """jupyter_rfb#57: where a widget would come up empty, the reader chooses what needs none."""
    engine = demo_engine()
    explorer = displayed(engine, decode=decode)
    steps = demo_steps(engine, 5)
    for _ in range(4):
        next(steps)
    stills = [explorer.still(), BlockView(explorer).still(), WhyView(explorer).still()]
    next(steps)
    for still in stills:
        data, metadata = still._repr_mimebundle_()
        assert "\nafter step 3: " in repr(still) == data["text/plain"]
        assert set(data) == {"text/plain", "image/png"} - ({"image/png"} if still is stills[2] else set())
        assert set(metadata) <= set(data)
    assert repr(Explorer().still()) == "Explorer(no engine yet)"


# ---------------------------------------------------------------------- a real page in a front end of that kind


class NoBinary(Bridge):
    """A notebook page to which only JSON gets through. is_deaf: nor does Python hear what the page asks."""

    is_deaf = False

    def open(self) -> None:
        self._is_open = False
        self._outbox = []
        self.page.goto("http://nvexplore.test/")
        self.page.wait_for_function("() => window.ready")
        self._is_open = True
        self.page.evaluate("state => open_model(state, [], [])", self.comm.sent[0][1]["state"])

    def _to_page(self, data: dict[str, Any], buffers: list[bytes]) -> None:
        super()._to_page({**data, "buffer_paths": []}, [])

    def _from_page(self, message: dict[str, Any]) -> None:
        if not self.is_deaf:
            super()._from_page(message)


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_context(viewport={"width": 980, "height": 900}).new_page()
        page.set_default_timeout(10_000)
        yield page
        browser.close()


@pytest.mark.browser
def test_j15_a_page_without_binary_messages_says_so_and_gets_text(page: Page) -> None:
    """anywidget#63: the views came up empty, and only the console knew why."""
    bridge, engine = NoBinary(page, decode=decode), demo_engine()
    engine.subscribe(bridge.explorer.push)
    steps = demo_steps(engine, 20)
    bridge.is_deaf = True
    bridge.page.evaluate("names => show(names)", ["block_view"])
    bridge.explorer.start()
    next(steps)
    bridge.explorer.keyframe()
    warnings = page.locator(".nvx-warnings")
    expected = "binary data does not arrive (rows, tables, words, "
    wait_for(bridge, lambda: expected in " ".join(warnings.all_inner_texts()))
    assert warnings.get_attribute("role") == "alert" and "asked to send it as text" in warnings.inner_text()
    bridge.is_deaf = False
    bridge.explorer._on_message({"type": "resync", "text": True}, [])  # what was asked, late
    wait_for(bridge, lambda: warnings.count() == 0)
    for _ in steps:
        bridge.explorer.flush()
    bridge.explorer.keyframe()
    wait_for(bridge, lambda: page.locator(BLOCKS).count() == 1 and number(page.locator(BLOCKS), "step") == 20)
    state = engine.snapshot()
    words = [2 * ref + (hash_ is not None) for ref, hash_ in zip(state.ref_count, state.hash, strict=True)]
    assert bridge.store("[...store.words]") == words and bridge.store("store.gaps") == 0
    assert bridge.errors == [] and isinstance(bridge.explorer, Explorer)
