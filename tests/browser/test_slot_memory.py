"""The slot and the memory view in a real browser: formulas under pointer and keyboard, selection, the question."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator

from nvexplore.engine.engine import Engine
from nvexplore.notebook.explorer import POSITIONS
from nvexplore.runner.memory_ledger import MemoryLedger
from nvexplore.runner.slots import slots_of
from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import LAB_DARK, Bridge
from tests.browser.conftest import Open
from tests.browser.demo_run import HOSTILE, decode, demo_engine, demo_steps
from tests.browser.pages import wait_for
from tests.fakes import toy_engine
from tests.situations import GraphRunner

pytestmark = pytest.mark.browser
SLOTS, MEMORY = ".nvx-slots", ".nvx-memory"
LEDGER = MemoryLedger(
    device="toy <b>",
    weights=1000,
    block_bytes=2048,
    num_blocks=96,
    num_blocks_from="200,000 bytes available / 2,048 a block = 97, of which 96 can be in use at a time",
    total=300_000,
)


def drawn(bridge: Bridge, step: int) -> None:
    roots = [bridge.page.locator(root) for root in (SLOTS, MEMORY) if bridge.page.locator(root).count()]
    wait_for(bridge, lambda: all(root.get_attribute("data-step") == str(step) for root in roots))


def show_both(open_page: Open, **context: Any) -> Bridge:
    """Both views after 38 steps of the demo run."""
    options = {"decode": decode, "memory": LEDGER}
    bridge = open_page(options, viewport={"width": 980, "height": 4000}, **context)
    bridge.engine = demo_engine()
    bridge.engine.subscribe(bridge.explorer.push)
    bridge.show("slot_view", "memory_view")
    for _ in demo_steps(bridge.engine, 38):
        pass
    bridge.explorer.flush()
    drawn(bridge, 37)
    return bridge


def live(engine: Engine, name: str) -> Any:
    return next(seq for seq in engine.live.values() if seq.request_id == name)


def line(bridge: Bridge, root: str = SLOTS) -> Locator:
    return bridge.page.locator(f"{root} .nvx-line")


def says(bridge: Bridge, text: str, root: str = SLOTS) -> None:
    wait_for(bridge, lambda: text in line(bridge, root).inner_text())


def cell(bridge: Bridge, key: str) -> Locator:
    return bridge.page.locator(f"{SLOTS} td[data-key='{key}']")


def cells_of(bridge: Bridge, seq_id: int) -> tuple[int, list[Locator]]:
    """The row of a decoding sequence, and the cells of its token."""
    name = bridge.page.locator(f"{SLOTS} .nvx-slots-group td[data-id='{seq_id}']")
    row = int((name.get_attribute("data-key") or "").split()[0])
    return row, bridge.page.locator(f"{SLOTS} td[data-key^='{row} 0 ']").all()


def test_a_number_under_the_pointer_writes_its_formula_out(open_page: Open) -> None:
    shown = show_both(open_page)
    assert line(shown).get_attribute("role") == "status"
    says(shown, "6 tokens in 6 rows")
    seq = live(shown.engine, "report")
    row, cells = cells_of(shown, seq.seq_id)
    position = seq.num_computed_tokens - 1
    (slot,) = slots_of(seq.block_table, 16, position, position + 1)
    assert [each.inner_text() for each in cells[1:]] == [
        str(n) for n in (seq.token_ids[position], position, position // 16, seq.block_table[position // 16], slot)
    ]
    cells[5].hover()
    block, offset = seq.block_table[position // 16], position % 16
    says(shown, f"slot {slot} = block_table[{position // 16}] ({block}) * 16 + {position} % 16 ({offset})")
    cells[3].hover()
    says(shown, f"logical block {position // 16} = {position} // 16")
    cell(shown, f"line {row} 2").hover()
    says(shown, f"context_lens[{row}] = {position} cached or computed + 1 now = {position + 1}")
    cell(shown, "line 2 0").hover()
    says(shown, "cu_seqlens_q[2] = 1 + 1 = 2")
    cell(shown, "line 1 1").hover()
    before = line(shown).inner_text()
    shown.engine.step()
    shown.explorer.flush()
    drawn(shown, 38)
    says(shown, "cu_seqlens_k[1] = 0 + ")
    assert line(shown).inner_text() != before, "what is under the pointer is that of the new step"
    shown.page.mouse.move(5, 5)
    says(shown, "6 tokens in 6 rows")


def test_a_click_selects_the_token_the_block_or_the_sequence(open_page: Open) -> None:
    shown = show_both(open_page)
    seq = live(shown.engine, "report")
    position, row = seq.num_computed_tokens - 1, cells_of(shown, seq.seq_id)[0]
    first = shown.page.locator(f"{SLOTS} .nvx-slots-group .nvx-slots-name").first.inner_text()
    cells_of(shown, seq.seq_id)[1][5].click()
    wait_for(shown, lambda: shown.explorer.selection == ("token", seq.seq_id * POSITIONS + position))
    wait_for(shown, lambda: cells_of(shown, seq.seq_id)[1][0].get_attribute("aria-selected") == "true")
    block = cells_of(shown, seq.seq_id)[1][4]
    assert "nvx-slot-lit" in (block.get_attribute("class") or "") and block.get_attribute("aria-selected") == "false"
    names = shown.page.locator(f"{SLOTS} .nvx-slots-group .nvx-slots-name")
    assert names.first.inner_text() == first != "request report", "what is chosen here stays where it is"
    block.click()
    wait_for(shown, lambda: shown.explorer.selection == ("block", seq.block_table[position // 16]))
    cell(shown, f"{row} name").click()
    wait_for(shown, lambda: shown.explorer.selection == ("sequence", seq.seq_id))
    shown.explorer.select("none", -1)
    shown.explorer.select("sequence", live(shown.engine, "chat-4").seq_id)
    wait_for(shown, lambda: names.first.inner_text() == "request chat-4")


def test_the_arrow_keys_walk_both_grids(open_page: Open) -> None:
    shown = show_both(open_page)
    grids = shown.page.locator(f"{SLOTS} [role=grid]")
    assert [grid.get_attribute("aria-label") for grid in grids.all()] == [
        "Tokens and their slots",
        "Arrays of the batch",
    ]
    for grid in grids.all():
        assert grid.locator("td[tabindex='0']").count() == 1
    grids.first.locator("td[tabindex='0']").focus()
    for key in ("ArrowDown", "End"):
        shown.page.keyboard.press(key)
    says(shown, "slot ")
    shown.page.keyboard.press("ArrowLeft")
    says(shown, "block_tables[0][")
    shown.page.keyboard.press("Enter")
    wait_for(shown, lambda: shown.explorer.selection[0] == "block")
    before = shown.page.evaluate("document.activeElement.dataset.key")
    shown.engine.step()
    shown.explorer.flush()
    drawn(shown, 38)
    assert shown.page.evaluate("document.activeElement.dataset.key") == before, "the focus survives news"
    shown.page.keyboard.press("Escape")
    wait_for(shown, lambda: shown.explorer.selection == ("none", -1))


def test_a_past_step_with_chunks_and_hostile_text(open_page: Open) -> None:
    shown = show_both(open_page)
    step = next(
        record.step
        for record in shown.explorer.recorder.records
        if HOSTILE in [shown.explorer.recorder.requests[i].request_id for i in record.planned.seq_id]
        and any(record.planned.is_prefill)
    )
    shown.explorer.cursor = step
    drawn(shown, step)
    planned = shown.explorer.recorder.record_of(step).planned
    says(shown, f"{sum(planned.count)} tokens in {len(planned.seq_id)} rows")
    assert shown.page.locator(f"{SLOTS} img, {SLOTS} script, {MEMORY} b").count() == 0
    names = shown.page.locator(f"{SLOTS} .nvx-slots-name").all_inner_texts()
    assert any("</script><img src=x onerror=alert(1)> ‹202e›drawkcab" in name for name in names)
    assert "prefill of" in shown.page.locator(SLOTS).inner_text()


def test_padding_of_a_graph(open_page: Open) -> None:
    bridge, engine = open_page(), toy_engine(32, 4, make_runner=GraphRunner)
    for i in range(3):
        engine.add_request([i + 1] * (3 + 4 * i), SamplingParams(max_tokens=5), request_id=f"r{i}")
    engine.subscribe(bridge.explorer.push)
    bridge.show("slot_view")
    engine.step()
    engine.step()
    bridge.explorer.flush()
    drawn(bridge, 1)
    says(bridge, "1 row of padding")
    assert cell(bridge, "padding 0 5").inner_text() == "-1"
    cell(bridge, "padding 0 5").hover()
    says(bridge, "slot_mapping[3] = -1: its key and value are not stored")
    table = [cell(bridge, f"line 3 {i}").inner_text() for i in range(2, 6)]
    assert table == ["0", "-1", "-1", "-1"]


def test_one_more_sequence(open_page: Open) -> None:
    shown = show_both(open_page)
    root, field = shown.page.locator(MEMORY), shown.page.locator(f"{MEMORY} input")
    need = shown.page.locator(".nvx-memory-need")

    def ask(length: str, verdict: str) -> str:
        field.fill(length)
        wait_for(shown, lambda: root.get_attribute("data-verdict") == verdict and "…" not in need.inner_text())
        return need.inner_text()

    free, hashed = shown.engine.blocks.free, [b for b in shown.engine.blocks.free if shown.engine.blocks.hash_of(b)]
    said = ask("1000", "waits")
    assert f"{len(free)} blocks can be had" in said and "ceil(1,000 / 16) = 63 blocks" in said
    assert "cached block" in ask(str(16 * len(free)), "evicts") and hashed
    assert "Never fits: the pool has 96 blocks." in ask("1537", "never")
    assert "whole number of tokens" in ask("-3", "") and field.get_attribute("aria-invalid") == "true"
    field.focus()
    field.fill("16")
    shown.page.keyboard.press("ArrowUp")
    wait_for(shown, lambda: "ceil(17 / 16) = 2 blocks" in need.inner_text())


def test_the_bars_say_their_numbers_and_the_ledger_its_arithmetic(open_page: Open) -> None:
    shown = show_both(open_page)
    text = shown.page.locator(MEMORY).inner_text()
    counts = shown.store("store.countBlocks()")
    words = shown.page.locator(f"{MEMORY} canvas[role=img]").first.get_attribute("aria-label") or ""
    for name, n in zip(("free", "cached", "used", "shared"), counts, strict=True):
        assert f"{name} {n} (" in text and f"{name} {n} (" in words
    held = counts[2] + counts[3]
    says(shown, f"{held} of 96 blocks in use", MEMORY)
    assert f"{held} blocks in use * 16 = {held * 16:,} slots" in text
    assert "pool = 96 blocks * 2,048 bytes = 196,608 bytes" in text and "toy <b>" in text
    assert "200,000 bytes available / 2,048 a block = 97, of which 96 can be in use at a time" in text


def test_without_a_ledger_and_before_anything_has_run(open_page: Open) -> None:
    bridge, engine = open_page(), demo_engine()
    bridge.show("slot_view", "memory_view")
    for root in (SLOTS, MEMORY):
        assert line(bridge, root).inner_text().strip() == "Nothing has run yet."
    engine.subscribe(bridge.explorer.push)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=3))
    engine.step()
    bridge.explorer.flush()
    drawn(bridge, 0)
    assert "This engine has no memory ledger" in bridge.page.locator(MEMORY).inner_text()


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_and_dark_pages_scroll_inside_the_view(open_page: Open, dark: bool) -> None:
    shown = show_both(open_page)
    if dark:
        shown.page.add_style_tag(content=LAB_DARK)
    shown.page.set_viewport_size({"width": 320, "height": 4000})
    shown.settle()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 320
    scheme = shown.page.locator(MEMORY).evaluate("el => getComputedStyle(el).colorScheme")
    wait_for(shown, lambda: scheme == ("dark" if dark else "light"))
    place = shown.page.locator(".nvx-slots-place").first
    assert place.evaluate("el => el.scrollWidth >= el.clientWidth && el.clientWidth <= 290")
