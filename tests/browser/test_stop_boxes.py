"""The boxes that say where runs stop: a page and a session tell each other; a run that stops at once is no riddle.

What a page sends is not trusted: it can name events, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from nvexplore.explore.until import EVENTS
from nvexplore.notebook.stops import Stops
from tests.browser.bridge import Bridge
from tests.browser.pages import wait_for

pytestmark = pytest.mark.browser


@pytest.fixture
def bridge(open_page: Callable[..., Bridge]) -> Bridge:
    bridge = open_page()
    bridge.explorer.events = EVENTS
    bridge.explorer.on_command(print)
    bridge.explorer.status = "paused"
    bridge.show("controls_view")
    return bridge


def test_what_is_ticked_reaches_python_and_comes_back(bridge: Bridge) -> None:
    stops = Stops()
    stops.link(bridge.explorer)
    page = bridge.page
    summary = page.locator(".nvx-stops summary")
    assert summary.inner_text() == "Stop at …"
    summary.click()
    boxes = page.locator(".nvx-stops input")
    assert boxes.evaluate_all("boxes => boxes.map((box) => box.value)") == list(EVENTS)
    titles = page.locator(".nvx-stops label").evaluate_all("labels => labels.map((label) => label.title)")
    assert titles == list(EVENTS.values())
    page.get_by_role("checkbox", name="preempt").check()
    page.get_by_role("checkbox", name="graph-miss").focus()
    page.keyboard.press("Space")
    wait_for(bridge, lambda: stops.breakpoints == ("preempt", "graph-miss"))
    bridge.settle()
    assert summary.inner_text() == "Stop at preempt, graph-miss"
    stops.breakpoints = ["hit"]
    bridge.settle()
    assert summary.inner_text() == "Stop at hit"
    assert boxes.evaluate_all("boxes => boxes.filter((box) => box.checked).map((box) => box.value)") == ["hit"]


def test_only_names_of_events_come_from_a_page(bridge: Bridge) -> None:
    stops = Stops()
    stops.link(bridge.explorer)
    stops.breakpoints = ["miss"]
    bridge.store("store.host.stopAt(['miss', \"__import__('os').abort()\"])")
    bridge.settle()
    assert stops.breakpoints == ("miss",)
    assert bridge.explorer.breakpoints == ["miss"]


def test_there_are_no_boxes_where_nothing_can_run(open_page: Callable[..., Bridge]) -> None:
    bridge: Any = open_page()
    bridge.explorer.events = EVENTS
    bridge.show("controls_view")
    assert bridge.page.locator(".nvx-stops").is_hidden()


def test_a_run_that_stops_before_it_is_drawn_leaves_the_buttons_alive(bridge: Bridge) -> None:
    page = bridge.page
    page.get_by_role("button", name="Run").click()
    bridge.store(
        "['running', 'stopped at step 4: request b was preempted for a']"
        ".forEach((status) => { store.status = status; store.changed(); })"
    )
    bridge.settle()
    assert page.locator(".nvx-status").inner_text() == "stopped at step 4: request b was preempted for a"
    for name, able in (("run", "false"), ("step", "false"), ("pause", "true")):
        assert page.locator(f"[data-command={name}]").get_attribute("aria-disabled") == able
    assert re.search(r"\bpausing\b", page.locator(".nvx-controls").inner_text()) is None
