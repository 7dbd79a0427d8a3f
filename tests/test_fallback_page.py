"""A page that is loaded again: without its kernel, and with less in the file than the pool has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Page, sync_playwright

from nvexplore.notebook import still_frames
from nvexplore.notebook.explorer import Explorer
from tests.browser.bridge import FLAGS, Bridge
from tests.browser.demo_run import decode, demo_engine, demo_steps
from tests.browser.pages import BLOCKS, number, wait_for

pytestmark = pytest.mark.browser


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """The dashboard after 20 steps; in the end no error in the page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page: Page = browser.new_context(viewport={"width": 980, "height": 900}).new_page()
        page.set_default_timeout(10_000)
        bridge, engine = Bridge(page, decode=decode), demo_engine()
        bridge.engine = engine
        engine.subscribe(bridge.explorer.push)
        bridge.explorer.on_command(print)
        bridge.show()
        for _ in demo_steps(engine, 20):
            pass
        bridge.explorer.keyframe()
        bridge.settle()
        yield bridge
        errors = bridge.errors
        browser.close()
    assert errors == []


def warning_of(bridge: Bridge) -> str:
    """What stands above the views."""
    return " ".join(bridge.page.locator(".nvx-warnings").all_inner_texts())


def test_j08_a_page_whose_kernel_is_gone_keeps_the_last_state_and_says_so(bridge: Bridge) -> None:
    """ipywidgets#3773, ipympl#255: a view that goes on as if somebody were there is as bad as none."""
    assert warning_of(bridge) == "" and bridge.page.locator("[data-command='run']").is_visible()
    bridge.open()
    bridge.explorer.on_msg(Explorer._on_message, remove=True)  # nobody answers the page
    bridge.page.evaluate("() => { model.comm_live = false }")  # and that it knows, as a saved page does
    bridge.page.evaluate("names => show(names)", [])
    expected = "no kernel answers: this is the last state it sent, after step 19; run the cells again to go on"
    wait_for(bridge, lambda: warning_of(bridge) == expected, seconds=15)
    assert number(bridge.page.locator(BLOCKS), "step") == 20
    wait_for(bridge, lambda: not bridge.page.locator("[data-command='run']").is_visible())
    bridge.engine.step()
    bridge.explorer.flush()  # there it is again
    wait_for(bridge, lambda: warning_of(bridge) == "")
    wait_for(bridge, lambda: bridge.page.locator("[data-command='run']").is_visible())
    wait_for(bridge, lambda: number(bridge.page.locator(BLOCKS), "step") == 21)


def test_what_a_file_has_not_is_said_and_comes_from_the_kernel(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(still_frames, "MAX_SAVED", 100)
    bridge.open()
    told = bridge.page.evaluate(
        "() => [explorer().store].map((s) => [s.numBlocks, s.warnings, s.step, s.sequences.size > 5])[0]"
    )
    assert told[0] == 0 and told[2:] == [20, True] and "the map of 96 blocks and the block tables" in told[1][0]
    wait_for(bridge, lambda: bridge.store("[store.numBlocks, store.warnings.length]") == [96, 0])
    state = bridge.engine.snapshot()
    words = 2 * np.array(state.ref_count) + [hash_ is not None for hash_ in state.hash]
    assert bridge.store("[...store.words]") == words.tolist()
    bridge.page.evaluate("names => show(names)", [])
    bridge.engine.step()
    bridge.explorer.keyframe()
    wait_for(bridge, lambda: number(bridge.page.locator(BLOCKS), "step") == 21)
    assert bridge.store("[store.numBlocks, store.warnings.length]") == [96, 0] and warning_of(bridge) == ""
