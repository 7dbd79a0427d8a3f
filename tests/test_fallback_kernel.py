"""A notebook that is run and saved tells of the state after the last run, also in the cell that displayed the view."""

from __future__ import annotations

import base64
import copy
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

CHECKOUT = Path(__file__).parents[1]
WIDGET, PNG = "application/vnd.jupyter.widget-view+json", "image/png"
STATE = "application/vnd.jupyter.widget-state+json"
LOAD = """import nvexplore.llm
from tests.notebook_fakes import FakeLLM
nvexplore.llm.LLM = FakeLLM
%load_ext nvexplore
loaded = %nvx_load
%nvx_add --max-tokens 40 --id first The bees in the garden
None"""


class Client(NotebookClient):
    """Notes when an output is written again: by the number of the cell that runs."""

    updates: list[int]

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.updates.append(cell_index)
        return super().process_message(msg, cell, cell_index)


@pytest.fixture
def own_ipython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    return tmp_path


def executed(folder: Path, *cells: str) -> tuple[nbformat.NotebookNode, list[int]]:
    """A notebook of these cells after ``LOAD``, run and read again from its file; and the cells with updates."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (LOAD, *cells)])
    resources = {"metadata": {"path": str(folder)}}
    client = Client(notebook, timeout=120, kernel_name="python3", resources=resources)
    client.updates = []
    client.execute()
    nbformat.write(notebook, folder / "saved.ipynb")
    return nbformat.read(folder / "saved.ipynb", as_version=4), client.updates


def output(notebook: nbformat.NotebookNode, cell: int) -> Any:
    """The one output of a cell."""
    (found,) = notebook.cells[cell].outputs
    return found


@pytest.mark.slow
def test_the_cell_of_a_view_tells_of_the_state_after_the_run(own_ipython: Path) -> None:
    loop = "for _ in range(12):\n    step = loaded.session.step()"
    next_step = "loaded.session.llm.engine.next_step"
    cells = ("%nvx_watch", "%nvx_watch prefix", "%nvx_step", loop, "1 + 1", "%nvx_run", next_step)
    notebook, updates = executed(own_ipython, *cells)
    steps = int(output(notebook, 7).data["text/plain"])
    assert updates == [3, 3, 4, 4, 6, 6], "once a cell that has made steps, however many, and for each view"
    for cell, name in ((1, "Explorer"), (2, "PrefixView")):
        data, metadata = output(notebook, cell).data, output(notebook, cell).metadata
        assert data["text/plain"].split("\n")[0].startswith(name)
        assert f"\nafter step {steps - 1}: 0 running, 0 waiting\n" in data["text/plain"]
        assert f"after step {steps - 1}: 0 running" in metadata[PNG]["alt"]
        assert base64.b64decode(data[PNG]).startswith(b"\x89PNG")
        assert data[WIDGET]["model_id"] in notebook.metadata.widgets[STATE]["state"], "the live view is still there"
    assert "in the prefix cache, in 1 run, the longest:" in output(notebook, 2).data["text/plain"]
    assert not [out for cell in notebook.cells for out in cell.outputs if out.output_type == "stream"]
    check_converted(notebook, steps)


def check_converted(notebook: nbformat.NotebookNode, steps: int) -> None:
    """nbconvert shows the picture where the widgets' state was not saved, and takes that state along where it was."""
    bare = copy.deepcopy(notebook)
    del bare.metadata["widgets"]
    html, _ = HTMLExporter(template_name="classic").from_notebook_node(bare)
    assert len(re.findall(r"<img[^>]*data:image/png;base64,", html, re.DOTALL)) == 2
    assert len(re.findall(rf'alt="Explorer[^"]*after step {steps - 1}: 0 running, 0 waiting', html)) == 1
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert html.count(WIDGET) >= 2 and f'"step": {steps}' in html


@pytest.mark.slow
def test_what_a_live_run_ends_with_and_a_close_are_told(own_ipython: Path) -> None:
    live = "run = %nvx_run --live\nawait loaded.session.runner.done()"
    notebook, _ = executed(own_ipython, "%nvx_watch why", live, "steps = loaded.session.llm.engine.next_step", "steps")
    steps = int(output(notebook, 4).data["text/plain"])
    text = output(notebook, 1).data["text/plain"]
    assert f"\nafter step {steps - 1}: 0 running" in text and PNG not in output(notebook, 1).data
    closed = "%nvx_step\nNone"
    notebook, updates = executed(own_ipython, "%nvx_watch why", closed, "%nvx_close")
    assert "\nafter step 0: 1 running" in output(notebook, 1).data["text/plain"] and updates == [2]
