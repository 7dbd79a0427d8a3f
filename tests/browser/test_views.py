"""The views as a reader meets them: a real browser, a real Explorer, only the kernel in between is missing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator

from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import LAB_DARK, Bridge
from tests.browser.demo_run import HOSTILE, demo_engine, demo_steps
from tests.fakes import toy_engine

pytestmark = pytest.mark.browser
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


# ---- what is drawn


def test_the_dashboard_shows_the_engine(run: Bridge) -> None:
    page, snapshot = run.page, run.engine.snapshot()
    assert page.locator(".nvx-step").inner_text() == "step 38"
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
    took = bridge.page.evaluate(
        """async () => { const { store } = explorer(), times = [];
        for (let i = 0; i < 5; i++) { const t = performance.now(); store.changed();
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); times.push(performance.now() - t) }
        return Math.min(...times) }"""
    )
    assert took < 250, "milliseconds from news to picture"


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


# ---- pointing, selecting


def test_hovering_a_block_tells_all_about_it(run: Bridge) -> None:
    blocks = Blocks(run)
    seq = next(s for s in run.engine.live.values() if s.request_id == "long-essay")
    block = seq.block_table[3]
    blocks.hover(block)
    text = told(blocks, lambda text: "hash" in text)
    for part in (f"block {block}", "used", "ref count 1", "16 of 16 tokens", "long-essay (its block 3)"):
        assert part in text
    assert f"{run.engine.snapshot().hash[block]:016x}" in text
    words = run.explorer._text(seq.token_ids[48:64])
    assert words in text
    free = run.store("[...store.words].indexOf(0)")
    blocks.hover(free)
    told(blocks, lambda text: f"block {free}·free" in text.replace("\n", ""))


def test_clicking_a_block_reaches_python_and_lights_up_its_sequence(run: Bridge) -> None:
    blocks, seen = Blocks(run), []
    run.explorer.on_select(lambda kind, id: seen.append((kind, id)))
    seq = next(s for s in run.engine.live.values() if s.request_id == "report")
    block = next(b for b in seq.block_table if run.engine.blocks.ref_count[b] == 1)
    schedule = Schedule(run)
    at = schedule.place(row_of(run, "report"), -1)
    before = pixel(schedule.canvas, 1, at["y"])
    blocks.click(block)
    wait_for(run, lambda: run.explorer.selection == ("block", block))
    assert seen == [("block", block)]
    assert run.store("[...store.litSequences()]") == [seq.seq_id]
    run.settle()
    assert pixel(schedule.canvas, 1, at["y"]) != before, "the row is marked"
    blocks.click(block)
    wait_for(run, lambda: run.explorer.selection == ("none", -1))


def test_clicking_a_cell_selects_sequence_and_step_and_lights_up_the_blocks_in_order(run: Bridge) -> None:
    schedule = Schedule(run)
    seq = next(s for s in run.engine.live.values() if s.request_id == "long-essay")
    schedule.canvas.click(position=schedule.place(row_of(run, "long-essay"), 12))
    wait_for(run, lambda: run.explorer.selection == ("sequence", seq.seq_id))
    wait_for(run, lambda: run.explorer.cursor == 12)
    assert run.store("[...store.litBlocks()]") == [[block, i] for i, block in enumerate(seq.block_table)]
    assert "prefill of 128 tokens (positions 128 to 255, not the last chunk)" in schedule.line.inner_text()
    schedule.canvas.click(position=schedule.place(row_of(run, "long-essay"), 12))
    wait_for(run, lambda: run.explorer.selection == ("none", -1) and run.explorer.cursor == -1)


def test_python_selects_too(run: Bridge) -> None:
    run.explorer.select("sequence", 0)
    run.settle()
    assert run.store("[...store.litSequences()]") == [0]
    text = told(Schedule(run), lambda text: "→" in text)
    assert text.startswith("haiku") and "73 prompt tokens" in text


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        ("haiku", 0, "prefill of 73 tokens (positions 0 to 72, last chunk)"),
        ("haiku", 1, "resident, not in this batch"),
        ("haiku", 5, "decode of 1 token (position 73)"),
        ("translate-2", 2, "waiting"),
        ("chat-1", 7, "after 32 tokens from the prefix cache"),
        ("chat-4", 30, "preempted for"),
        ("chat-4", 32, "recompute of"),
        ("too-slow", 25, "waiting"),
        ("too-slow", 29, "aborted"),
        ("summary", 18, "finished (length)"),
        ("summary", 20, "gone"),
    ],
)
def test_hovering_the_schedule_tells_what_happened(run: Bridge, name: str, step: int, words: str) -> None:
    schedule = Schedule(run)
    schedule.canvas.hover(position=schedule.place(row_of(run, name), step))
    told(schedule, lambda text: text.startswith(name) and words in text)


def test_hovering_the_budget_tells_how_it_was_spent(run: Bridge) -> None:
    schedule = Schedule(run)
    schedule.canvas.hover(position=schedule.place(-1, 7))
    text = told(schedule, lambda text: "step 7" in text)
    assert "128 of 128 tokens (128 prefill)" in text and "free blocks" in text


# ---- keyboard and screen reader


def test_arrow_keys_walk_the_blocks_and_enter_selects(run: Bridge) -> None:
    blocks = Blocks(run)
    assert blocks.canvas.get_attribute("role") == "grid" and blocks.canvas.get_attribute("aria-label")
    blocks.canvas.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        run.page.keyboard.press(key)
    cell = blocks.canvas.locator("[role=gridcell]")
    assert cell.text_content().startswith("block 18: used, ref count 1")
    assert [cell.get_attribute(f"aria-{n}index") for n in ("row", "col")] == ["2", "3"]
    run.page.keyboard.press("Enter")
    wait_for(run, lambda: run.explorer.selection == ("block", 18))
    run.page.keyboard.press("End")
    assert cell.text_content().startswith("block 31:")
    run.page.keyboard.press("Escape")
    wait_for(run, lambda: run.explorer.selection == ("none", -1))


def test_arrow_keys_walk_the_schedule(run: Bridge) -> None:
    schedule = Schedule(run)
    schedule.canvas.focus()
    cell = schedule.canvas.locator("[role=gridcell]")
    assert cell.text_content().startswith("haiku, step 37: ")
    for key in ("ArrowDown", "Home", "ArrowRight"):
        run.page.keyboard.press(key)
    assert cell.text_content() == "translate, step 1: prefill of 58 tokens (positions 55 to 112, last chunk)"
    run.page.keyboard.press("Enter")
    wait_for(run, lambda: run.explorer.selection == ("sequence", 1) and run.explorer.cursor == 1)


def test_every_view_is_labelled_and_has_a_live_line(run: Bridge) -> None:
    for root in (BLOCKS, SCHEDULE):
        assert run.page.locator(root).get_attribute("aria-label")
        assert run.page.locator(f"{root} .nvx-line").get_attribute("role") == "status"
        for entry in run.page.locator(f"{root} .nvx-legend > span").all():
            assert entry.get_attribute("title")


# ---- buttons


def test_buttons_reach_python_and_answer_at_once(open_page: Callable[..., Bridge]) -> None:
    bridge, pressed = open_page(), []
    bridge.show()
    buttons = bridge.page.locator(".nvx-buttons")
    assert buttons.is_hidden()
    bridge.explorer.on_command(pressed.append)
    bridge.explorer.status = "paused"
    bridge.settle()
    bridge.page.get_by_role("button", name="Step").click()
    bridge.page.get_by_role("button", name="Run").click()
    wait_for(bridge, lambda: pressed == ["step", "run"])
    bridge.explorer.status = "running"
    bridge.settle()
    bridge.page.get_by_role("button", name="Run").click(force=True)  # not to be pressed now
    bridge.page.get_by_role("button", name="Pause").click()
    assert bridge.page.locator(".nvx-status").inner_text() == "pausing …"
    wait_for(bridge, lambda: pressed == ["step", "run", "pause"])
    bridge.explorer.status = "paused"
    bridge.settle()
    assert bridge.page.locator(".nvx-status").inner_text() == "paused"


# ---- life


def test_a_lost_message_is_asked_for_and_healed(open_page: Callable[..., Bridge]) -> None:
    bridge, engine = open_page(), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.show()
    bridge.page.evaluate("() => dropped(2)")
    for _ in demo_steps(engine, 8):
        bridge.explorer.flush()
    wait_for(bridge, lambda: bridge.page.evaluate("() => explorer().store.step") == 8)
    assert bridge.store("store.gaps") > 0


def test_a_reload_shows_the_same(run: Bridge) -> None:
    what = "[store.step, [...store.words], store.columns.length, [...store.sequences.values()].map((s) => [s.name, s.status, s.table])]"
    before = run.store(what)
    run.open()
    run.show("schedule_view", "block_view")
    assert run.store(what) == before
    assert number(run.page.locator(BLOCKS), "step") == 38


def test_several_views_share_one_store_and_go_without_a_trace(run: Bridge) -> None:
    run.show("block_view", "schedule_view", "controls_view")
    assert run.page.locator(BLOCKS).count() == 2
    Blocks(run).page.locator(BLOCKS).nth(1).locator(".nvx-field canvas").click(position={"x": 60, "y": 10})
    wait_for(run, lambda: run.explorer.selection == ("block", 1))
    run.page.evaluate("() => removes.forEach((remove) => remove())")
    assert run.page.locator(".nvx").count() == 0
    assert run.store("store.listeners.size") == 0
    run.page.evaluate("() => close_model()")
    assert run.page.evaluate("() => explorer()") is None


def test_a_view_that_is_not_there_says_so(open_page: Callable[..., Bridge]) -> None:
    bridge = open_page()
    bridge.show("no_such_view", "block_view")
    assert "no view named no_such_view" in bridge.page.locator(".nvx-error").inner_text()
    assert bridge.page.locator(BLOCKS).is_visible()
    bridge.errors.clear()


def test_hostile_text_is_text(open_page: Callable[..., Bridge]) -> None:
    bridge = open_page({"decode": lambda ids: HOSTILE})
    engine = toy_engine(16, 4)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=5), request_id=HOSTILE)
    engine.subscribe(bridge.explorer.push)
    bridge.show()
    engine.step()
    bridge.explorer.status = HOSTILE
    bridge.explorer.keyframe()
    bridge.settle()
    Blocks(bridge).hover(0)
    for view in (Blocks(bridge), Schedule(bridge)):
        bridge.explorer.select("sequence", 0)
        told(view, lambda text: "onerror=alert(1)" in text and "‹202e›" in text)
    assert bridge.page.locator("main img, main script").count() == 0
    assert "مرحبا 🦜" in bridge.page.locator(".nvx-status").inner_text()


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
