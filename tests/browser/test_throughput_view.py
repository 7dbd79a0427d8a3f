"""The throughput view in a real browser, and the schedule at a past step: what they show, and where a click leads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator

from tests.browser.bridge import LAB_DARK, Bridge
from tests.browser.conftest import Open
from tests.browser.demo_run import HOSTILE, demo_engine, demo_steps
from tests.browser.pages import SCHEDULE, Schedule, number, pixel, row_of, told, wait_for
from tests.watch import greedy

pytestmark = pytest.mark.browser
RATES, ROWS = ".nvx-throughput", ".nvx-rate-table tbody tr"


class Rates:
    """The throughput view: where a step is."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.root = bridge, bridge.page.locator(RATES)
        self.canvas, self.line = self.root.locator(".nvx-field canvas"), self.root.locator(".nvx-line")

    def place(self, step: int, y: int = 40) -> Any:
        """The middle of a step: its width is the time that it took."""
        us = [int(n) for n in self.bridge.store("store.columns.map((c) => c.us)")]
        left, width = number(self.root, "left"), self.canvas.bounding_box()["width"] - 10  # type: ignore[index]
        before = sum(us[:step]) + us[step] / 2
        return {"x": left + before / sum(us) * (width - left), "y": y}


def show_rates(open_page: Open, *views: str, steps: int = 38, **context: object) -> Bridge:
    bridge, engine = open_page(**{"viewport": {"width": 980, "height": 4000}, **context}), demo_engine()
    bridge.engine = engine
    engine.subscribe(bridge.explorer.push)
    bridge.show("throughput_view", *views)
    for _ in demo_steps(engine, steps):
        pass
    bridge.explorer.flush()
    shows(bridge, steps - 1)
    return bridge


def shows(bridge: Bridge, step: int) -> None:
    """Wait until the view shows a step and what Python told about it."""
    root = bridge.page.locator(RATES)
    names = ("data-shown", "data-told")
    wait_for(bridge, lambda: [root.get_attribute(name) for name in names] == [str(step)] * 2)


def longest_step(bridge: Bridge) -> int:
    us = bridge.store("store.columns.map((c) => c.us)")
    return int(max(range(1, len(us)), key=us.__getitem__))


def row(bridge: Bridge, name: str) -> Locator:
    return bridge.page.locator(ROWS).filter(has=bridge.page.locator(f"button:has-text('{name}')")).first


def cells(row: Locator) -> list[str]:
    return [text.strip() for text in row.locator("th, td").all_inner_texts()]


def test_the_line_says_the_rates_of_the_newest_step(open_page: Open) -> None:
    shown = show_rates(open_page)
    text = Rates(shown).line.inner_text()
    assert re.match(r"step 37\W+prefill [\d,]+ tokens/s", text) and "ms of engine time" in text
    assert Rates(shown).line.get_attribute("role") == "status"
    columns = shown.store("store.columns.map((c) => [c.us, c.decode])")
    found = re.search(r"decode ([\d,]+) tokens/s\W+rates over (?:the last (\d+) steps|this step)", text)
    assert found is not None
    last = columns[-int(found[2] or 1) :]
    assert int(found[1].replace(",", "")) == pytest.approx(
        1e6 * sum(n for _, n in last) / sum(us for us, _ in last), abs=1
    )


def test_a_click_on_a_step_looks_at_it_and_later_ones_are_dimmed(open_page: Open) -> None:
    shown = show_rates(open_page, "schedule_view")
    rates, step = Rates(shown), longest_step(shown)
    rates.canvas.hover(position=rates.place(step))
    wait_for(shown, lambda: rates.line.inner_text().startswith(f"step {step}"))
    rates.canvas.click(position=rates.place(step))
    shows(shown, step)
    wait_for(shown, lambda: shown.explorer.cursor == step)
    assert shown.page.locator(SCHEDULE).get_attribute("data-shown") == str(step)
    rates.canvas.click(position=rates.place(step))
    wait_for(shown, lambda: shown.explorer.cursor == -1)
    shows(shown, 37)


def test_the_keyboard_walks_the_steps(open_page: Open) -> None:
    shown = show_rates(open_page)
    rates, page = Rates(shown), shown.page
    assert rates.canvas.get_attribute("role") == "grid" and rates.canvas.get_attribute("aria-colcount") == "38"
    rates.canvas.focus()
    cell = rates.canvas.locator("[role=gridcell]")
    page.keyboard.press("Home")
    shown.settle()
    assert cell.inner_text().startswith("step 0: prefill ") and rates.line.inner_text().startswith("step 0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for(shown, lambda: shown.explorer.cursor == 1)
    page.keyboard.press("Escape")
    wait_for(shown, lambda: shown.explorer.cursor == -1)
    assert cell.get_attribute("aria-colindex") == "38"


def test_latencies_are_those_of_the_step_that_is_shown(open_page: Open) -> None:
    shown = show_rates(open_page)
    tokens = {seq.request_id: len(seq.token_ids) - seq.num_prompt_tokens for seq in shown.engine.live.values()}
    for name, number_of in tokens.items():
        assert cells(row(shown, name))[-1] == str(number_of)
        assert re.fullmatch(r"[\d.]+ ms", cells(row(shown, name))[1])
    shown.explorer.cursor = 26
    shows(shown, 26)
    assert cells(row(shown, "too-slow"))[1].startswith("none in ") and cells(row(shown, "too-slow"))[2:] == [
        "-",
        "-",
        "0",
    ]
    assert shown.page.locator(ROWS).count() == 12
    shown.explorer.cursor = 1
    shows(shown, 1)
    assert shown.page.locator(ROWS).count() == 2


def test_the_table_says_that_pauses_are_left_out(open_page: Open) -> None:
    shown = show_rates(open_page)
    heads = shown.page.locator(f"{RATES} thead th")
    titles = {head.inner_text(): head.get_attribute("title") or "" for head in heads.all()}
    for name in ("first token", "between tokens", "longest"):
        assert titles[name].endswith(", pauses of the engine left out")
    note = shown.page.locator(".nvx-rate-note")
    assert note.is_visible() and note.inner_text() == "Engine time: pauses of the engine left out"
    shown.page.locator(".nvx-rate-table").evaluate("el => el.scrollTo(0, 1000)")
    assert note.bounding_box()["y"] > row(shown, "haiku").bounding_box()["y"]  # type: ignore[index]


def test_names_that_begin_alike_stay_apart_where_room_is_short(open_page: Open) -> None:
    bridge, engine = open_page(viewport={"width": 400, "height": 4000}), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.show("throughput_view")
    for i in (17, 18):
        engine.add_request([i] * 5, greedy(3), request_id=f"request-number-{i}")
    engine.step()
    bridge.explorer.flush()
    shows(bridge, 0)
    cut = "(all) => all.filter((b) => b.scrollWidth > b.clientWidth || b.scrollHeight > b.clientHeight + 1).length"
    names = bridge.page.locator(f"{ROWS} th bdi")
    assert (names.count(), names.evaluate_all(cut)) == (2, 0)


def test_a_name_selects_its_request_and_is_marked(open_page: Open) -> None:
    shown = show_rates(open_page)
    button = row(shown, "report").get_by_role("button", name="report")
    button.click()
    seq = next(seq for seq in shown.engine.live.values() if seq.request_id == "report")
    wait_for(shown, lambda: shown.explorer.selection == ("sequence", seq.seq_id))
    wait_for(shown, lambda: row(shown, "report").get_attribute("data-lit") == "true")
    assert button.get_attribute("aria-pressed") == "true"
    assert shown.page.locator(f"{ROWS}[data-lit=true]").count() == 1


def test_hostile_names_stay_text(open_page: Open) -> None:
    shown = show_rates(open_page)
    names = shown.page.locator(f"{ROWS} button").all_inner_texts()
    assert any(name.startswith("</script><img src=x onerror=alert(1)> ‹202e›drawkcab‹202c›") for name in names)
    assert HOSTILE not in names and shown.page.locator(f"{RATES} img:not([src^='data:image/png'])").count() == 0


def test_a_pause_between_single_steps_is_told_and_left_out(open_page: Open) -> None:
    shown = show_rates(open_page, steps=6)
    shown.page.wait_for_timeout(400)
    shown.engine.step()
    shown.explorer.flush()
    shows(shown, 6)
    text = Rates(shown).line.inner_text()
    assert re.search(r"after a pause of [\d.]+ (ms|s)", text)
    assert shown.store("store.columns.reduce((sum, c) => sum + c.us, 0)") < 400_000
    shown.engine.step()
    shown.engine.step()  # at once after the one before, however long the page has taken
    shown.explorer.flush()
    shows(shown, 8)
    assert "pause" not in Rates(shown).line.inner_text()


def test_before_anything_has_run(open_page: Open) -> None:
    bridge = open_page()
    bridge.show("throughput_view")
    assert bridge.page.locator(f"{RATES} .nvx-line").inner_text().strip() == "Nothing has run yet."
    assert bridge.page.locator(".nvx-rate-table").is_hidden()


@pytest.mark.parametrize("width", [320, 620, 1600])
def test_every_width_is_usable(open_page: Open, width: int) -> None:
    # With a step in which the request of the long name still runs.
    bridge = show_rates(open_page, "schedule_view", "why_view", steps=25, viewport={"width": width, "height": 4000})
    assert bridge.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    beyond = "[...document.querySelectorAll('.nvx *')].filter((e) => e.getBoundingClientRect().right > innerWidth)"
    assert bridge.page.evaluate(f"{beyond}.map((e) => e.outerHTML.slice(0, 80))") == []


def test_it_is_drawn_in_the_notebook_s_colours(open_page: Open) -> None:
    shown = show_rates(open_page)
    rates = Rates(shown)
    step = shown.store("store.columns.findIndex((c) => c.prefill === 128)")
    spot = rates.place(step, 74)
    assert pixel(rates.canvas, spot["x"], spot["y"])[:3] == (0x2A, 0x78, 0xB8)
    shown.page.add_style_tag(content=LAB_DARK)
    shown.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    wait_for(shown, lambda: pixel(rates.canvas, spot["x"], spot["y"])[:3] == (0x4A, 0x9E, 0xDB))


def test_the_schedule_keeps_its_rows_at_a_past_step(open_page: Open) -> None:
    shown = show_rates(open_page, "schedule_view")
    schedule = Schedule(shown)
    later = schedule.place(row_of(shown, "report"), 37)
    bright = pixel(schedule.canvas, later["x"], later["y"])
    assert number(schedule.root, "rows") == 12
    shown.explorer.cursor = 12
    wait_for(shown, lambda: schedule.root.get_attribute("data-shown") == "12")
    shown.settle()
    assert number(schedule.root, "rows") == 12, "the later ones too"
    assert schedule.line.inner_text().startswith("step 12")
    assert bright != pixel(schedule.canvas, later["x"], later["y"]) != (0, 0, 0, 0), "dimmed, not gone"
    schedule.canvas.hover(position=schedule.place(row_of(shown, "report"), 37))
    told(schedule, lambda text: text.startswith("report") and "step 37" in text and "decode of 1 token" in text)
    schedule.canvas.hover(position=schedule.place(row_of(shown, "report"), -1))
    told(schedule, lambda text: text.startswith("report") and "not there yet in step 12" in text)
    schedule.canvas.hover(position=schedule.place(row_of(shown, "haiku"), -1))
    tokens = shown.explorer.recorder.state_at(12).sequences[row_of(shown, "haiku")].token_ids
    told(schedule, lambda text: text.startswith("haiku") and f"+ {len(tokens) - 73} generated" in text)


def test_a_preemption_s_arrow_leads_to_its_cause(open_page: Open) -> None:
    shown = show_rates(open_page, "schedule_view")
    schedule = Schedule(shown)
    victim, cause = schedule.place(row_of(shown, "chat-4"), 31), schedule.place(row_of(shown, "chat-3"), 31)
    between = pixel(schedule.canvas, victim["x"], (victim["y"] + cause["y"]) / 2)
    assert all(abs(a - b) < 40 for a, b in zip(between, (0xCF, 0x5A, 0x12), strict=False)), "its line, with soft edges"
    beside = schedule.place(row_of(shown, "chat-4"), 30)
    assert pixel(schedule.canvas, beside["x"], (victim["y"] + cause["y"]) / 2)[:3] != between[:3]
