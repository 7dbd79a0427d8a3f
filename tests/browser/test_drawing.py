"""The views as a reader sees them: a real browser, a real Explorer, only the kernel in between is missing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import LAB_DARK, Bridge
from tests.browser.demo_run import demo_engine, demo_steps
from tests.browser.pages import SCHEDULE, Blocks, Schedule, number, pixel, told, wait_for
from tests.fakes import toy_engine
from tests.watch import greedy

pytestmark = pytest.mark.browser


def test_the_dashboard_shows_the_engine(run: Bridge) -> None:
    page, snapshot = run.page, run.engine.snapshot()
    assert page.locator(".nvx-step").inner_text() == "38 steps"
    held = sum(n > 0 for n in snapshot.ref_count)
    assert f"{held} of 96 blocks in use" in page.locator(".nvx-pool").inner_text()
    assert run.store("[...store.words].map((w) => w >> 1)") == snapshot.ref_count
    assert number(page.locator(SCHEDULE), "rows") == 12
    assert page.locator(f"{SCHEDULE} .nvx-line").inner_text().startswith("step 37")


def test_cells_have_the_colour_of_their_state(run: Bridge) -> None:
    blocks, counts = Blocks(run), run.engine.snapshot().ref_count
    free = next(b for b, word in enumerate(run.store("[...store.words]")) if word == 0)
    used = next(b for b, n in enumerate(counts) if n == 1)
    shared = next(b for b, n in enumerate(counts) if n > 1)
    inset = 30  # beside the block's number
    at = {name: blocks.place(b) for name, b in (("free", free), ("used", used), ("shared", shared))}
    colors = {name: pixel(blocks.canvas, p["x"] - 28 + inset, p["y"] + 9)[:3] for name, p in at.items()}
    assert colors["free"] == (0xEE, 0xF1, 0xF4) and colors["used"] == (0x4F, 0x9F, 0xD6)
    assert len(set(colors.values())) == 3


@pytest.mark.parametrize("num_blocks", [20_000, 1_000_000])
def test_large_pools_are_drawn_and_hit(open_page: Callable[..., Bridge], num_blocks: int) -> None:
    bridge = open_page()
    engine = toy_engine(num_blocks, 16, max_num_batched_tokens=4096)
    engine.add_request([1] * 2000, SamplingParams(max_tokens=3))
    engine.subscribe(bridge.explorer.push)
    bridge.show("block_view")
    engine.step()
    bridge.explorer.flush()
    bridge.settle()
    blocks = Blocks(bridge)
    assert number(blocks.root, "blocks") == num_blocks
    block = next(iter(engine.live.values())).block_table[100]
    blocks.hover(block)
    hit = told(blocks, lambda text: text.startswith("block "))
    assert abs(int(re.findall(r"\d+", hit)[0]) - block) <= 2, "a cell may be half a pixel"
    script = """async () => {
        const times = [], drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        for (let i = 0; i < 5; i++) {
            const begin = performance.now();
            explorer().store.changed();
            await drawn();
            times.push(performance.now() - begin);
        }
        return Math.min(...times);
    }"""
    assert bridge.page.evaluate(script) < 250, "milliseconds from news to picture"


def test_dark_follows_the_notebook_and_the_system(open_page: Callable[..., Bridge]) -> None:
    lights = []
    for scheme, css in (("light", ""), ("dark", ""), ("light", LAB_DARK)):
        bridge = open_page(color_scheme=scheme)
        bridge.show("block_view")
        if css:
            bridge.page.add_style_tag(content=css)
            bridge.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        engine = demo_engine()
        engine.subscribe(bridge.explorer.push)
        bridge.explorer.flush()
        bridge.settle()
        lights.append(pixel(Blocks(bridge).canvas, 50, 17)[0])
    assert lights[0] > 200 and lights[1] < 80 and lights[2] < 80


def test_a_long_run_scrolls_with_the_newest_step_until_one_looks_back(open_page: Callable[..., Bridge]) -> None:
    bridge, engine = open_page(), toy_engine(400, 4, max_num_seqs=8)
    for i in range(8):
        engine.add_request([i + 1] * 5, SamplingParams(max_tokens=300, ignore_eos=True))
    engine.subscribe(bridge.explorer.push)
    bridge.show("schedule_view")
    for _ in range(250):
        engine.step()
    bridge.explorer.flush()
    bridge.settle()
    left = "document.querySelector('.nvx-scroll').scrollLeft"
    newest = bridge.page.get_by_role("button", name="newest")
    followed = bridge.page.evaluate(left)
    assert followed > 500 and newest.is_hidden()
    bridge.page.locator(".nvx-scroll").hover()
    bridge.page.mouse.wheel(-(followed - 100), 0)
    wait_for(bridge, lambda: bridge.page.evaluate(left) == 100)
    bridge.settle()
    for _ in range(20):
        engine.step()
    bridge.explorer.flush()
    bridge.settle()
    assert bridge.page.evaluate(left) == 100 and newest.is_visible()
    newest.click()
    bridge.settle()
    assert bridge.page.evaluate(left) > followed and newest.is_hidden()


def test_many_rows_show_those_that_live_and_the_selected_one(open_page: Callable[..., Bridge]) -> None:
    bridge, engine = open_page(), toy_engine(400, 4, max_num_seqs=8)
    for i in range(60):
        engine.add_request([i + 1] * 5, SamplingParams(max_tokens=6, ignore_eos=True), request_id=f"r{i}")
    engine.subscribe(bridge.explorer.push)
    bridge.show("schedule_view")
    for _ in range(30):
        engine.step()
        bridge.explorer.flush()
        bridge.settle()
    schedule = Schedule(bridge)
    live = min(seq.seq_id for seq in engine.live.values())
    assert live > 20
    head, bottom = number(schedule.root, "head"), schedule.canvas.bounding_box()["height"]
    assert head < schedule.place(live, 0)["y"] < bottom
    for seq_id in (2, 59, live):
        bridge.explorer.select("sequence", seq_id)
        bridge.settle()
        assert head < schedule.place(seq_id, 0)["y"] < bottom


def test_no_motion_where_none_is_wanted(open_page: Callable[..., Bridge]) -> None:
    for motion, name in (("no-preference", "nvx-pulse"), ("reduce", "none")):
        bridge = open_page(reduced_motion=motion)
        bridge.show()
        bridge.explorer.status = "running"
        bridge.settle()
        script = "getComputedStyle(document.querySelector('.nvx-status'), '::before').animationName"
        assert bridge.page.evaluate(script) == name


@pytest.mark.parametrize("width", [320, 620, 1600])
def test_every_width_is_usable(open_page: Callable[..., Bridge], width: int) -> None:
    bridge, engine = open_page(viewport={"width": width, "height": 900}), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.show()
    for _ in demo_steps(engine, 20):
        pass
    bridge.explorer.keyframe()
    bridge.settle()
    script = "[...document.querySelectorAll('.nvx *')].filter((e) => e.getBoundingClientRect().right > innerWidth)"
    assert bridge.page.evaluate(f"{script}.map((e) => e.outerHTML.slice(0, 80))") == []
    assert bridge.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def show_many_steps(bridge: Bridge) -> None:
    """More than the schedule has room for, of 8 requests."""
    engine = toy_engine(400, 4, max_num_seqs=8)
    for i in range(8):
        engine.add_request([i + 1] * 5, greedy(300))
    engine.subscribe(bridge.explorer.push)
    bridge.show("schedule_view")
    for _ in range(250):
        engine.step()
    bridge.explorer.flush()
    bridge.settle()


@pytest.mark.parametrize("width", [320, 400, 620, 1180, 1280])
def test_the_button_that_leads_back_to_the_newest_covers_nothing(open_page: Callable[..., Bridge], width: int) -> None:
    bridge = open_page(viewport={"width": width, "height": 900})
    show_many_steps(bridge)
    newest, canvas = bridge.page.get_by_role("button", name="newest"), Schedule(bridge).canvas
    top = canvas.bounding_box()
    bridge.page.locator(".nvx-scroll").hover()
    bridge.page.mouse.wheel(-500, 0)
    wait_for(bridge, newest.is_visible)
    assert canvas.bounding_box() == top, "nothing moves when it comes"
    script = """button => { const a = button.getBoundingClientRect();
        return [...document.querySelectorAll('.nvx-schedule :is(h3, .nvx-legend > span, canvas, .nvx-line)')]
            .filter((el) => { const b = el.getBoundingClientRect();
                return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom })
            .map((el) => el.outerHTML.slice(0, 80)) }"""
    assert newest.evaluate(script) == []


def test_a_past_step_is_brought_into_sight_and_the_newest_again(open_page: Callable[..., Bridge]) -> None:
    bridge = open_page()
    show_many_steps(bridge)
    left = "document.querySelector('.nvx-scroll').scrollLeft"
    followed = bridge.page.evaluate(left)
    bridge.explorer.cursor = 20
    wait_for(bridge, lambda: bridge.page.locator(SCHEDULE).get_attribute("data-shown") == "20")
    bridge.settle()
    schedule = Schedule(bridge)
    assert number(schedule.root, "label") < schedule.place(0, 20)["x"] < 900
    bridge.explorer.cursor = -1
    wait_for(bridge, lambda: bridge.page.evaluate(left) == followed)
