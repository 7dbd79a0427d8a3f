"""Every view on one page, in light and in dark: drawn, told about what is pointed at, clicked, and driven by keys.

What each view says and selects in detail has its own tests; here none is left out.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator

from tests.browser.bridge import LAB_DARK, Bridge
from tests.browser.conftest import Open
from tests.browser.demo_run import decode, demo_engine, demo_steps
from tests.browser.pages import Blocks, Schedule, wait_for
from tests.browser.test_slot_memory import LEDGER

pytestmark = pytest.mark.browser
SELECTION, CURSOR = "selection", "cursor"
# Of each view: what to point at and what must be said then; what a click there and the keys change; where the keys go.
VIEWS: dict[str, tuple[str, str, str, list[str]]] = {
    "blocks": (r"block 20\b", ".nvx-field canvas", SELECTION, ["ArrowRight", "Enter"]),
    "schedule": (r"step 20\b", ".nvx-scroll canvas", CURSOR, ["ArrowLeft", "Enter"]),
    "why": (r"haiku\W+got its token", "li button", SELECTION, ["Enter"]),
    "throughput": (r"step (?!37\b)\d+\W+prefill", ".nvx-field canvas", CURSOR, ["Home", "Enter"]),
    "prefix": (r"block \d+ and the \d+ that follow", "[role=treeitem]", SELECTION, ["ArrowDown", "Enter"]),
    "slots": (r"row \d+: ", "td[data-key]", SELECTION, ["ArrowDown", "Enter"]),
    "memory": (r"used \d+ .*one sequence holds", ".nvx-memory-bar canvas", "", ["ArrowUp"]),
    "controls": ("", "[aria-label=Back]", CURSOR, ["ArrowLeft"]),
}


@pytest.fixture
def every_view(open_page: Open) -> Bridge:
    """The dashboard with every view open, after 38 steps of the demo run."""
    bridge, engine = open_page({"decode": decode, "memory": LEDGER}), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.explorer.panels = ["why_view", "throughput_view", "prefix_view", "slot_view", "memory_view"]
    bridge.show()
    for _ in demo_steps(engine, 38):
        pass
    bridge.explorer.flush()
    shows_newest(bridge)
    return bridge


def shows_newest(bridge: Bridge) -> None:
    """Select nothing, follow the newest step, and wait until all views show it."""
    bridge.page.mouse.move(0, 0)
    bridge.explorer.select("none", -1)
    bridge.explorer.cursor = -1
    script = "() => ['why', 'prefix', 'slots', 'memory'].map((n) => document.querySelector(`.nvx-${n}`).dataset.step)"
    wait_for(bridge, lambda: bridge.page.evaluate(script) == ["37"] * 4)
    bridge.settle()


def place(bridge: Bridge, view: str) -> Any:
    """Where in its part a view is pointed at; None: in the middle."""
    if view == "blocks":
        return Blocks(bridge).place(20)
    if view == "schedule":
        return Schedule(bridge).place(0, 20)
    return {"x": 40, "y": 10} if view == "memory" else None


def colours(root: Locator) -> list[int]:
    """How many colours there are in each canvas of a view."""
    script = """(canvases) => canvases.filter((canvas) => canvas.offsetParent).map((canvas) => {
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size; })"""
    found: list[int] = root.locator("canvas").evaluate_all(script)
    return found


def now(bridge: Bridge, what: str) -> Any:
    return getattr(bridge.explorer, what)


def says(bridge: Bridge, root: Locator, pattern: str) -> None:
    line = root.locator(".nvx-line")
    wait_for(bridge, lambda: re.search(pattern, " ".join(line.inner_text().split())))


def changes_from(bridge: Bridge, what: str, before: Any) -> None:
    wait_for(bridge, lambda: now(bridge, what) != before)


def drive(bridge: Bridge, view: str) -> None:
    """Point at a part of a view, click it, and go on with the keys."""
    said, part, what, keys = VIEWS[view]
    root, at = bridge.page.locator(f".nvx-{view}"), place(bridge, view)
    target = root.locator(part).first
    if said:
        assert not re.search(said, " ".join(root.locator(".nvx-line").inner_text().split()))
        target.hover(position=at)
        says(bridge, root, said)
    focus = root.locator("input").first if view in ("memory", "controls") else target
    if what:
        before = now(bridge, what)
        target.click(position=at)
        changes_from(bridge, what, before)
        shows_newest(bridge)
        focus.focus()
        for key in keys:
            bridge.page.keyboard.press(key)
        changes_from(bridge, what, before)
    else:
        focus.focus()
        bridge.page.keyboard.press(keys[0])
        wait_for(bridge, lambda: focus.input_value() == "1001")


@pytest.mark.parametrize("dark", [False, True])
def test_each_view_is_drawn_pointed_at_clicked_and_driven_by_keys(every_view: Bridge, dark: bool) -> None:
    page = every_view.page
    if dark:
        page.add_style_tag(content=LAB_DARK)
        page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        every_view.settle()
    for view in VIEWS:
        root = page.locator(f".nvx-{view}")
        assert root.evaluate("el => getComputedStyle(el).colorScheme") == ("dark" if dark else "light"), view
        assert min(colours(root), default=2) >= 2, f"{view}: nothing is drawn"
        drive(every_view, view)
        shows_newest(every_view)


def test_a_notebook_that_takes_keys_on_their_way_down_leaves_ours_to_the_views(run: Bridge) -> None:
    """Notebook 7: its commands come first, wherever the focus is, but for an element with that attribute."""
    run.page.evaluate(
        """() => { window.taken = []; document.addEventListener('keydown', (event) => {
            if (event.target.hasAttribute('data-lm-suppress-shortcuts')) return;
            taken.push(event.key); event.stopPropagation(); event.preventDefault(); }, true); }"""
    )
    Blocks(run).canvas.focus()
    for key in ("ArrowRight", "ArrowDown", "d", "Enter", "Control+s", "Shift+Enter"):
        run.page.keyboard.press(key)
    wait_for(run, lambda: run.explorer.selection == ("block", 17))
    assert run.page.evaluate("taken") == ["d", "Control", "s", "Shift", "Enter"], "the rest are the notebook's"
    run.page.locator("[aria-label=Back]").press("Enter")
    wait_for(run, lambda: run.explorer.cursor == 36)
    run.page.evaluate("() => removes.forEach((remove) => remove())")
    run.page.keyboard.press("ArrowRight")
    assert run.page.evaluate("taken").pop() == "ArrowRight"


def test_a_request_to_another_host_would_be_seen(run: Bridge) -> None:
    run.page.evaluate("() => fetch('http://elsewhere.test/').catch(() => null)")
    assert run.requests.pop() == "http://elsewhere.test/"
    run.errors.clear()
