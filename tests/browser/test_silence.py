"""A kernel that does not answer for a while, or never again: what the page says, and what a press comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvexplore.notebook.errors import CLOSED, SessionError
from tests.browser.bridge import Bridge
from tests.browser.pages import wait_for

pytestmark = pytest.mark.browser
LAST = "this is the last state it sent, after step 37"
BUSY = f"the kernel is busy and has not answered yet: {LAST}"
EITHER = f"the kernel has not answered yet, it may be busy or gone: {LAST}; if it is gone, run the cells again to go on"
GONE = f"no kernel answers: {LAST}; run the cells again to go on"


def warnings(bridge: Bridge) -> list[str]:
    return list(bridge.page.locator(".nvx-warnings").all_inner_texts())


def is_there(bridge: Bridge, command: str) -> bool:
    return bool(bridge.page.locator(f"[data-command='{command}']").is_visible())


class Busy:
    """A kernel that is at work on a cell: what a page sends waits for it."""

    def __init__(self, bridge: Bridge, manager: str) -> None:
        """manager: what the page can reach of the front end, as JavaScript."""
        self.bridge, self.waiting = bridge, list[dict[str, Any]]()
        bridge.open()
        self._take = bridge.comm.send_custom
        bridge.comm.send_custom = lambda **content: self.waiting.append(content)  # type: ignore[method-assign]
        bridge.page.evaluate(f"() => {{ model.widget_manager = {manager} }}")
        bridge.page.evaluate("names => show(names)", [])

    def end(self) -> None:
        """The cell has ended."""
        self.bridge.comm.send_custom = self._take  # type: ignore[method-assign]
        for content in self.waiting:
            self._take(**content)


@pytest.mark.parametrize(
    ("manager", "said"),
    [("{ kernel: { status: 'busy' } }", BUSY), ("undefined", EITHER)],
    ids=["Lab tells that it is busy", "the front end tells nothing"],
)
def test_a_kernel_that_is_busy_keeps_its_buttons_and_answers_when_it_is_free(
    run: Bridge, manager: str, said: str
) -> None:
    """Run All with a view, then a cell that loads a model: what was pressed and asked meanwhile is done after it."""
    pressed: list[str] = []
    run.explorer.on_command(pressed.append)
    run.explorer.status = "paused"
    busy = Busy(run, manager)
    wait_for(run, lambda: warnings(run) == [said], seconds=15)
    assert is_there(run, "run") and is_there(run, "pause")
    run.page.click("[data-command=step]")
    # The why view has asked, and after ten seconds nobody waits for that answer any more.
    run.page.wait_for_timeout(6000)
    why = run.page.locator(".nvx-why")
    assert why.get_attribute("data-step") in (None, "")
    assert sum(content["type"] == "ask" and content["what"] == "why_view" for content in busy.waiting) <= 2
    busy.end()
    wait_for(run, lambda: warnings(run) == [] and pressed == ["step"])
    wait_for(run, lambda: why.get_attribute("data-step") == "37")


def test_a_kernel_that_dies_while_it_is_waited_for_is_gone(run: Bridge) -> None:
    run.explorer.on_command(print)
    busy = Busy(run, "{ kernel: { status: 'busy' } }")
    wait_for(run, lambda: warnings(run) == [BUSY], seconds=15)
    run.page.evaluate("() => { model.widget_manager.kernel.status = 'dead' }")
    wait_for(run, lambda: warnings(run) == [GONE] and not is_there(run, "run"))
    assert busy.waiting


def test_what_is_pressed_in_vain_is_said_and_the_buttons_can_be_pressed_again(run: Bridge) -> None:
    def command(name: str) -> None:
        raise SessionError(f"there is no <b>{name}</b> today")

    run.explorer.on_command(command)
    run.explorer.status = "paused"
    run.settle()
    notice = run.page.locator(".nvx-notice")
    for name in ("run", "step", "run"):
        run.page.click(f"[data-command={name}]")
        wait_for(run, lambda name=name: notice.inner_text() == f"there is no <b>{name}</b> today")
        run.settle()
        assert run.page.locator("[data-command=run]").get_attribute("aria-disabled") == "false"
    run.explorer.status = "idle"
    wait_for(run, lambda: not notice.is_visible())


def test_whoever_takes_a_press_and_tells_no_status_can_be_asked_again(run: Bridge) -> None:
    pressed: list[str] = []
    run.explorer.on_command(pressed.append)
    run.settle()
    button = run.page.locator("[data-command=run]")
    button.click()
    assert button.get_attribute("aria-disabled") == "true"
    wait_for(run, lambda: button.get_attribute("aria-disabled") == "false" and pressed == ["run"])


def test_the_buttons_of_a_closed_model_go_and_a_late_press_is_answered(open_page: Callable[..., Bridge]) -> None:
    bridge, pressed = open_page(), list[str]()
    bridge.explorer.on_command(pressed.append)
    bridge.explorer.status = "paused"
    bridge.show()
    assert is_there(bridge, "run")
    bridge.explorer.status = "closed"
    bridge.explorer.retire()
    bridge.page.click("[data-command=run]")  # the page has not heard of it yet
    wait_for(bridge, lambda: not is_there(bridge, "run"))
    assert bridge.page.locator(".nvx-status").inner_text() == "closed"
    wait_for(bridge, lambda: bridge.page.locator(".nvx-notice").inner_text() == CLOSED)
    assert pressed == []
