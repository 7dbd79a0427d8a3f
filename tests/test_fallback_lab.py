"""In JupyterLab: an output that is written again does not disturb the view in it; a kernel that is gone is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from nvexplore.toy import make_toy
from tests.lab.driver import LAB_FLAGS, LabNotebook, lab_server, notebook_of

pytestmark = pytest.mark.lab
LOAD = "%load_ext nvexplore\nloaded = %nvx_load toy --num-kvcache-blocks 48 --max-num-batched-tokens 32\nloaded"
ADD = "%nvx_add --id first --max-tokens 200 --ignore-eos The same beginning for both, and then one end."
CELLS = [LOAD, ADD, "%nvx_watch", "%nvx_watch blocks", "%nvx_step -n 120"]
# In each frame before it is painted: is the view the same, what is shown instead, how high is it.
WATCH = """() => {
  window.frames = [];
  const view = document.querySelector('.nvx-controls'), scroller = document.querySelector('.nvx-scroll');
  view.querySelector("[data-command='step']").focus();
  scroller.scrollLeft = 40;
  const look = () => requestAnimationFrame(() => {
    const output = view.closest('.jp-OutputArea-output');
    frames.push([output !== null && view === document.querySelector('.nvx-controls'),
      document.body.innerText.includes('Loading widget'), output?.offsetHeight]);
    look(); });
  look(); }"""
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save').then(() => null)"
RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => null)"


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[tuple[LabNotebook, Path]]:
    make_toy(tmp_path / "work" / "toy")
    settings = tmp_path / "settings/@jupyter-widgets/jupyterlab-manager"
    settings.mkdir(parents=True)
    (settings / "plugin.jupyterlab-settings").write_text('{"saveState": true}')  # off unless the user asks for it
    with lab_server(tmp_path) as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=LAB_FLAGS)
        page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        page.set_default_timeout(60_000)
        yield LabNotebook(page, base, tmp_path / "work", notebook_of(CELLS), "a.ipynb"), tmp_path / "work" / "a.ipynb"
        browser.close()


def texts_of(file: Path, cell: int) -> list[str]:
    """What the file has of the outputs of a cell, beside the widget."""
    outputs: list[Any] = json.loads(file.read_text())["cells"][cell]["outputs"]
    assert all("application/vnd.jupyter.widget-view+json" in output["data"] for output in outputs)
    return ["".join(output["data"]["text/plain"]) for output in outputs if "image/png" in output["data"]]


def test_a_view_stands_still_while_its_output_is_written_again(notebook: tuple[LabNotebook, Path]) -> None:
    lab, file = notebook
    lab.run_all()
    page = lab.page
    page.locator(".nvx-controls[data-step='120']").wait_for()
    listeners = "() => [...globalThis[Symbol.for('nvexplore.explorers')].values()].map((e) => e.store.listeners.size)"
    before = page.evaluate(listeners)
    page.wait_for_timeout(1500)
    page.evaluate(WATCH)
    for step in (121, 122):
        lab.python("%nvx_step")
        page.locator(f".nvx-blocks[data-step='{step}']").first.wait_for()
        page.wait_for_timeout(1500)
    page.keyboard.press("Enter")  # the step button has kept the focus
    page.locator(".nvx-controls[data-step='123']").wait_for()
    page.wait_for_timeout(2500)
    frames = page.evaluate("() => frames")
    assert len(frames) > 30 and all(is_same and not is_loading for is_same, is_loading, _ in frames)
    heights = [height for _, _, height in frames]
    assert max(heights) - min(heights) <= 3, "nothing on the page jumps"
    assert page.evaluate("() => document.activeElement.dataset.command") == "step"
    assert page.evaluate("() => document.querySelector('.nvx-scroll').scrollLeft") > 0
    assert page.evaluate(listeners) == before, "no view was left behind"
    page.evaluate(SAVE)
    for cell in (2, 3):
        (text,) = texts_of(file, cell)
        assert "\nafter step 122: 1 running, 0 waiting\n" in text
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 3 }")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell').then(() => null)")
    page.wait_for_timeout(1500)
    assert page.locator(".nvx-blocks").count() == 2 and lab.errors == [] and lab.foreign == []


def run_to_the_last_step(lab: LabNotebook) -> Page:
    """Run all cells until the controls show the last step, with their buttons."""
    lab.run_all()
    page = lab.page
    page.locator(".nvx-controls[data-step='120']").wait_for()
    page.locator(".nvx-buttons").wait_for()
    return page


def wait_for_both(page: Page) -> None:
    """Both block views show the last step; one that is out of sight draws it when it is looked at."""
    views = page.locator(".nvx-blocks")
    assert views.count() == 2
    for i in range(2):
        views.nth(i).scroll_into_view_if_needed()
        page.wait_for_function("(i) => document.querySelectorAll('.nvx-blocks')[i].dataset.step === '120'", arg=i)


def test_a_kernel_that_restarts_leaves_the_last_state_and_says_so(notebook: tuple[LabNotebook, Path]) -> None:
    lab, file = notebook
    page = run_to_the_last_step(lab)
    page.wait_for_timeout(1500)
    page.evaluate(SAVE)  # what Lab saves of widgets is the state of those that have a kernel
    assert all("\nafter step 119: 1 running" in text for cell in (2, 3) for text in texts_of(file, cell))
    assert len(texts_of(file, 2)) == 1 and "widgets" in json.loads(file.read_text())["metadata"]
    page.evaluate(RESTART)
    page.locator(".nvx-warnings").first.wait_for()
    expected = "no kernel answers: this is the last state it sent, after step 119; run the cells again to go on"
    assert page.locator(".nvx-warnings").all_inner_texts() == [expected] * 2
    wait_for_both(page)
    assert not page.locator(".nvx-buttons").is_visible()
    page.reload()  # and now from the file alone
    page.locator(".nvx-warnings").nth(1).wait_for()
    assert page.locator(".nvx-warnings").all_inner_texts() == [expected] * 2
    wait_for_both(page)


START = """(code) => {
  window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code }); }"""
BUSY = "the kernel is busy and has not answered yet: this is the last state it sent, after step 119"


def test_a_kernel_that_is_only_busy_is_not_gone(notebook: tuple[LabNotebook, Path]) -> None:
    """Run All where a cell behind the view blocks, as one does that loads a model: nothing is taken away by it."""
    lab, _ = notebook
    page = run_to_the_last_step(lab)
    # It holds on to all threads of Python, once the one that tells the front end "busy" has had its turn.
    page.evaluate(START, "import ctypes, time; time.sleep(0.5); ctypes.PyDLL(None).sleep(12)")
    page.wait_for_timeout(1000)
    page.click("[data-command=step]")  # and what is pressed meanwhile is not lost
    page.locator(".nvx-warnings").first.wait_for()
    assert page.locator(".nvx-warnings").all_inner_texts() == [BUSY] * 2
    assert page.locator(".nvx-buttons").is_visible()
    page.locator(".nvx-controls[data-step='121']").wait_for()
    page.locator(".nvx-warnings").first.wait_for(state="detached")
    assert page.locator(".nvx-buttons").is_visible() and lab.errors == []
