"""The prefix view in a real browser: the tree and its keys, misses with both texts, colours, widths."""

from __future__ import annotations

from typing import Any

import pytest

from nvexplore.explore.contents import contents_of
from nvexplore.explore.prefix_tree import largest, prefix_tree
from nvexplore.notebook.answers import Context
from nvexplore.notebook.prefix_view import PrefixView
from tests.browser.bridge import LAB_DARK
from tests.browser.conftest import Open
from tests.browser.demo_run import demo_engine, demo_steps
from tests.browser.pages import wait_for
from tests.browser.reasons import PREFIX, RUNS, drawn, look_at, show_both, squeezed

pytestmark = pytest.mark.browser


def test_the_tree_is_the_cache(open_page: Open) -> None:
    shown = show_both(open_page)
    recorder = shown.explorer.recorder
    for step in (20, 37):
        look_at(shown, step)
        tree = largest(prefix_tree(recorder.state_at(step), contents_of(recorder)), 200)
        rows = shown.page.locator(RUNS)
        assert rows.count() == len(tree.runs)
        depths = [0] * len(tree.runs)
        for place, run in enumerate(tree.runs):
            depths[place] = 1 + (depths[run.parent] if run.parent >= 0 else 0)
            row = rows.nth(place)
            assert row.get_attribute("aria-level") == str(depths[place])
            assert row.get_attribute("data-key") == str(run.blocks[0])
            assert f"{len(run.blocks)} block" in row.locator(".nvx-prefix-facts").inner_text()
        state = recorder.state_at(step)
        held = sum(ref > 0 and hash_ is not None for ref, hash_ in zip(state.ref_count, state.hash, strict=True))
        assert 0 < held < tree.num_cached
        said = f"{tree.num_cached} blocks in the prefix cache, {held} of them held"
        assert said in shown.page.locator(f"{PREFIX} .nvx-line").inner_text()


def test_a_miss_stands_beside_what_it_is_near_to(open_page: Open) -> None:
    shown = show_both(open_page)
    look_at(shown, 28)
    item = shown.page.locator(".nvx-miss li")
    assert "chat-4 took 2 blocks (32 of its 105 tokens) from the cache, filled by haiku" in squeezed(item.inner_text())
    mine, theirs = item.locator("dd").all_inner_texts()
    assert mine == "sentences, and you say so when you do not know. it is with from but can"
    assert theirs == "sentences, and you say so when you do not know. chat-3 is with from but can"
    assert [text.strip() for text in item.locator("mark").all_inner_texts()] == ["it", "chat-3"]
    item.get_by_role("button", name="block 79").first.click()
    wait_for(shown, lambda: shown.explorer.selection == ("block", 79))
    shown.settle()
    assert shown.page.locator(f"{RUNS}[aria-selected=true]").count() == 1


def test_a_step_that_is_named_is_looked_at(open_page: Open) -> None:
    shown = show_both(open_page)
    look_at(shown, 36)
    shown.page.locator(".nvx-miss li").get_by_role("button", name="step 32").click()
    wait_for(shown, lambda: shown.explorer.cursor == 32)
    drawn(shown, 32)


def test_arrow_keys_walk_and_fold_the_tree(open_page: Open) -> None:
    shown = show_both(open_page)
    page, rows = shown.page, shown.page.locator(RUNS)
    assert page.locator(".nvx-prefix-tree").get_attribute("role") == "tree"
    assert rows.first.get_attribute("tabindex") == "0" and rows.nth(1).get_attribute("tabindex") == "-1"
    num_rows, keys = rows.count(), [row.get_attribute("data-key") for row in rows.all()]
    rows.first.focus()

    def here() -> str:
        return str(page.evaluate("document.activeElement.dataset.key"))

    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("ArrowLeft", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        assert here() == keys[place], key
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    shown.settle()
    assert rows.first.get_attribute("aria-expanded") == "false" and rows.count() < num_rows - 3
    assert here() == keys[0], "the focus stays"
    page.keyboard.press("ArrowRight")
    shown.settle()
    assert rows.count() == num_rows
    page.keyboard.press("End")
    assert here() == keys[-1]
    wait_for(shown, lambda: f"block {keys[-1]}" in page.locator(f"{PREFIX} .nvx-line").inner_text())
    page.keyboard.press("Enter")
    wait_for(shown, lambda: shown.explorer.selection == ("block", int(keys[-1] or -1)))
    page.keyboard.press("Escape")
    wait_for(shown, lambda: shown.explorer.selection == ("none", -1))


def test_light_and_dark(open_page: Open) -> None:
    shown = show_both(open_page)
    script = """async () => { const g = document.createElement('canvas').getContext('2d'),
            strip = document.querySelector('.nvx-prefix-run img');
        await strip.decode();
        g.drawImage(strip, 0, 0);
        return [...g.getImageData(3, 6, 1, 1).data, getComputedStyle(document.querySelector('.nvx-why li')).color] }"""
    light = shown.page.evaluate(script)
    shown.page.add_style_tag(content=LAB_DARK)
    shown.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    shown.settle()
    dark = shown.page.evaluate(script)
    assert light[:3] != dark[:3] and light[3] == dark[3] == 255
    assert light[4] != dark[4] == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [320, 620, 1600])
def test_every_width_is_usable(open_page: Open, width: int) -> None:
    bridge, engine = open_page(viewport={"width": width, "height": 4000}), demo_engine()
    engine.subscribe(bridge.explorer.push)
    bridge.show("why_view", "prefix_view")
    for _ in demo_steps(engine, 29):
        pass
    bridge.explorer.flush()
    drawn(bridge, 28)
    assert bridge.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    beyond = "[...document.querySelectorAll('.nvx *')].filter((e) => e.getBoundingClientRect().right > innerWidth)"
    assert bridge.page.evaluate(f"{beyond}.map((e) => e.outerHTML.slice(0, 80))") == []


@pytest.mark.parametrize("width", [400, 700, 848, 1280])
def test_the_facts_beside_a_run_are_all_there(open_page: Open, width: int) -> None:
    """They wrap where there is little room, and nothing of them is cut."""
    shown = show_both(open_page)
    shown.page.set_viewport_size({"width": width, "height": 4000})
    shown.page.evaluate(
        """() => document.querySelectorAll('.nvx-prefix-facts').forEach((facts) => {
            facts.textContent = '2 blocks · only cached · 1 hit · 12 smaller runs of 34 blocks behind it not shown';
        })"""
    )
    cut = """(facts) => facts.filter((el) => el.scrollWidth > el.clientWidth + 1 ||
        el.getBoundingClientRect().right > el.parentElement.getBoundingClientRect().right).length"""
    assert shown.page.locator(f"{RUNS} .nvx-prefix-facts").evaluate_all(cut) == 0
    texts = shown.page.locator(f"{RUNS} .nvx-prefix-text")
    assert min(texts.evaluate_all("all => all.map((el) => el.clientWidth)")) >= 60


def test_a_tree_that_takes_long_is_asked_for_less_often_while_it_runs(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = PrefixView.answer, []

    def counted(context: Context, id: int) -> dict[str, object]:
        asked.append(context.step)
        return real(context, id)

    monkeypatch.setattr(PrefixView, "answer", staticmethod(counted))
    bridge, engine = open_page(), demo_engine()
    post = bridge.explorer._post

    def slow(message: dict[str, Any], buffers: list[bytes]) -> None:
        took_long = message.get("type") == "answer" and message.get("step", -1) >= 0
        post({**message, "ms": 60_000} if took_long else message, buffers)

    monkeypatch.setattr(bridge.explorer, "_post", slow)
    engine.subscribe(bridge.explorer.push)
    bridge.show("prefix_view")
    bridge.explorer.status = "running"
    for step in demo_steps(engine, 6):
        bridge.explorer.flush()
        if step == 1:
            drawn(bridge, 0)
        bridge.page.wait_for_timeout(100)
        bridge.settle()
    assert max(asked) <= 1, "one more may be under way when the first answer comes"
    bridge.explorer.status = "paused"
    drawn(bridge, 5)
    assert asked[-1] == 5
