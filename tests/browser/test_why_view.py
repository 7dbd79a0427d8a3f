"""The why view in a real browser: what it says, where a click leads, the focus, and text that is hostile."""

from __future__ import annotations

import pytest

from nvexplore.explore.explain import Explanation, explain
from nvexplore.notebook.why_view import WhyView
from nvexplore.sampling_params import SamplingParams
from tests.browser.conftest import Open
from tests.browser.demo_run import HOSTILE, demo_engine, demo_steps
from tests.browser.pages import wait_for
from tests.browser.reasons import PREFIX, ROWS, RUNS, WHY, drawn, look_at, row_of, said, show_both, squeezed
from tests.fakes import toy_engine

pytestmark = pytest.mark.browser
HIDDEN = {"\u202e": "‹202e›", "\u202c": "‹202c›"}


def words(told: Explanation) -> str:
    """As the page shows it: hidden characters are shown, the second sentence stands by itself."""
    text = str(told).replace("\\u202e", "\u202e").replace("\\u202c", "\u202c").replace("; ", " ", 1)
    for char, seen in HIDDEN.items():
        text = text.replace(char, seen)
    return squeezed(text)


def test_the_list_says_what_explain_says(open_page: Open) -> None:
    shown = show_both(open_page)
    for step in (26, 37):
        look_at(shown, step)
        found = explain(shown.explorer.recorder, step)
        told = [*found.preempted, *found.waiting, *found.running]
        assert [said(row) for row in shown.page.locator(ROWS).all()] == [words(each) for each in told]
        assert squeezed(shown.page.locator(".nvx-why-step").inner_text()) == squeezed(str(found.summary))
    assert shown.page.locator(".nvx-why h4:visible").all_inner_texts() == [f"Running: {len(found.running)}"]
    assert f"0 requests waiting·{len(found.running)} running" in shown.page.locator(f"{WHY} .nvx-line").inner_text()


def test_a_preemption_has_an_arrow_from_its_cause(open_page: Open) -> None:
    shown = show_both(open_page)
    look_at(shown, 31)
    row = shown.page.locator(f"{ROWS}[data-group=preempted]")
    assert said(row).startswith(
        "chat-4 ← chat-3 was preempted for chat-3, which needed a block: 1 request needed a block"
    )
    assert "107 tokens must be computed again" in said(row) and row.locator(".nvx-why-word").inner_text() == "preempted"
    row.get_by_role("button", name="chat-3").first.click()
    seq_id = next(i for i, info in shown.explorer.recorder.requests.items() if info.request_id == "chat-3")
    wait_for(shown, lambda: shown.explorer.selection == ("sequence", seq_id))


def test_a_click_selects_everywhere_and_the_line_says_it_all(open_page: Open) -> None:
    shown = show_both(open_page)
    row = row_of(shown, "report")
    row.get_by_role("button", name="report").click()
    seq = next(seq for seq in shown.engine.live.values() if seq.request_id == "report")
    wait_for(shown, lambda: shown.explorer.selection == ("sequence", seq.seq_id))
    shown.settle()
    line = shown.page.locator(f"{WHY} .nvx-line")
    assert line.get_attribute("role") == "status" and line.inner_text().replace("·", " ").split()[0] == "report"
    assert row.get_attribute("data-lit") == "true"
    assert row.get_by_role("button", name="report").get_attribute("aria-pressed") == "true"
    # In the tree its runs are lit, and below it stands its admission.
    lit = shown.page.locator(f"{RUNS}[aria-selected=true]").all()
    assert lit[0].get_attribute("data-key") == str(seq.block_table[0])
    heading = shown.page.locator(".nvx-miss h4")
    wait_for(shown, lambda: heading.inner_text() == "request report: admitted in step 23")
    row.get_by_role("button", name="report").click()
    wait_for(shown, lambda: shown.explorer.selection == ("none", -1))


def test_the_focus_survives_news(open_page: Open) -> None:
    shown = show_both(open_page)
    button = row_of(shown, "long-essay").get_by_role("button", name="long-essay")
    button.focus()
    before = said(row_of(shown, "long-essay"))
    shown.engine.step()
    shown.explorer.flush()
    drawn(shown, 38)
    wait_for(shown, lambda: said(row_of(shown, "long-essay")) != before)
    assert shown.page.evaluate("document.activeElement.textContent") == "long-essay"


def test_hostile_names_and_texts_stay_text(open_page: Open) -> None:
    shown = show_both(open_page)
    look_at(shown, 26)
    page = shown.page
    assert page.locator(f"{WHY} img, {PREFIX} img:not([src^='data:image/png']), {WHY} script").count() == 0
    names = page.locator(f"{WHY} button").all_inner_texts()
    assert any(name.startswith("</script><img src=x onerror=alert(1)> ‹202e›drawkcab‹202c›") for name in names)
    assert not any(char in text for text in names for char in HIDDEN)
    assert any("</script>" in text for text in page.locator(".nvx-prefix-text").all_inner_texts())
    assert HOSTILE in [info.request_id for info in shown.explorer.recorder.requests.values()]


def test_of_many_that_wait_the_selected_one_is_told_of(open_page: Open) -> None:
    bridge, engine = open_page(), toy_engine(64, 4, max_num_seqs=1)
    for i in range(120):
        engine.add_request([i + 1] * 5, SamplingParams(max_tokens=6), request_id=f"r{i}")
    engine.subscribe(bridge.explorer.push)
    bridge.show("why_view")
    engine.step()
    bridge.explorer.flush()
    drawn(bridge, 0)
    assert bridge.page.locator(ROWS).count() == 64 + 1
    assert "55 more" in bridge.page.locator(".nvx-why-body").inner_text()
    bridge.explorer.select("sequence", 110)
    wait_for(bridge, lambda: bridge.page.locator(f"{ROWS}[data-seq='110']").count() == 1)
    assert "109 places before it" in said(bridge.page.locator(f"{ROWS}[data-seq='110']"))


def test_before_anything_has_run(open_page: Open) -> None:
    bridge, engine = open_page(), demo_engine()
    bridge.show("why_view", "prefix_view")
    for root in (WHY, PREFIX):
        assert bridge.page.locator(f"{root} .nvx-line").inner_text().strip() == "Nothing has run yet."
    engine.subscribe(bridge.explorer.push)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=3), request_id="first")
    bridge.explorer.push(engine.snapshot())
    bridge.explorer.flush()
    wait_for(bridge, lambda: bridge.page.locator(ROWS).count() == 1)
    assert said(bridge.page.locator(ROWS)) == "first came after the last step: the next one will look at it"


def test_an_error_is_shown_and_the_view_goes_on(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: object, id: int) -> dict[str, object]:
        raise ValueError("no reason <b>at all</b>")

    bridge, engine, answer = open_page(), demo_engine(), WhyView.answer
    engine.subscribe(bridge.explorer.push)
    bridge.show("why_view")
    monkeypatch.setattr(WhyView, "answer", staticmethod(broken))
    steps = demo_steps(engine, 4)
    next(steps)
    bridge.explorer.flush()
    complaint = bridge.page.locator(f"{WHY} [role=alert]")
    wait_for(bridge, lambda: complaint.count() == 1)
    assert complaint.inner_text() == "no reason <b>at all</b>"
    monkeypatch.setattr(WhyView, "answer", staticmethod(answer))
    next(steps)
    bridge.explorer.flush()
    wait_for(bridge, lambda: bridge.page.locator(ROWS).count() > 0 and complaint.count() == 0)
