"""Notebooks as a reader would run them, and what they show."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CHECKOUT = Path(__file__).parents[1]
Read = Callable[[str], nbformat.NotebookNode]


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()


@contextmanager
def side_by_side(names: list[str], folder: Path) -> Iterator[Read]:
    """Execute notebooks of ours, two at a time with a thread each: little of what they do could use more.

    Gives a function that waits for one, by its name, and returns it or raises what has stopped it.
    """
    env = os.environ | {
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": str(CHECKOUT),
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": "1",
    }

    def run(name: str) -> nbformat.NotebookNode:
        notebook: nbformat.NotebookNode = nbformat.read(CHECKOUT / "notebooks" / f"{name}.ipynb", as_version=4)
        resources = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources)
        with (folder / f"{name}.log").open("wb") as log:  # what the kernel's own process says; cells speak by messages
            asyncio.run(client.async_execute(env=env, stderr=log))  # a loop of this thread's own, closed in the end
        return notebook

    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(run, name) for name in names}
        yield lambda name: runs[name].result()
        for each in runs.values():
            each.cancel()


def shown(notebook: nbformat.NotebookNode, cell_id: str) -> str:
    """What a cell shows, as plain text."""
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    text, was_stream = "", False
    for out in cell.outputs:
        # What is printed comes in as many pieces as the kernel likes.
        is_stream = out.output_type == "stream"
        text += "\n" if text and not (is_stream and was_stream) else ""
        text += out.get("text") or out["data"]["text/plain"]
        was_stream = is_stream
    return text


def has_figure(notebook: nbformat.NotebookNode, cell_id: str) -> bool:
    """Whether a cell shows a plot."""
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return any("image/png" in out.get("data", {}) for out in cell.outputs)


def check_end(notebook: nbformat.NotebookNode) -> None:
    """What holds for all of ours: nothing is said on stderr, and all is closed in the end."""
    assert shown(notebook, "close") == "Session(no model is loaded)"
    streams = [out for cell in notebook.cells for out in cell.get("outputs", []) if out.output_type == "stream"]
    assert [out.text for out in streams if out.name == "stderr"] == []
