"""Ticked boxes in JupyterLab stop a run that a button has started, at exactly the step that comes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.conftest import Open
from tests.lab.test_lab import ADD, LOAD, shot

pytestmark = pytest.mark.lab


def test_a_ticked_box_stops_a_live_run_and_a_cell(open_notebook: Open, tmp_path: Path) -> None:
    notebook = open_notebook("stops.ipynb", [LOAD, ADD, "%nvx_watch"])
    notebook.run_all()
    page = notebook.page
    page.locator(".nvx-status:has-text('paused')").wait_for()
    page.locator(".nvx-stops summary").click()
    page.get_by_role("checkbox", name="hit").check()
    notebook.wait_for("loaded.session.stops.breakpoints", "('hit',)")
    page.click("[data-command=run]")
    page.locator(".nvx-status:has-text('stopped at step')").wait_for()
    shot(notebook, tmp_path, "stopped")
    until = "from nvexplore.explore.until import Until; until = Until.of('hit'); "
    steps = "print([r.step for r in loaded.session.recorder if until.matches(r)], loaded.session.llm.engine.next_step)"
    found, following = notebook.python(until + steps).split("] ")
    assert found == f"[{int(following) - 1}"
    assert (
        page.locator(".nvx-status")
        .inner_text()
        .startswith(f"stopped at step {int(following) - 1}: request second took")
    )
    page.get_by_role("checkbox", name="hit").uncheck()
    page.get_by_role("checkbox", name="finish").check()
    notebook.wait_for("loaded.session.stops.breakpoints", "('finish',)")
    told = "request first finished (length); request second finished (length) (a breakpoint)"
    assert told in notebook.python("print(loaded.session.run())")
    page.locator(".nvx-status:has-text('request first finished')").wait_for()
