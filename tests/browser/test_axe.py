"""axe-core finds nothing to object to: every view, in light and dark, before a run, live, past, selected and broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]
from playwright.sync_api import Page

from nvexplore.engine.engine import Engine
from nvexplore.explore.until import EVENTS, Until
from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import LAB_DARK, LAB_LIGHT, Bridge
from tests.browser.conftest import Open
from tests.browser.demo_run import HOSTILE, SYSTEM, decode, demo_engine, remember
from tests.browser.pages import wait_for
from tests.browser.test_slot_memory import LEDGER

pytestmark = pytest.mark.browser
MORE = ["why_view", "throughput_view", "prefix_view", "slot_view", "memory_view"]
ROOTS = [".nvx-controls", ".nvx-schedule", ".nvx-blocks", ".nvx-why", ".nvx-throughput", ".nvx-prefix"]
ROOTS += [".nvx-slots", ".nvx-memory"]
# What the page around the views says about colours: the system's scheme, and the notebook's own variables.
THEMES = {"Lab light": ("light", LAB_LIGHT), "Lab dark": ("light", LAB_DARK)}
THEMES |= {"system light": ("light", ""), "system dark": ("dark", "")}
# axe's own choice of rules, and one that it leaves out: what can be pressed is 24 pixels large, or by itself.
EVERY_RULE: dict[str, Any] = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
CONTRAST: dict[str, Any] = {"resultTypes": ["violations"], "runOnly": ["color-contrast"]}


def violations(page: Page, options: dict[str, Any]) -> list[str]:
    """What axe finds in our elements: rule, impact, and where."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("options => axe.run('.nvx', options)", options)
    assert found["testEngine"]["name"] == "axe-core"
    return [f"{rule['id']} ({rule['impact']}): {n['target']}" for rule in found["violations"] for n in rule["nodes"]]


def in_themes(page: Page, themes: list[str]) -> dict[str, list[str]]:
    """All rules in the first theme, the one that depends on colours in the others."""
    found: dict[str, list[str]] = {}
    for name in themes:
        scheme, css = THEMES[name]
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.evaluate("css => { document.querySelector('#theme').textContent = css }", css)
        found[name] = violations(page, CONTRAST if found else EVERY_RULE)
    return {name: each for name, each in found.items() if each}


def preempting_run(bridge: Bridge) -> int:
    """Three requests with one prefix, too many for the pool: run until one is preempted; returns that step."""
    engine: Engine = demo_engine(num_blocks=13, budget=64)
    engine.subscribe(bridge.explorer.push)
    for name in ("first", "second", HOSTILE):
        prompt = remember(SYSTEM) * 2 + remember(f"{name} of all")
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), request_id=name)
    until = Until.of("preempt")
    while not any(until.matches(record) for record in bridge.explorer.recorder.records):
        engine.step()
    step = engine.next_step - 1
    for _ in range(5):
        engine.step()
    bridge.explorer.flush()
    shows(bridge, step + 5)
    return step


def shows(bridge: Bridge, step: int) -> None:
    """Wait until the views show a step with what Python told of it."""
    numbered = [".nvx-why", ".nvx-prefix", ".nvx-slots", ".nvx-memory"]
    script = "roots => roots.map((root) => document.querySelector(root).dataset.step)"
    wait_for(bridge, lambda: bridge.page.evaluate(script, numbered) == [str(step)] * 4)


def states(bridge: Bridge) -> Iterator[tuple[str, list[str]]]:
    """Bring the page from one state to the next; yields its name, and the themes in which it may differ."""
    page, explorer = bridge.page, bridge.explorer
    lab, every = list(THEMES)[:2], list(THEMES)
    bridge.show()
    yield "before anything has run", lab[:1]
    step = preempting_run(bridge)
    yield "live", lab
    page.locator(".nvx-stops summary").click()
    explorer.status = "running"
    explorer.cursor = step
    explorer.select("sequence", 1)
    shows(bridge, step)
    wait_for(bridge, lambda: "second: admitted" in page.locator(".nvx-miss h4").inner_text())
    yield "a past step with a preemption, a sequence selected, all boxes open", every
    answer = explorer._answer

    def fail(content: dict[str, Any]) -> None:
        if content["what"] == "frame" and content["step"] == 2:
            answer(content)
        else:
            explorer.send({"type": "answer", "ask": content["ask"], "error": "no tokenizer"})

    explorer._answer = fail  # type: ignore[method-assign]
    explorer.cursor = 2
    wait_for(bridge, lambda: page.locator(".nvx-complaint").count() >= 4)
    explorer.cursor = 1
    wait_for(bridge, lambda: page.locator(".nvx-notice").inner_text() == "no tokenizer")
    page.evaluate("() => show(['no_such_view'])")
    wait_for(bridge, lambda: page.locator(".nvx-alone .nvx-error").count() == 1)
    bridge.errors.clear()  # to the page, a view that there is not is an error as well
    yield "no question is answered", lab


def test_axe_finds_nothing(open_page: Open) -> None:
    bridge = open_page({"decode": decode, "memory": LEDGER}, reduced_motion="reduce")  # colours change at once
    bridge.page.evaluate("() => document.head.insertAdjacentHTML('beforeend', '<style id=theme></style>')")
    bridge.explorer.events = EVENTS
    bridge.explorer.on_command(print)
    bridge.explorer.status = "paused"
    bridge.explorer.panels = MORE
    found = {}
    for state, themes in states(bridge):
        bridge.settle()
        assert all(bridge.page.locator(root).is_visible() for root in ROOTS)
        found[state] = in_themes(bridge.page, themes)
    assert len(found) == 4
    assert found == {state: {} for state in found}


def test_axe_finds_what_is_wrong_on_purpose(run: Bridge) -> None:
    run.page.evaluate(
        """() => { const root = document.querySelector('.nvx-controls');
        root.insertAdjacentHTML('beforeend', '<button></button><input><p style="color: #bbb">pale</p>');
        document.body.insertAdjacentHTML('beforeend', '<button id="foreign"></button>'); }"""
    )
    found = violations(run.page, EVERY_RULE)
    assert sorted(line.split(":")[0] for line in found) == [
        "button-name (critical)",
        "color-contrast (serious)",
        "label (critical)",
    ]
    assert "foreign" not in str(found), "only our own elements are looked at"
