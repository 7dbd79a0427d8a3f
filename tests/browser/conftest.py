"""One chromium for the browser tests, and a fresh page with an Explorer on it for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.bridge import FLAGS, URL, Bridge
from tests.browser.demo_run import decode, demo_engine, demo_steps

Open = Callable[..., Bridge]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Debian's chromium, started once; it resolves no host name."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Open]:
    """Open a page with an Explorer: options are the page's context's. Afterwards no error and no foreign request."""
    opened: list[Bridge] = []

    def open_(explorer_options: dict[str, Any] | None = None, **context: Any) -> Bridge:
        context = {"viewport": {"width": 980, "height": 4000}, **context}
        page = chromium.new_context(**context).new_page()
        page.set_default_timeout(10_000)
        opened.append(Bridge(page, **(explorer_options or {"decode": decode})))
        return opened[-1]

    yield open_
    for bridge in opened:
        bridge.page.context.close()
        assert bridge.errors == []
        foreign = [url for url in bridge.requests if not url.startswith((URL, "data:"))]
        assert foreign == []


@pytest.fixture
def run(open_page: Open) -> Bridge:
    """The dashboard after 38 steps of the demo run."""
    bridge = open_page()
    engine = demo_engine()
    bridge.engine = engine
    engine.subscribe(bridge.explorer.push)
    bridge.show()
    for _ in demo_steps(engine, 38):
        pass
    bridge.explorer.keyframe()
    bridge.settle()
    return bridge
