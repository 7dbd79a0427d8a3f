"""Where things are on a page with views: for the tests to point at."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator

from tests.browser.bridge import Bridge

BLOCKS, SCHEDULE = ".nvx-blocks", ".nvx-schedule"


def number(root: Locator, name: str) -> float:
    return float(root.get_attribute(f"data-{name}") or "nan")


def wait_for(bridge: Bridge, condition: Callable[[], Any], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        bridge.deliver()
        bridge.page.wait_for_timeout(20)  # a plain sleep would keep the page's messages out


def told(view: Blocks | Schedule, holds: Callable[[str], bool]) -> str:
    """Wait until a view's status line says what is expected."""
    wait_for(view.bridge, lambda: holds(view.line.inner_text()))
    return view.line.inner_text()


class Blocks:
    """The block view: where a block is, and its colour."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.page = bridge, bridge.page
        self.root = bridge.page.locator(BLOCKS)
        self.canvas = self.root.locator(".nvx-field canvas")
        self.line = self.root.locator(".nvx-line")

    def place(self, block: int) -> dict[str, float]:
        columns, w, h = (number(self.root, name) for name in ("columns", "cell-width", "cell-height"))
        return {"x": (block % columns + 0.5) * w, "y": (block // columns + 0.5) * h}

    def hover(self, block: int) -> None:
        self.canvas.hover(position=self.place(block))

    def click(self, block: int) -> None:
        self.canvas.click(position=self.place(block))


class Schedule:
    """The schedule view: where a cell is."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.page = bridge, bridge.page
        self.root = bridge.page.locator(SCHEDULE)
        self.canvas = self.root.locator(".nvx-scroll canvas")
        self.line = self.root.locator(".nvx-line")

    def place(self, row: int, step: int) -> dict[str, float]:
        names = ("label", "head", "column-width", "row-height", "first")
        label, head, width, height, first = (number(self.root, name) for name in names)
        left, top = self.page.evaluate(
            "() => { const s = document.querySelector('.nvx-scroll'); return [s.scrollLeft, s.scrollTop] }"
        )
        y = 20 if row < 0 else head + (row + 0.5) * height - top
        return {"x": 40 if step < 0 else label + (step - first + 0.5) * width - left, "y": y}


def pixel(canvas: Locator, x: float, y: float) -> tuple[int, ...]:
    """The colour at a point of a canvas, as drawn."""
    script = """(canvas, [x, y]) => { const r = devicePixelRatio;
        return [...canvas.getContext('2d').getImageData(Math.round(x * r), Math.round(y * r), 1, 1).data] }"""
    return tuple(canvas.evaluate(script, [x, y]))


def row_of(bridge: Bridge, name: str) -> int:
    return next(s.seq_id for s in all_sequences(bridge) if s.request_id == name)


def all_sequences(bridge: Bridge) -> list[Any]:
    mirror = bridge.explorer._feed.mirror
    assert mirror is not None
    return [*mirror.state.sequences.values(), *(ended.seq for ended in mirror.ended.values())]
