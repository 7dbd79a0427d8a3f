"""When views draw: not while they are out of sight, and of a large pool only what has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import Bridge
from tests.browser.demo_run import demo_engine, demo_steps
from tests.browser.pages import BLOCKS, SCHEDULE, wait_for
from tests.fakes import toy_engine

pytestmark = pytest.mark.browser
Open = Callable[..., Bridge]
PIXELS = f"""() => {{ const c = document.querySelector("{BLOCKS} .nvx-field canvas");
    return [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data].join() }}"""


def test_a_view_out_of_sight_waits_and_catches_up(open_page: Open) -> None:
    bridge, engine = open_page(viewport={"width": 980, "height": 700}), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.page.add_style_tag(content=f"{BLOCKS} {{ margin-top: 3000px }}")
    bridge.show("schedule_view", "block_view")

    def drawn(root: str) -> str | None:
        bridge.deliver()
        return bridge.page.locator(root).get_attribute("data-step")

    steps = demo_steps(engine, 20)
    next(steps)
    bridge.explorer.flush()
    wait_for(bridge, lambda: drawn(SCHEDULE) == "1")
    first = drawn(BLOCKS)
    line = bridge.page.locator(f"{BLOCKS} .nvx-line").inner_text()
    assert first in ("0", "1")
    for _ in steps:
        bridge.explorer.flush()
    bridge.settle()
    wait_for(bridge, lambda: drawn(SCHEDULE) == "20")
    bridge.page.wait_for_timeout(200)
    assert drawn(BLOCKS) == first and bridge.page.locator(f"{BLOCKS} .nvx-line").inner_text() == line
    bridge.page.locator(f"{BLOCKS} canvas").scroll_into_view_if_needed()
    wait_for(bridge, lambda: drawn(BLOCKS) == "20")
    bridge.page.evaluate("document.querySelector('.nvx-schedule').parentElement.style.display = 'none'")
    bridge.settle()
    engine.step()
    bridge.explorer.flush()
    wait_for(bridge, lambda: drawn(BLOCKS) == "21")
    assert drawn(SCHEDULE) == "20", "folded away"


def test_what_has_the_focus_draws_wherever_it_is(open_page: Open) -> None:
    bridge, engine = open_page(viewport={"width": 980, "height": 700}), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.page.add_style_tag(content=f"{BLOCKS} {{ margin-top: 3000px }}")
    bridge.show("schedule_view", "block_view")
    bridge.page.wait_for_timeout(100)
    bridge.page.evaluate(f"document.querySelector('{BLOCKS} .nvx-field canvas').focus({{ preventScroll: true }})")
    for _ in demo_steps(engine, 5):
        pass
    bridge.explorer.flush()
    wait_for(bridge, lambda: bridge.page.locator(BLOCKS).get_attribute("data-step") == "5")


@pytest.mark.parametrize("num_blocks", [3_000, 20_000, 1_000_000])
def test_a_large_pool_that_was_drawn_in_parts_looks_as_if_drawn_at_once(open_page: Open, num_blocks: int) -> None:
    bridge = open_page()
    engine = toy_engine(num_blocks, 16, max_num_batched_tokens=4096, max_num_seqs=8)
    for i in range(8):
        engine.add_request([i + 1] * (100 + 40 * i), SamplingParams(max_tokens=17 + i, ignore_eos=True))
    engine.subscribe(bridge.explorer.push)
    bridge.show("block_view")
    seen = set()
    for step in range(20):
        engine.step()
        bridge.explorer.flush()
        if step == 8:
            bridge.explorer.select("sequence", 7)
        bridge.settle()
        assert bridge.page.locator(BLOCKS).get_attribute("data-step") == str(step + 1)
        if step not in (3, 7, 9, 12, 19):
            continue
        parts = bridge.page.evaluate(PIXELS)
        for mode in ("hash", "state"):
            bridge.page.locator(".nvx-block-mode").select_option(mode)
            bridge.settle()
        assert bridge.page.evaluate(PIXELS) == parts
        seen.add(hash(parts))
    assert len(seen) >= 4
