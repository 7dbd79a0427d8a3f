"""JupyterLab from end to end: magics, kernel, comm, extension and browser, with nothing taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.conftest import Open
from tests.lab.driver import LabNotebook

pytestmark = pytest.mark.lab
BLOCKS, SCHEDULE = ".nvx-blocks", ".nvx-schedule"
LOAD = "%load_ext nvexplore\nloaded = %nvx_load toy --num-kvcache-blocks 48 --max-num-batched-tokens 32\nloaded"
ADD = """%nvx_add --id first --max-tokens 24 --ignore-eos The same beginning for both, and then one end.
%nvx_add --id second --max-tokens 24 --ignore-eos The same beginning for both, and then another end."""


def shot(notebook: LabNotebook, tmp_path: Path, name: str) -> None:
    notebook.page.screenshot(path=tmp_path / f"{name}.png")


def test_views_are_drawn_and_a_click_reaches_python(open_notebook: Open, tmp_path: Path) -> None:
    notebook = open_notebook(
        "click.ipynb",
        [
            LOAD,
            ADD,
            "%nvx_watch",
            "%nvx_step -n 12",
            "picked = []\nloaded.session.explorer.on_select(lambda kind, id: picked.append((kind, id)))",
        ],
    )
    notebook.run_all()
    page = notebook.page
    for view in (SCHEDULE, BLOCKS, ".nvx-controls"):
        page.locator(f"{view}[data-step='12']").wait_for()
    assert page.locator(".jp-OutputArea-output:has-text('12 steps in')").count() == 1
    owner, block = notebook.python(
        "seq = loaded.session.llm.engine.live['second']; print(seq.seq_id, seq.block_table[-1])"
    ).split()
    columns, width, height = (notebook.number(BLOCKS, name) for name in ("columns", "cell-width", "cell-height"))
    place = {"x": (int(block) % columns + 0.5) * width, "y": (int(block) // columns + 0.5) * height}
    page.locator(f"{BLOCKS} .nvx-field canvas").click(position=place)
    notebook.wait_for("picked", f"[('block', {block})]")
    notebook.wait_for("loaded.session.explorer.selection", f"('block', {block})")
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)
    shot(notebook, tmp_path, "clicked")
    # The bar at the left end of its owner's row, and of no other, has the accent colour.
    rows = {seq_id: left_edge(notebook, row) for row, seq_id in enumerate(("0", "1"))}
    assert rows.pop(owner) not in rows.values()
    # The other way round: the label of a row.
    head, row_height = notebook.number(SCHEDULE, "head"), notebook.number(SCHEDULE, "row-height")
    page.locator(f"{SCHEDULE} .nvx-scroll canvas").click(position={"x": 40, "y": head + 0.5 * row_height})
    notebook.wait_for("picked[-1]", "('sequence', 0)")
    # A page that is loaded again comes back at the right step, with the kernel alive.
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save').then(() => null)")
    page.reload()
    page.locator(f"{BLOCKS}[data-step='12']").wait_for()
    notebook.python("loaded.session.run()")
    step = notebook.python("print(loaded.session.llm.engine.next_step)")
    page.locator(f"{SCHEDULE}[data-step='{step}']").wait_for()


def left_edge(notebook: LabNotebook, row: int) -> tuple[int, ...]:
    """The colour at the left end of a row of the schedule."""
    y = notebook.number(SCHEDULE, "head") + (row + 0.5) * notebook.number(SCHEDULE, "row-height")
    script = """(canvas, y) => { const r = devicePixelRatio;
        return [...canvas.getContext('2d').getImageData(r, Math.round(y * r), 1, 1).data] }"""
    return tuple(notebook.page.locator(f"{SCHEDULE} .nvx-scroll canvas").evaluate(script, y))


def test_buttons_run_pause_and_step(open_notebook: Open, tmp_path: Path) -> None:
    long = "%nvx_add --id long --max-tokens 500 --ignore-eos Go on and on."
    notebook = open_notebook("buttons.ipynb", [LOAD, long, "%config NvExplore.live_hz = 50", "%nvx_watch"])
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
