"""The cursor as a reader moves it: slider, keys, buttons; and the dashboard's further views."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.bridge import Bridge
from tests.browser.conftest import Open
from tests.browser.demo_run import demo_engine, demo_steps
from tests.browser.pages import BLOCKS, Blocks, number, wait_for

pytestmark = pytest.mark.browser
SLIDER = ".nvx-cursor input"


def shows(bridge: Bridge, step: int) -> bool:
    """Whether the page holds that step as the recorder has it."""
    snapshot = bridge.explorer.recorder.state_at(step).snapshot()
    words = [2 * n + (h is not None) for n, h in zip(snapshot.ref_count, snapshot.hash, strict=True)]
    return bool(bridge.store("[store.shownStep, [...store.words], store.running]") == [step, words, snapshot.running])


def text(bridge: Bridge) -> str:
    return str(bridge.page.locator(".nvx-step").inner_text())


def test_the_slider_shows_any_step_as_it_was(run: Bridge) -> None:
    slider = run.page.locator(SLIDER)
    assert [slider.get_attribute(name) for name in ("min", "max", "aria-label")] == [
        "0",
        "37",
        "Step that is looked at",
    ]
    assert slider.get_attribute("aria-valuetext") == "step 37 of 37"
    slider.fill("12")
    wait_for(run, lambda: shows(run, 12))
    run.settle()
    assert text(run) == "step 12 of 37 · past"
    assert slider.get_attribute("aria-valuetext") == "step 12 of 37"
    assert number(run.page.locator(BLOCKS), "step") == 13
    wait_for(run, lambda: run.explorer.cursor == 12)
    slider.focus()
    for key, step in (("ArrowRight", 13), ("ArrowLeft", 12), ("Home", 0), ("ArrowUp", 1)):
        run.page.keyboard.press(key)
        wait_for(run, lambda step=step: shows(run, step))
    run.page.keyboard.press("End")
    wait_for(run, lambda: run.explorer.cursor == -1)
    run.settle()
    assert text(run) == "38 steps"


def test_buttons_go_a_step_back_and_forward_and_to_the_newest(run: Bridge) -> None:
    back, forward, live = (run.page.get_by_role("button", name=name) for name in ("Back", "Forward", "Live"))
    assert live.get_attribute("aria-pressed") == "true" and forward.get_attribute("aria-disabled") == "true"
    back.click()
    wait_for(run, lambda: shows(run, 36))
    run.settle()
    assert live.get_attribute("aria-pressed") == "false"
    back.click()
    wait_for(run, lambda: shows(run, 35))
    forward.click()
    wait_for(run, lambda: shows(run, 36))
    live.click()
    wait_for(run, lambda: run.explorer.cursor == -1)
    run.settle()
    assert run.store("[store.isPast, store.shownStep]") == [False, 37]
    assert live.get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("has_controls", [True, False])  # a recording has none
@pytest.mark.parametrize("width", [320, 400, 620, 980, 1080, 1180, 1200, 1280, 1600])
def test_nothing_moves_when_the_past_is_entered(open_page: Open, width: int, has_controls: bool) -> None:
    """Neither the slider and its buttons, which the pointer is on, nor what stands below them."""
    bridge, engine = open_page(viewport={"width": width, "height": 4000}), demo_engine()
    if has_controls:
        bridge.explorer.on_command(lambda name: None)
        bridge.explorer.status = "paused"
    engine.subscribe(bridge.explorer.push)
    bridge.show()
    for _ in demo_steps(engine, 62):
        pass
    bridge.explorer.keyframe()
    bridge.settle()
    script = """() => [...document.querySelectorAll('.nvx-cursor > *, .nvx-step, .nvx-facts, .nvx-panel')].map((el) => {
        const { x, y, width, height } = el.getBoundingClientRect();
        return [el.className, x, y, width, el.matches('.nvx-panel') ? 0 : height] })"""
    before = bridge.page.evaluate(script)
    panels = [i for i, (name, *_) in enumerate(before) if "nvx-panel" in name]
    until = panels[0] + 1  # what the views themselves say may be longer or shorter
    assert until == 8, "the step, two facts, four parts of the cursor, the first view"
    assert bridge.page.locator(".nvx-buttons").is_hidden() != has_controls
    for step in (60, 1, 29):  # many and few ran, waited and held blocks
        bridge.explorer.cursor = step
        wait_for(bridge, lambda step=step: shows(bridge, step))  # type: ignore[misc]
        bridge.settle()
        assert text(bridge) == f"step {step} of 61 · past"
        assert bridge.page.evaluate(script)[:until] == before[:until]


def test_the_past_stays_while_the_engine_runs_on(run: Bridge) -> None:
    run.explorer.cursor = 20
    wait_for(run, lambda: shows(run, 20))
    Blocks(run).hover(0)
    line = run.page.locator(f"{BLOCKS} .nvx-line")
    wait_for(run, lambda: "hash" in line.inner_text())
    for _ in range(6):
        run.engine.step()
        run.explorer.flush()
        run.settle()
    assert shows(run, 20) and run.store("store.liveStep") == 43
    assert text(run) == "step 20 of 43 · past"
    assert run.page.locator(SLIDER).get_attribute("max") == "43"
    run.explorer.cursor = -1
    wait_for(run, lambda: run.store("[store.shownStep, store.isPast]") == [43, False])


def test_a_dragged_slider_has_one_question_under_way(run: Bridge) -> None:
    asked: list[int] = []
    answer = run.explorer._answer

    def count(content: dict[str, Any]) -> None:
        if content["what"] == "frame":
            asked.append(content["step"])
        answer(content)

    run.explorer._answer = count  # type: ignore[method-assign]
    script = """([selector, steps]) => { const slider = document.querySelector(selector);
        const drag = (step) => { slider.value = step; slider.dispatchEvent(new Event('input', { bubbles: true })); };
        steps.forEach(drag); }"""
    run.page.evaluate(script, [SLIDER, list(range(30, 3, -1))])
    wait_for(run, lambda: shows(run, 4))
    assert asked == [30, 4]
    wait_for(run, lambda: run.explorer.cursor == 4)


def test_what_is_no_longer_kept_is_said(run: Bridge) -> None:
    run.explorer.recorder.clear()
    run.engine.step()
    run.explorer.cursor = 12
    notice = run.page.locator(".nvx-notice")
    wait_for(run, lambda: "step 12 is no longer kept; the oldest is 38" in notice.inner_text())
    wait_for(run, lambda: run.explorer.cursor == -1)
    assert notice.get_attribute("role") == "alert"


def test_a_reload_keeps_the_cursor_and_the_open_views(run: Bridge) -> None:
    run.explorer.panels = ["memory_view"]
    run.explorer.cursor = 9
    wait_for(run, lambda: shows(run, 9))
    run.open()
    run.show("block_view")
    wait_for(run, lambda: shows(run, 9))
    assert run.page.evaluate("() => model.get('panels')") == ["memory_view"]


def test_buttons_open_and_close_the_other_views(run: Bridge) -> None:
    bar = run.page.locator(".nvx-toggles")
    names = run.page.evaluate("() => explorer().views()")
    assert bar.locator("button").count() == len(names)
    for button, name in zip(bar.locator("button").all(), names, strict=True):
        is_open = name in ("why_view", "throughput_view")
        for _ in range(2):
            assert button.get_attribute("aria-pressed") == str(is_open).lower()
            assert run.page.locator(f"[data-panel={name}] > *").count() == is_open
            button.click()
            is_open = not is_open
            wait_for(run, lambda name=name, is_open=is_open: (name in run.explorer.panels) == is_open)
    assert sorted(run.explorer.panels) == ["throughput_view", "why_view"]


def test_an_error_of_an_answer_is_shown_below_the_view(run: Bridge) -> None:
    def fail(content: dict[str, Any]) -> None:
        run.explorer.send({"type": "answer", "ask": content["ask"], "error": "no <b>tokenizer</b>"})

    run.explorer._answer = fail  # type: ignore[method-assign]
    Blocks(run).hover(5)
    complaint = run.page.locator(f"{BLOCKS} .nvx-complaint")
    wait_for(run, lambda: complaint.count() == 1)
    assert complaint.inner_text() == "no <b>tokenizer</b>" and complaint.get_attribute("role") == "alert"
    del run.explorer._answer  # type: ignore[misc]
    Blocks(run).hover(6)
    wait_for(run, lambda: complaint.count() == 0)
