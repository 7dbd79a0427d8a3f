"""The terms in what views say: underlined, explained to the pointer and the keyboard, and kept through redraws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvexplore.explore.glossary import GLOSSARY
from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import Bridge
from tests.browser.demo_run import demo_engine, demo_steps
from tests.browser.pages import BLOCKS, SCHEDULE, Schedule, wait_for
from tests.fakes import toy_engine

pytestmark = pytest.mark.browser
VIEWS = ("schedule", "block", "why", "throughput", "prefix", "slot", "memory")
NOT_SAID = {
    "CUDA graph",
    "planned ahead",
    "padding (-1)",
    "slot_mapping",
    "largest step",
    "salt",
    "max_num_seqs",
    "rank",
}
"""Terms of what the demo run has none of: a GPU, requests with a salt, more requests than places, several processes."""


def shown(bridge: Bridge, root: str = "main") -> list[str]:
    """The terms that are underlined there, in the order in which they stand."""
    script = "root => [...document.querySelectorAll(`${root} .nvx-term`)].map((el) => el.dataset.term)"
    terms: list[str] = bridge.page.evaluate(script, root)
    return terms


def focused(bridge: Bridge) -> Any:
    return bridge.page.evaluate("() => document.activeElement.dataset.term ?? null")


@pytest.fixture
def all_views(run: Bridge) -> Bridge:
    run.open()
    run.show(*(f"{name}_view" for name in VIEWS))
    wait_for(run, lambda: run.page.locator(".nvx-why .nvx-term").count() > 0)
    return run


def test_every_term_that_is_shown_is_in_the_glossary_and_nearly_all_are_shown(all_views: Bridge) -> None:
    bridge, found = all_views, set(shown(all_views))
    schedule = Schedule(bridge)

    def look(step: int, kind: str, id: int) -> None:
        bridge.explorer.cursor = step
        bridge.explorer.select(kind, id)
        for _ in range(3):
            bridge.settle()
            bridge.page.wait_for_timeout(50)
        found.update(shown(bridge))

    for step, seq_id in ((26, 10), (29, 10), (31, 10), (33, 10), (2, 3), (13, 8)):
        look(step, "sequence", seq_id)
    look(33, "block", 0)
    look(-1, "block", 12)
    cell = schedule.place(1, 0)
    schedule.canvas.hover(position={"x": cell["x"], "y": cell["y"]})
    wait_for(bridge, lambda: "chunk" in schedule.line.inner_text())
    found.update(shown(bridge))
    assert found <= set(GLOSSARY)
    assert set(GLOSSARY) - found == NOT_SAID


def test_a_click_explains_and_another_one_ends_that(run: Bridge) -> None:
    term = run.page.locator(f"{SCHEDULE} .nvx-legend .nvx-term").filter(has_text="recompute")
    line = run.page.locator(f"{SCHEDULE} .nvx-meaning")
    assert GLOSSARY["recompute"].text in str(term.get_attribute("title"))
    assert "a prefill chunk with tokens that a preemption had thrown away\n" in str(term.get_attribute("title"))
    term.click()
    assert line.inner_text() == f"recompute: {GLOSSARY['recompute'].text}" and line.get_attribute("role") == "note"
    term.click()
    assert line.is_hidden()
    term.click()
    run.page.locator(f"{BLOCKS} h3").click(position={"x": 60, "y": 2})
    assert line.is_hidden(), "a click elsewhere"


def test_a_term_of_the_status_line_is_explained_above_it(run: Bridge) -> None:
    place = run.page.locator(f"{BLOCKS} .nvx-line")
    place.locator(".nvx-term").first.click()
    said, below = run.page.locator(f"{BLOCKS} .nvx-meaning").bounding_box(), place.bounding_box()
    assert said is not None and below is not None
    assert said["y"] + said["height"] <= below["y"] + 8
    assert said["x"] >= 0 and said["x"] + said["width"] <= 980


def test_the_terms_of_a_view_are_one_stop_of_the_tab_key(all_views: Bridge) -> None:
    page = all_views.page
    script = """() => [...document.querySelectorAll(".nvx-panel")].map(
        (view) => view.querySelectorAll('.nvx-term[tabindex="0"]').length)"""
    assert page.evaluate(script) == [1] * len(VIEWS)
    terms = shown(all_views, SCHEDULE)
    page.locator(f"{SCHEDULE} .nvx-term[tabindex='0']").focus()
    line = page.locator(f"{SCHEDULE} .nvx-meaning")
    assert focused(all_views) == terms[0] and line.inner_text().startswith(f"{terms[0]}: ")
    page.keyboard.press("ArrowRight")
    assert focused(all_views) == terms[1] and line.inner_text().startswith(f"{terms[1]}: ")
    page.keyboard.press("End")
    assert focused(all_views) == terms[-1]
    page.keyboard.press("Escape")
    assert line.is_hidden()
    page.keyboard.press("Enter")
    assert line.is_visible()
    page.keyboard.press("Tab")
    assert line.is_hidden() and page.evaluate(script) == [1] * len(VIEWS)


def test_the_focus_stays_on_its_term_while_steps_go_by(open_page: Callable[..., Bridge]) -> None:
    bridge, engine = open_page(), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.show()
    steps = demo_steps(engine, 24)
    for _ in range(6):
        next(steps)
    bridge.explorer.keyframe()
    bridge.settle()
    bridge.page.locator(f"{SCHEDULE} .nvx-line .nvx-term[data-term='running']").focus()
    before = bridge.page.locator(f"{SCHEDULE} .nvx-line").inner_text()
    for _ in steps:
        bridge.explorer.flush()
        bridge.settle()
    assert bridge.page.locator(f"{SCHEDULE} .nvx-line").inner_text() != before
    assert focused(bridge) == "running"
    assert bridge.page.locator(f"{SCHEDULE} .nvx-meaning").inner_text().startswith("running: ")


def test_the_same_again_is_not_announced_again(run: Bridge) -> None:
    """The status line is left alone by a draw that changes no word, also when one of its terms has the focus."""
    run.page.locator(f"{BLOCKS} .nvx-line .nvx-term").first.focus()
    run.page.evaluate(
        """root => { window.changes = 0; new MutationObserver((all) => (window.changes += all.length)).observe(
        document.querySelector(`${root} .nvx-line`), { childList: true, subtree: true, characterData: true }) }""",
        BLOCKS,
    )
    for _ in range(3):
        run.page.evaluate("() => explorer().store.changed()")
        run.settle()
    assert run.page.evaluate("() => window.changes") == 0


def test_a_request_named_like_markup_or_like_a_term_is_text(open_page: Callable[..., Bridge]) -> None:
    bridge, engine = open_page(), toy_engine(16, 4)
    for name in ("<b>block</b>", "prefill"):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=5), request_id=name)
    engine.subscribe(bridge.explorer.push)
    bridge.show()
    engine.step()
    bridge.explorer.keyframe()
    bridge.explorer.select("sequence", 0)
    line = bridge.page.locator(f"{SCHEDULE} .nvx-line")
    wait_for(bridge, lambda: "<b>block</b>" in line.inner_text())
    assert bridge.page.locator(f"{SCHEDULE} .nvx-line b b").count() == 0
    assert line.locator("b .nvx-term").count() == 0, "a name is not what it is named like"
