"""The block view by state, owner, ref count, age and content hash, in chromium; and a saved view without a kernel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.bridge import Bridge
from tests.browser.conftest import Open
from tests.browser.demo_run import HOSTILE, decode, demo_engine, demo_steps
from tests.browser.pages import BLOCKS, Blocks, number, pixel, told, wait_for
from tests.fakes import toy_engine
from tests.watch import greedy

pytestmark = pytest.mark.browser

MODE = f"{BLOCKS} select"


def show_blocks(open_page: Open, num_blocks: int = 96, steps: int = 38, **context: Any) -> tuple[Bridge, Blocks]:
    bridge, engine = open_page(**context), demo_engine(num_blocks)
    bridge.engine = engine
    engine.subscribe(bridge.explorer.push)
    bridge.show("block_view")
    for _ in demo_steps(engine, steps):
        pass
    bridge.explorer.keyframe()
    bridge.settle()
    return bridge, Blocks(bridge)


def choose(bridge: Bridge, mode: str) -> None:
    bridge.page.locator(MODE).select_option(mode)
    wait_for(bridge, lambda: bridge.page.locator(BLOCKS).get_attribute("data-mode") == mode)


def legend(bridge: Bridge) -> list[str]:
    return [text.strip() for text in bridge.page.locator(f"{BLOCKS} .nvx-legend > span").all_inner_texts()]


def back(blocks: Blocks, block: int) -> tuple[int, ...]:
    """The colour at the lower left of a block's cell, where nothing is written."""
    place = blocks.place(block)
    width, height = (float(blocks.root.get_attribute(f"data-cell-{name}") or 0) for name in ("width", "height"))
    return pixel(blocks.canvas, place["x"] - width / 2 + 6, place["y"] + height / 2 - 5)[:3]


def test_each_mode_has_its_legend_and_its_colours(open_page: Open) -> None:
    bridge, blocks = show_blocks(open_page)
    select = bridge.page.get_by_label("Colour the blocks by")
    assert select.evaluate("select => select.tagName") == "SELECT"
    seen = {}
    for mode in ("state", "refs", "hash", "owner"):
        choose(bridge, mode)
        seen[mode] = (legend(bridge), [back(blocks, block) for block in (2, 35, 79)])
    assert seen["state"][0] == ["free", "cached", "used", "shared", "written in this step"]
    assert seen["refs"][0][2:] == ["1", "2", "3–4", "5–8", "9 and more", "written in this step"]
    assert seen["hash"][0][:4] == ["empty", "not hashed", "known, held", "known, cached"]
    names = [f"request {seq.request_id}" for seq in bridge.engine.live.values()]
    said = ["free", "cached", "several", *names, "looks repeat every 8", "written in this step"]
    assert seen["owner"][0] == said and len(names) == 6, "the first and the ninth look the same"
    first, *others = seen["state"][1]
    assert others == [first, first]  # all three are used
    assert len(set(seen["owner"][1])) == 3  # by three sequences
    assert len({colours[0] for _, colours in seen.values()}) >= 3


def test_hostile_names_stay_text_in_the_legend(open_page: Open) -> None:
    bridge, _ = show_blocks(open_page, steps=20)
    choose(bridge, "owner")
    seq = next(seq for seq in bridge.engine.live.values() if seq.request_id == HOSTILE)
    bridge.explorer.select("sequence", seq.seq_id)  # the selected one is named first
    wait_for(bridge, lambda: legend(bridge)[3].startswith("request </script><img"))
    assert bridge.page.locator(f"{BLOCKS} img:not([src^='data:image/png'])").count() == 0


def test_the_legend_of_the_owners_says_whom_it_leaves_out(open_page: Open) -> None:
    bridge, engine = open_page(), toy_engine(96, 4, max_num_batched_tokens=200)
    engine.subscribe(bridge.explorer.push)
    bridge.show("block_view")
    for i in range(9):
        engine.add_request([i] * 9, greedy(4), request_id=str(i))
    engine.step()
    bridge.explorer.flush()
    choose(bridge, "owner")
    names = [f"request {i}" for i in range(6)]
    said = ["free", "cached", "several", *names, "3 more; looks repeat every 8", "written in this step"]
    wait_for(bridge, lambda: legend(bridge) == said)


@pytest.mark.parametrize(("width", "num_blocks", "has_room"), [(980, 96, True), (1280, 400, False), (400, 40, False)])
def test_a_number_stays_where_its_block_is_selected(
    open_page: Open, width: int, num_blocks: int, has_room: bool
) -> None:
    """The badge with the logical index is for cells in which both fit; else the line below says it."""
    bridge, engine = open_page(viewport={"width": width, "height": 1200}), toy_engine(num_blocks, 4)
    engine.subscribe(bridge.explorer.push)
    bridge.show("block_view")
    engine.add_request(list(range(50)), greedy(4), request_id="7")
    engine.step()
    bridge.explorer.flush()
    blocks = Blocks(bridge)
    wait_for(bridge, lambda: blocks.root.get_attribute("data-step") == "1")
    table = next(iter(engine.live.values())).block_table
    bridge.explorer.select("sequence", 0)
    bridge.settle()
    order = "in logical order from 0: " + ", ".join(map(str, table[:8]))
    told(blocks, lambda text: "longest run" in text and (order in text) != has_room)
    # What has the full accent in a cell, off its ring: the badge alone.
    script = """(canvas, [x, y, w, h]) => { const r = devicePixelRatio,
        { data } = canvas.getContext('2d').getImageData((x + 6) * r, (y + 6) * r, (w - 12) * r, (h - 12) * r);
        return [...new Uint32Array(data.buffer)].filter((c) => c === 0xffc06515).length }"""
    width_of, height_of = (number(blocks.root, f"cell-{name}") for name in ("width", "height"))
    for block in table:
        middle = blocks.place(block)
        place = [middle["x"] - width_of / 2, middle["y"] - height_of / 2, width_of, height_of]
        assert (blocks.canvas.evaluate(script, place) > 10) == has_room, block
    blocks.hover(table[3])
    told(blocks, lambda text: "held by request 7 (its block 3)" in text)


def test_ages_are_asked_for_and_said(open_page: Open) -> None:
    bridge, blocks = show_blocks(open_page)
    written = next(iter(bridge.explorer.recorder.record_of(37).planned.spans.block_id))
    choose(bridge, "age")
    blocks.hover(written)
    told(blocks, lambda text: "written or freed in this step" in text)
    block = next(seq.block_table[0] for seq in bridge.engine.live.values() if len(seq.block_table) > 20)
    last = max(record.step for record in bridge.explorer.recorder.records if block in record.planned.spans.block_id)
    blocks.hover(block)
    told(blocks, lambda text: f"written or freed {37 - last} steps ago" in text)
    assert back(blocks, block) != back(blocks, written)
    bridge.explorer.cursor = last  # a past step has its own ages
    told(blocks, lambda text: "written or freed in this step" in text)
    bridge.explorer.cursor = -1
    bridge.engine.step()
    bridge.explorer.flush()
    told(blocks, lambda text: f"written or freed {38 - last} steps ago" in text)


def test_the_line_tells_how_the_pool_is_broken_up_and_shared(open_page: Open) -> None:
    bridge, blocks = show_blocks(open_page)
    refs = bridge.engine.snapshot().ref_count
    runs = "".join("." if ref else "o" for ref in refs).split(".")
    held, shared = sum(ref > 0 for ref in refs), sum(ref > 1 for ref in refs)
    text = told(blocks, lambda text: "longest run that nobody holds" in text)
    assert f"longest run that nobody holds: {max(map(len, runs))}" in text
    assert f"{round(100 * shared / held)}% of the held ones are shared" in text


def test_arrows_in_the_select_choose_and_reach_nobody_else(open_page: Open) -> None:
    bridge, _ = show_blocks(open_page)
    bridge.page.evaluate("() => { window.keys = 0; document.body.addEventListener('keydown', () => window.keys++) }")
    bridge.page.locator(MODE).focus()
    bridge.page.keyboard.press("ArrowDown")
    wait_for(bridge, lambda: bridge.page.locator(BLOCKS).get_attribute("data-mode") == "owner")
    assert bridge.page.evaluate("window.keys") == 0


def test_a_selected_table_is_lit_in_logical_order(open_page: Open) -> None:
    bridge, blocks = show_blocks(open_page, num_blocks=20_000)  # cells too small for a number
    seq = max(bridge.engine.live.values(), key=lambda seq: len(seq.block_table))
    choose(bridge, "refs")
    bridge.explorer.select("sequence", seq.seq_id)
    bridge.settle()
    table = seq.block_table
    far = [pixel(blocks.canvas, *blocks.place(block).values())[:3] for block in (table[0], table[-1], 19_000)]
    assert len(set(far)) == 3
    assert far[1] == (0x15, 0x65, 0xC0), "the last one has the full accent"


def test_a_million_blocks_are_drawn_in_every_mode(open_page: Open) -> None:
    bridge, engine = open_page(), toy_engine(1_000_000, 4, max_num_batched_tokens=200_000)
    engine.subscribe(bridge.explorer.push)
    bridge.show("block_view")
    for i in range(20):
        engine.add_request([i] * 9_000, greedy(4))
    engine.step()
    bridge.explorer.flush()
    blocks = Blocks(bridge)
    wait_for(bridge, lambda: blocks.root.get_attribute("data-step") == "1")
    place = blocks.place(10_000)
    for mode in ("state", "owner", "refs", "age", "hash"):
        choose(bridge, mode)
        wait_for(bridge, lambda: pixel(blocks.canvas, 4, 2) != pixel(blocks.canvas, place["x"], 250))
    engine.step()
    bridge.explorer.flush()
    told(blocks, lambda text: "longest run that nobody holds: 954,980" in text)


@pytest.mark.parametrize("what", ["block_view", ""])
def test_j08_a_view_without_its_kernel_shows_the_last_frame(open_page: Open, what: str) -> None:
    """ipywidgets#3773, ipympl#255: opened again from what was saved, with nobody to answer."""
    bridge, _ = show_blocks(open_page)
    expected = told(Blocks(bridge), lambda text: "96 blocks" in text)
    bridge.open()
    bridge.comm.on_send = None  # the kernel is gone: what the page asks from now on is not answered
    bridge.explorer._feed.stop()
    bridge.explorer.on_msg(bridge.explorer._on_message, remove=True)
    bridge.page.evaluate("names => show(names)", [what] if what else [])
    bridge.settle()
    blocks = Blocks(bridge)
    assert told(blocks, lambda text: "96 blocks" in text) == expected
    blocks.hover(0)
    assert "shared" in told(blocks, lambda text: "block 0" in text)
    assert blocks.root.get_attribute("data-step") == "38"


def test_decoded_text_is_still_told(open_page: Open) -> None:
    bridge, blocks = show_blocks(open_page)
    choose(bridge, "hash")
    blocks.hover(0)
    text = told(blocks, lambda text: "hash " in text.split("\n")[0])
    first = next(iter(bridge.engine.live.values())).token_ids[:16]
    assert decode(first) in text
