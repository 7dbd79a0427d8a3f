"""The picture in the README: ``python -m tests.lab.shoot_readme [FILE [Dark]]`` (default notebooks/screenshot.png).

Runs the first notebook in JupyterLab up to the preemption, with the demo model, and shows it at its views: the
schedule, the blocks and the prefix cache, with the request selected that the preemption was for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from playwright.sync_api import sync_playwright

from nvexplore.demo import demo_model_path
from tests.lab.driver import CHECKOUT, LAB_FLAGS, LabNotebook, lab_server

NAME = "01_first_steps.ipynb"
LAST_CELL = "peek-preempted"
SHOW_VIEWS = """() => {
  const view = document.querySelector('.nvx-controls'), cell = view.closest('.jp-Cell');
  cell.scrollIntoView({ block: 'start' });
  cell.closest('.jp-WindowedPanel-outer').scrollBy(0, 4); }"""


def shoot(target: Path, theme: str = "Light") -> None:
    demo_model_path()
    notebook = nbformat.read(CHECKOUT / "notebooks" / NAME, as_version=4)
    last = next(i for i, cell in enumerate(notebook.cells) if cell.id == LAST_CELL)
    notebook.cells = notebook.cells[: last + 2]
    with tempfile.TemporaryDirectory() as folder, lab_server(Path(folder)) as base, sync_playwright() as playwright:
        work = Path(folder) / "work"
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=LAB_FLAGS)
        page = browser.new_page(viewport={"width": 1180, "height": 1330}, device_scale_factor=1.5)
        page.set_default_timeout(300_000)
        lab = LabNotebook(page, base, work, notebook, NAME)
        lab.command("application:toggle-left-area")
        lab.run_all()
        step = lab.python("print(loaded.session.llm.engine.next_step)")
        page.evaluate(SHOW_VIEWS)  # at once: what is out of sight is not drawn
        page.locator(f".nvx-schedule[data-step='{step}']").wait_for()
        lab.python("loaded.session.explorer.panels = ['prefix_view']")
        lab.python("loaded.session.explorer.select('sequence', loaded.session.log.find('q-2').seq_id)")
        page.locator(f".nvx-prefix[data-step='{int(step) - 1}']").wait_for()
        lab.command("apputils:change-theme", theme=f"JupyterLab {theme}")
        page.evaluate(SHOW_VIEWS)
        page.mouse.move(5, 5)
        page.wait_for_timeout(1500)
        page.screenshot(path=target)
        print(f"step {step}; page errors: {lab.errors or 'none'}; {target.stat().st_size // 1024} kB in {target}")
        browser.close()


if __name__ == "__main__":
    shoot(Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKOUT / "notebooks" / "screenshot.png", *sys.argv[2:3])
