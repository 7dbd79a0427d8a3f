"""Pointing at things, selecting them and pressing buttons, with mouse and keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from nvexplore.notebook.timeline import ADMITTED, DECODE, PREEMPTED, RECOMPUTE, SAMPLES
from tests.browser.bridge import Bridge
from tests.browser.demo_run import decode
from tests.browser.pages import BLOCKS, SCHEDULE, Blocks, Schedule, all_sequences, pixel, row_of, told, wait_for

pytestmark = pytest.mark.browser


def test_hovering_a_block_tells_all_about_it(run: Bridge) -> None:
    blocks = Blocks(run)
    seq = next(s for s in run.engine.live.values() if s.request_id == "long-essay")
    block = seq.block_table[3]
    blocks.hover(block)
    text = told(blocks, lambda text: "hash" in text)
    for part in (f"block {block}", "used", "ref count 1", "16 of 16 tokens", "long-essay (its block 3)"):
        assert part in text
    assert f"{run.engine.snapshot().hash[block]:016x}" in text
    assert decode(seq.token_ids[48:64]) in text
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
    step = run.explorer._feed.mirror.born[seq.seq_id]
    schedule.canvas.click(position=schedule.place(seq.seq_id, step))
    wait_for(run, lambda: run.explorer.selection == ("sequence", seq.seq_id))
    wait_for(run, lambda: run.explorer.cursor == step)
    wait_for(run, lambda: run.store("store.shownStep") == step)
    table = run.explorer.recorder.state_at(step).sequences[seq.seq_id].block_table
    assert run.store("[...store.litBlocks()]") == [[block, i] for i, block in enumerate(table)]
    run.settle()
    schedule.canvas.click(position=schedule.place(seq.seq_id, step))
    wait_for(run, lambda: run.explorer.selection == ("none", -1) and run.explorer.cursor == -1)


def test_python_selects_too(run: Bridge) -> None:
    run.explorer.select("sequence", 0)
    run.settle()
    assert run.store("[...store.litSequences()]") == [0]
    text = told(Schedule(run), lambda text: "→" in text)
    assert text.startswith("haiku") and "73 prompt tokens" in text


def moments(run: Bridge) -> dict[str, tuple[int, int, str]]:
    """Of each thing that can happen to a sequence in a step: its row, the step, and what must be said there."""
    mirror = run.explorer._feed.mirror
    assert mirror is not None
    found: dict[str, tuple[int, int, str]] = {}
    ran: dict[int, set[int]] = {}
    for column in mirror.timeline.columns:
        for seq_id, flags, start, count in zip(column.seq_id, column.kind, column.start, column.count, strict=True):
            ran.setdefault(seq_id, set()).add(column.step)
            place, kind = (seq_id, column.step), flags & 15
            tokens = f"{count} token{'s' * (count > 1)} ("
            if kind == PREEMPTED:
                by = mirror.find(start)
                found["preempted"] = (*place, f"preempted for {by.request_id if by else ''}: the KV of {count} token")
            elif kind == DECODE:
                found["decode"] = (*place, f"decode of {tokens}position {start})")
            elif kind == RECOMPUTE:
                found["recompute"] = (*place, f"recompute of {tokens}")
            elif flags & ADMITTED and start:
                found["hit"] = (
                    *place,
                    f"prefill of {tokens}positions {start} to {start + count - 1}, after {start} tokens",
                )
            else:
                last = "last chunk" if flags & SAMPLES else "not the last chunk"
                found[last] = (*place, f"prefill of {tokens}positions {start} to {start + count - 1}, {last})")
    for ended in mirror.ended.values():
        seq_id, first = ended.seq.seq_id, min(ran.get(ended.seq.seq_id, {ended.step}))
        found[ended.status] = (
            seq_id,
            ended.step,
            "aborted" if ended.status == "abort" else f"finished ({ended.status})",
        )
        if ended.step < 36:
            found["gone"] = (seq_id, ended.step + 1, "gone")
        if first > mirror.born[seq_id]:
            found["waiting"] = (seq_id, mirror.born[seq_id], "waiting")
        for step in range(first, ended.step):
            if step not in ran.get(seq_id, set()) and ended.seq.num_preemptions == 0:
                found["idle"] = (seq_id, step, "resident, not in this batch")
    return found


def test_hovering_the_schedule_tells_what_happened(run: Bridge) -> None:
    schedule, all_moments = Schedule(run), moments(run)
    assert len(all_moments) == 11, sorted(all_moments)
    for seq_id, step, words in all_moments.values():
        schedule.canvas.hover(position=schedule.place(seq_id, step))
        name = next(s.request_id for s in all_sequences(run) if s.seq_id == seq_id)[:6]
        told(
            schedule,
            lambda text, name=name, words=words, step=step: (
                text.startswith(name) and words in text and f"step {step}" in text
            ),
        )


def test_hovering_the_budget_tells_how_it_was_spent(run: Bridge) -> None:
    schedule = Schedule(run)
    schedule.canvas.hover(position=schedule.place(-1, 7))
    text = told(schedule, lambda text: "step 7" in text)
    assert "128 of 128 tokens (128 prefill)" in text and "blocks free (cached ones included)" in text


def test_arrow_keys_walk_the_blocks_and_enter_selects(run: Bridge) -> None:
    blocks = Blocks(run)
    assert blocks.canvas.get_attribute("role") == "grid" and blocks.canvas.get_attribute("aria-label")
    blocks.canvas.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        run.page.keyboard.press(key)
    cell = blocks.canvas.locator("[role=gridcell]")
    assert cell.text_content().startswith("block 18: ")
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
    assert re.fullmatch(
        r"translate, step 1: prefill of \d+ tokens \(positions \d+ to 112, last chunk\)", cell.text_content()
    )
    run.page.keyboard.press("Enter")
    wait_for(run, lambda: run.explorer.selection == ("sequence", 1) and run.explorer.cursor == 1)


def test_every_view_is_labelled_and_has_a_live_line(run: Bridge) -> None:
    for root in (BLOCKS, SCHEDULE):
        assert run.page.locator(root).get_attribute("aria-label")
        assert run.page.locator(f"{root} .nvx-line").get_attribute("role") == "status"
        for entry in run.page.locator(f"{root} .nvx-legend > span").all():
            assert entry.get_attribute("title")


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
