"""Lost messages, reloads, several views, hostile text: what a page goes through."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nvexplore.notebook import answers, assets
from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import Bridge
from tests.browser.demo_run import HOSTILE, demo_engine, demo_steps
from tests.browser.pages import BLOCKS, Blocks, Schedule, number, told, wait_for
from tests.fakes import toy_engine

pytestmark = pytest.mark.browser


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
    sequences = "[...store.sequences.values()].map((s) => [s.name, s.status, s.table])"
    what = f"[store.step, [...store.words], store.columns.length, {sequences}]"
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


def test_the_view_that_the_readme_adds_works(
    open_page: Callable[..., Bridge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (assets.widgets_folder() / "README.md").read_text(encoding="utf-8")
    shutil.copytree(assets.widgets_folder(), tmp_path / "widgets")
    script, module = (re.search(rf"```{kind}\n(.*?)```", readme, re.DOTALL) for kind in ("js", "python"))
    assert script is not None and module is not None
    assert max(part[1].count("\n") for part in (script, module)) < 40, "a view is two short files"
    (tmp_path / "widgets" / "queue_view.js").write_text(script[1], encoding="utf-8")
    monkeypatch.setattr(answers, "_views", dict(answers._views))
    exec(compile(module[1], "queue_view.py", "exec"), {})
    monkeypatch.setattr(assets, "widgets_folder", lambda: tmp_path / "widgets")
    assets.module_text.cache_clear()
    try:
        bridge, engine = open_page(), demo_engine()
        engine.subscribe(bridge.explorer.push)
        bridge.show()
        for _ in demo_steps(engine, 3):
            pass
        bridge.explorer.flush()
        bridge.settle()
        bridge.page.get_by_role("button", name="Queue").click()
        bridge.page.locator(".nvx-queue").get_by_role("button", name="translate-2").click()
        wait_for(bridge, lambda: bridge.explorer.selection == ("sequence", 3))
        line = bridge.page.locator(".nvx-queue .nvx-line")
        wait_for(bridge, lambda: "waiting: 1 request" in line.inner_text() and "You are a careful" in line.inner_text())
    finally:
        assets.module_text.cache_clear()


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
    assert bridge.page.locator("main img:not([src^='data:image/png']), main script").count() == 0
    assert "مرحبا 🦜" in bridge.page.locator(".nvx-status").inner_text()
