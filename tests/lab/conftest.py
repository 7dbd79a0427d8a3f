"""A server for each front end and one chromium for the tests of this folder; a fresh notebook for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from nvexplore.toy import make_toy
from tests.lab.driver import LAB_FLAGS, LabNotebook, lab_server, notebook_of

Open = Callable[..., LabNotebook]
Serve = Callable[[str], tuple[str, Path]]


@pytest.fixture(scope="package")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Address and folder of a front end's server, which is started when it is first asked for."""
    with ExitStack() as running:

        @cache
        def start(app: str) -> tuple[str, Path]:
            root = tmp_path_factory.mktemp(app)
            make_toy(root / "work" / "toy")
            return running.enter_context(lab_server(root, app)), root / "work"

        yield start


@pytest.fixture(scope="package")
def lab_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=LAB_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_notebook(serve: Serve, lab_browser: Browser) -> Iterator[Open]:
    """Open a new notebook with these cells; afterwards no page error, and no request to another host."""
    opened: list[LabNotebook] = []

    def open_(name: str, cells: list[str], app: str = "lab") -> LabNotebook:
        # High enough for all views at once: what is out of sight is not drawn.
        page = lab_browser.new_context(viewport={"width": 1280, "height": 4000}).new_page()
        page.set_default_timeout(60_000)
        opened.append(LabNotebook(page, *serve(app), notebook_of(cells), name, app))
        return opened[-1]

    yield open_
    for notebook in opened:
        notebook.page.context.close()
        assert notebook.errors == []
        assert notebook.foreign == []
