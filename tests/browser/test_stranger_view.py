"""The view that notebook 05 defines in a cell draws what its page's store says. That of the README: test_life.py."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from nvexplore.notebook import answers
from nvexplore.notebook.view import View
from tests.browser.bridge import Bridge
from tests.browser.pages import wait_for
from tests.comms import recorded_comms

pytestmark = pytest.mark.browser
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "05_look_inside.ipynb"
MOUNT = """async ([source, key]) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const el = document.body.appendChild(document.createElement("p")), { default: own } = await import(url);
    el.id = "own";
    window.remove_own = await own.render({ model: { get: (name) => (name === "key" ? key : undefined) }, el }); }"""


def test_the_view_of_the_notebook_draws_and_leaves(run: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = next(cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.id == "own")
    monkeypatch.setattr(answers, "_views", dict(answers._views))
    names: dict[str, type[View]] = {}
    source = cell.source.rpartition("\n")[0]
    assert cell.source.count("\n") < 40
    exec(compile(source, "05", "exec"), {"View": View, "Explorer": type(run.explorer), "__name__": "own"}, names)
    with recorded_comms():
        view = names["WrittenView"](run.explorer)
    listeners = run.store("store.listeners.size")
    run.page.evaluate(MOUNT, [view._esm, run.explorer.key])
    line = run.page.locator("#own")
    written = ", ".join(map(str, run.store("[...store.written]")))
    assert line.inner_text() == f"step 37 wrote into blocks: {written}"
    run.explorer.look_at(3)
    wait_for(run, lambda: line.inner_text().startswith("step 3 wrote into blocks: "))
    run.page.evaluate("() => window.remove_own()")
    assert run.store("store.listeners.size") == listeners
