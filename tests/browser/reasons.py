"""The why and the prefix view on a page after the demo run, and where their rows are."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator

from tests.browser.bridge import Bridge
from tests.browser.demo_run import demo_engine, demo_steps
from tests.browser.pages import wait_for

WHY, PREFIX, ROWS, RUNS = ".nvx-why", ".nvx-prefix", ".nvx-why li", ".nvx-prefix-run"


def show_both(open_page: Callable[..., Bridge]) -> Bridge:
    """Both views after 38 steps of the demo run."""
    bridge, engine = open_page(viewport={"width": 980, "height": 4000}), demo_engine()
    bridge.engine = engine
    engine.subscribe(bridge.explorer.push)
    bridge.show("why_view", "prefix_view")
    for _ in demo_steps(engine, 38):
        pass
    bridge.explorer.flush()
    drawn(bridge, 37)
    return bridge


def drawn(bridge: Bridge, step: int) -> None:
    """Wait until the views show a step."""
    roots = [bridge.page.locator(root) for root in (WHY, PREFIX) if bridge.page.locator(root).count()]
    wait_for(bridge, lambda: all(root.get_attribute("data-step") == str(step) for root in roots))


def look_at(bridge: Bridge, step: int) -> None:
    bridge.explorer.cursor = step
    drawn(bridge, step)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def said(row: Locator) -> str:
    """What a row of the why view says."""
    return squeezed(row.locator(":scope > div").inner_text())


def row_of(bridge: Bridge, name: str) -> Locator:
    return bridge.page.locator(ROWS).filter(has=bridge.page.locator(f"button:has-text('{name}')")).first
