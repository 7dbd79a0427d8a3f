"""One JupyterLab server and one chromium for the tests of this folder, a fresh page and notebook for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from nvexplore.toy import make_toy
from tests.lab.driver import LAB_FLAGS, LabNotebook, lab_server, notebook_of

Open = Callable[[str, list[str]], LabNotebook]


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    root = tmp_path_factory.mktemp("lab")
    make_toy(root / "work" / "toy")
    with lab_server(root) as base:
        yield base, root / "work"


@pytest.fixture(scope="package")
def lab_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=LAB_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_notebook(lab: tuple[str, Path], lab_browser: Browser) -> Iterator[Open]:
    """Open a new notebook with these cells; afterwards no page error, and no request to another host."""
    opened: list[LabNotebook] = []

    def open_(name: str, cells: list[str]) -> LabNotebook:
        page = lab_browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        page.set_default_timeout(60_000)
        opened.append(LabNotebook(page, *lab, notebook_of(cells), name))
        return opened[-1]

    yield open_
    for notebook in opened:
        notebook.page.context.close()
        assert notebook.errors == []
        assert notebook.foreign == []
