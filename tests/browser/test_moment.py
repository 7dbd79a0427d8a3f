"""What only selects leaves the moment alone: a past step that is looked at stays, whatever is chosen and however."""

from __future__ import annotations

import pytest

from tests.browser.bridge import Bridge
from tests.browser.pages import Schedule, row_of, wait_for

pytestmark = pytest.mark.browser


def test_a_name_in_the_schedule_lights_up_and_leaves_the_moment(run: Bridge) -> None:
    """In the past too, and so does the room behind the last step; by pointer and by key."""
    schedule = Schedule(run)
    row, other = row_of(run, "report"), row_of(run, "long-essay")
    run.explorer.cursor = 12
    wait_for(run, lambda: run.store("store.shownStep") == 12)
    run.settle()
    behind = {**schedule.place(row, 37), "x": schedule.place(row, 38)["x"]}
    for place, expected in (
        (schedule.place(row, -1), ("sequence", row)),
        (schedule.place(other, -1), ("sequence", other)),
        (schedule.place(other, -1), ("none", -1)),
        (behind, ("sequence", row)),
        (behind, ("none", -1)),
    ):
        schedule.canvas.click(position=place)
        wait_for(run, lambda expected=expected: run.explorer.selection == expected)
        run.settle()
        assert (run.explorer.cursor, run.store("[store.cursor, store.shownStep]")) == (12, [12, 12])
    schedule.canvas.hover(position=schedule.place(row, -1))
    schedule.canvas.focus()
    cell = schedule.canvas.locator("[role=gridcell]")
    assert cell.text_content().startswith("report, step 12: "), "the keys begin at the step that is looked at"
    run.page.keyboard.press("Enter")
    wait_for(run, lambda: run.explorer.selection == ("sequence", row))
    assert run.store("store.cursor") == 12


def test_what_selects_in_the_other_views_leaves_the_moment(run: Bridge) -> None:
    """Whatever is clicked there, or chosen by a key: a past step stays the one that is looked at."""
    for name in ("Prefix cache", "Slots"):
        run.page.locator(".nvx-toggles").get_by_role("button", name=name).click()
    run.explorer.cursor = 12
    wait_for(run, lambda: run.store("store.shownStep") == 12)
    wait_for(run, lambda: run.page.locator(".nvx-slots").get_attribute("data-step") == "12")
    run.settle()
    places = (
        ".nvx-blocks .nvx-field canvas",
        ".nvx-prefix-text",
        ".nvx-slots td[data-kind=sequence]",
        ".nvx-slots td[data-kind=token]",
        ".nvx-slots td[data-kind=block]",
        ".nvx-why .nvx-ref[data-kind=sequence]",
        ".nvx-throughput .nvx-ref[data-kind=sequence]",
    )
    for place in places:
        for act in ("click", "key"):
            run.explorer.select("none", -1)
            run.settle()
            target = run.page.locator(place).first
            if act == "click":
                target.click(position={"x": 4, "y": 4})
            else:
                target.evaluate("el => (el.closest('[tabindex], button') ?? el).focus()")
                run.page.keyboard.press("Enter")
            wait_for(run, lambda: run.explorer.selection != ("none", -1))
            run.settle()
            assert (place, act, run.explorer.cursor, run.store("store.cursor")) == (place, act, 12, 12)
    run.page.locator(".nvx-throughput .nvx-field canvas").click(position={"x": 2, "y": 40})  # beside its columns
    run.settle()
    assert run.store("store.cursor") == 12
