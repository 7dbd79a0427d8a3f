"""JupyterLab and Notebook 7 from end to end: magics, kernel, comm, extension and browser, with nothing taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_axe import CONTRAST, EVERY_RULE, violations
from tests.lab.conftest import Open
from tests.lab.driver import APPS, LabNotebook

pytestmark = pytest.mark.lab
BLOCKS, SCHEDULE = ".nvx-blocks", ".nvx-schedule"
LOAD = "%load_ext nvexplore\nloaded = %nvx_load toy --num-kvcache-blocks 48 --max-num-batched-tokens 32\nloaded"
ADD = """%nvx_add --id first --max-tokens 24 --ignore-eos The same beginning for both, and then one end.
%nvx_add --id second --max-tokens 24 --ignore-eos The same beginning for both, and then another end."""


LONG = "%nvx_add --id long --max-tokens 500 --ignore-eos Go on and on."
PICKED = "picked = []\nloaded.session.explorer.on_select(lambda kind, id: picked.append((kind, id)))"
NUMBERED = (".nvx-why", ".nvx-prefix", ".nvx-slots", ".nvx-memory")  # what Python was asked for has its step
# Which level of heading comes before ours is the notebook's own affair.
AMONG_CELLS = {**EVERY_RULE, "rules": {**EVERY_RULE["rules"], "heading-order": {"enabled": False}}}
NUM_CELLS = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"


def shot(notebook: LabNotebook, tmp_path: Path, name: str) -> None:
    notebook.page.screenshot(path=tmp_path / f"{name}.png")


@pytest.mark.parametrize("app", APPS)
def test_a_session_with_every_view(open_notebook: Open, tmp_path: Path, app: str) -> None:
    """Drawn, clicked, driven by keys, stepped, run live, looked back at, dark, and loaded again."""
    cells = [LOAD, ADD, LONG, "%config NvExplore.live_hz = 50", "%nvx_watch all", "%nvx_step -n 12", PICKED]
    notebook = open_notebook("session.ipynb", cells, app)
    notebook.run_all()
    page = notebook.page
    for view in (SCHEDULE, BLOCKS, ".nvx-controls"):
        page.locator(f"{view}[data-step='12']").wait_for()
    assert page.locator(".jp-OutputArea-output:has-text('12 steps in')").count() == 1
    for name in ("Prefix cache", "Slots", "Memory"):
        page.locator(".nvx-toggles").get_by_role("button", name=name).click()
    for view in NUMBERED:
        page.locator(f"{view}[data-step='11']").wait_for()
    page.locator(".nvx-throughput[data-told='11']").wait_for()
    click_block_and_row(notebook)
    walk_with_keys(notebook)
    last = step_run_and_pause(notebook)
    look_back(notebook, last)
    shot(notebook, tmp_path, "light")
    assert violations(page, AMONG_CELLS) == []
    notebook.command("apputils:change-theme", theme="JupyterLab Dark")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    page.locator(f"{BLOCKS}[style*='color-scheme: dark']").wait_for()
    shot(notebook, tmp_path, "dark")
    assert violations(page, CONTRAST) == []
    # A page that is loaded again comes back at the right step with all its views, with the kernel alive.
    notebook.reload()
    for view in (BLOCKS, SCHEDULE):
        page.locator(f"{view}[data-step='{last}']").wait_for()
    for view in NUMBERED:
        page.locator(f"{view}[data-step='{last - 1}']").wait_for()
    notebook.python("loaded.session.run(max_steps=5)")
    page.locator(f"{SCHEDULE}[data-step='{last + 5}']").wait_for()


def click_block_and_row(notebook: LabNotebook) -> None:
    """A click reaches Python, and lights up in the other view."""
    page = notebook.page
    owner, block = notebook.python(
        "seq = loaded.session.llm.engine.live['second']; print(seq.seq_id, seq.block_table[-1])"
    ).split()
    columns, width, height = (notebook.number(BLOCKS, name) for name in ("columns", "cell-width", "cell-height"))
    place: Any = {"x": (int(block) % columns + 0.5) * width, "y": (int(block) // columns + 0.5) * height}
    page.locator(f"{BLOCKS} .nvx-field canvas").click(position=place)
    notebook.wait_for("picked", f"[('block', {block})]")
    notebook.wait_for("loaded.session.explorer.selection", f"('block', {block})")
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)
    # The bar at the left end of its owner's row, and of no other, has the accent colour.
    rows = {seq_id: left_edge(notebook, row) for row, seq_id in enumerate(("0", "1", "2"))}
    assert rows.pop(owner) not in rows.values()
    # The other way round: the label of a row.
    head, row_height = notebook.number(SCHEDULE, "head"), notebook.number(SCHEDULE, "row-height")
    page.locator(f"{SCHEDULE} .nvx-scroll canvas").click(position={"x": 40, "y": head + 0.5 * row_height})
    notebook.wait_for("picked[-1]", "('sequence', 0)")


def walk_with_keys(notebook: LabNotebook) -> None:
    """Keys move in the view that has the focus, and the notebook around it takes none of them for a command."""
    page = notebook.page
    num_cells = page.evaluate(NUM_CELLS)
    page.mouse.move(0, 0)
    page.locator(f"{BLOCKS} .nvx-field canvas").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    notebook.wait_for("picked[-1]", "('block', 2)")
    page.locator(f"{SCHEDULE} .nvx-scroll canvas").focus()
    for key in ("ArrowDown", "Home", "Enter"):
        page.keyboard.press(key)
    notebook.wait_for("loaded.session.explorer.cursor", "0")
    page.keyboard.press("Escape")
    notebook.wait_for("loaded.session.explorer.cursor", "-1")
    assert page.evaluate(NUM_CELLS) == num_cells


def step_run_and_pause(notebook: LabNotebook) -> int:
    """The buttons; returns the number of steps that were made."""
    page = notebook.page
    page.click("[data-command=step]")
    page.locator(f"{BLOCKS}[data-step='13']").wait_for()
    page.click("[data-command=run]")
    page.wait_for_function(f"() => +document.querySelector('{BLOCKS}').dataset.step > 20")
    page.click("[data-command=pause]")
    page.locator(".nvx-status:has-text('paused')").wait_for()
    last = int(notebook.python("print(loaded.session.llm.engine.next_step)"))
    page.locator(f"{BLOCKS}[data-step='{last}']").wait_for()
    return last


def look_back(notebook: LabNotebook, last: int) -> None:
    """One step back, as it was, and on with the newest."""
    page = notebook.page
    cursor = page.locator(".nvx-cursor")
    cursor.get_by_role("button", name="Back").click()
    page.locator(f"{BLOCKS}[data-step='{last - 1}']").wait_for()
    assert page.locator(".nvx-step").inner_text().startswith(f"step {last - 2} of {last - 1}")
    notebook.wait_for("loaded.session.explorer.cursor", str(last - 2))
    cursor.get_by_role("button", name="Live").click()
    page.locator(f"{BLOCKS}[data-step='{last}']").wait_for()


def left_edge(notebook: LabNotebook, row: int) -> tuple[int, ...]:
    """The colour at the left end of a row of the schedule."""
    y = notebook.number(SCHEDULE, "head") + (row + 0.5) * notebook.number(SCHEDULE, "row-height")
    script = """(canvas, y) => { const r = devicePixelRatio;
        return [...canvas.getContext('2d').getImageData(r, Math.round(y * r), 1, 1).data] }"""
    return tuple(notebook.page.locator(f"{SCHEDULE} .nvx-scroll canvas").evaluate(script, y))


def test_buttons_run_pause_and_step(open_notebook: Open, tmp_path: Path) -> None:
    notebook = open_notebook("buttons.ipynb", [LOAD, LONG, "%config NvExplore.live_hz = 50", "%nvx_watch"])
    notebook.run_all()
    page = notebook.page
    status = page.locator(".nvx-status")
    page.locator(".nvx-status:has-text('paused')").wait_for()
    for step in (1, 2, 3):
        page.click("[data-command=step]")
        page.locator(f"{BLOCKS}[data-step='{step}']").wait_for()
    assert notebook.python("print(loaded.session.llm.engine.next_step)") == "3"
    page.click("[data-command=run]")
    page.locator(".nvx-status:has-text('running')").wait_for()
    page.wait_for_function(f"() => +document.querySelector('{BLOCKS}').dataset.step > 20")
    # Another cell is answered meanwhile, and finds the engine standing between two steps.
    planned = notebook.python("print(loaded.session.llm.engine.plan().seq_id)")
    assert planned == "[0]"
    assert status.inner_text() == "running"
    shot(notebook, tmp_path, "running")
    page.click("[data-command=pause]")
    page.locator(".nvx-status:has-text('paused')").wait_for()
    made = notebook.python("print(loaded.session.llm.engine.next_step)")
    page.locator(f"{BLOCKS}[data-step='{made}']").wait_for()
    page.wait_for_timeout(300)
    assert notebook.python("print(loaded.session.llm.engine.next_step)") == made
    page.click("[data-command=step]")
    page.locator(f"{BLOCKS}[data-step='{int(made) + 1}']").wait_for()
    notebook.python("%config NvExplore.live_hz = 0")
    page.click("[data-command=run]")
    page.locator(".nvx-status:has-text('idle')").wait_for()
    page.locator(f"{BLOCKS}[data-step='500']").wait_for()  # drawn a frame after the button's word
    assert notebook.python("print(len(loaded.session.requests[0].token_ids))") == "500"
