"""How many steps a second a page draws with all views open, while messages come thirty times a second."""

from __future__ import annotations

import time
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from nvexplore.engine.engine import Engine
from nvexplore.notebook.display import MODULES
from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import FLAGS, Bridge
from tests.browser.demo_run import decode
from tests.fakes import toy_engine

HZ = 30
VIEWS = ("schedule", "blocks", "slots", "prefix", "why", "memory", "throughput")
# Plays messages at a pace (0: one a frame), and counts the frames in which a view showed another step than before.
PLAY = """([messages, hz]) => {
  const root = document.querySelector(".nvx-blocks"), begin = performance.now(),
    told = { sent: 0, draws: 0, frames: 0, longest: 0, isOver: false };
  let step = root.dataset.step, last = begin;
  const send = () => deliver(...messages[told.sent++]);
  const watch = (now) => {
    told.frames++;
    told.longest = Math.max(told.longest, now - last);
    last = now;
    if (root.dataset.step !== step) told.draws++;
    step = root.dataset.step;
    const due = hz ? Math.floor(((performance.now() - begin) / 1000) * hz) + 1 : told.sent + 1;
    if (told.sent < Math.min(due, messages.length) && !hz) send();
    told.seconds = (performance.now() - begin) / 1000;
    if (told.sent < messages.length) requestAnimationFrame(watch);
    else requestAnimationFrame(() => (told.isOver = true));
  };
  if (hz) {
    const timer = setInterval(() => {
      const due = Math.floor(((performance.now() - begin) / 1000) * hz) + 1;
      while (told.sent < Math.min(due, messages.length)) send();
      if (told.sent >= messages.length) clearInterval(timer);
    }, 1000 / hz / 4);
  }
  window.told = told;
  requestAnimationFrame(watch);
}"""


def busy_pool(num_blocks: int, num_seqs: int = 64) -> Engine:
    """Sequences that decode, some of them with a prefix in common, and some that wait."""
    engine = toy_engine(num_blocks, 16, max_num_batched_tokens=8192, max_num_seqs=num_seqs)
    for i in range(num_seqs + 16):
        engine.add_request([i % 7 + 1] * (200 + 3 * i), SamplingParams(max_tokens=2_000, ignore_eos=True))
    while engine.scheduler.queues.waiting and len(engine.scheduler.queues.running) < num_seqs:
        engine.step()
    return engine


class Stage:
    """A page with all views of a pool of so many blocks; ``close()`` it."""

    def __init__(self, browser: Browser, num_blocks: int) -> None:
        page = browser.new_context(viewport={"width": 980, "height": 1400}).new_page()
        page.set_default_timeout(60_000)
        self.bridge = Bridge(page, decode=decode, hz=HZ, max_hz=2 * HZ)
        self.engine = busy_pool(num_blocks)
        explorer = self.bridge.explorer
        self.feed = explorer._feed
        explorer.panels = [MODULES[name] for name in VIEWS if name not in ("schedule", "blocks")]
        explorer.status = "running"
        self.subscription = self.engine.subscribe(explorer.push)
        self.bridge.show()
        self.wait(0.5)

    def wait(self, seconds: float) -> None:
        """Let the page and Python talk."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.bridge.deliver()
            self.bridge.page.wait_for_timeout(10)

    def messages(self, count: int) -> list[Any]:
        """What the feed says of so many steps, one each, 1/30 s apart; nothing of it reaches the page."""
        self.bridge.deliver()
        clock, now = self.feed._clock, self.feed._clock()
        self.feed.is_active = True
        try:
            for i in range(count):
                self.feed._clock = lambda: now + (i + 1) / HZ  # noqa: B023
                self.engine.step()
        finally:
            self.feed._clock = clock
            self.feed.stop()  # what it would say next, at rest, is not part of the play
        outbox, self.bridge._outbox = self.bridge._outbox, []
        return outbox

    def play(self, count: int, hz: int) -> dict[str, float]:
        """Frames a second in which another step was shown, at ``hz`` messages a second (0: one a frame)."""
        self.bridge.page.evaluate(PLAY, [self.messages(count), hz])
        end = time.monotonic() + 60
        while not (told := self.bridge.page.evaluate("() => told"))["isOver"]:
            assert time.monotonic() < end, told
            self.wait(0.1)
        return {
            "draws_a_second": told["draws"] / told["seconds"],
            "frames_a_second": told["frames"] / told["seconds"],
            "longest_ms": told["longest"],
        }

    def close(self) -> None:
        self.subscription.close()
        self.bridge.page.context.close()
        assert self.bridge.errors == []


def frame_rates(sizes: tuple[int, ...], seconds: float = 5.0) -> dict[int, dict[str, float]]:
    """By the pool's size, ``play`` at 30 messages a second; most: draws a second when messages come as fast as that."""
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        try:
            for num_blocks in sizes:
                stage = Stage(browser, num_blocks)
                stage.play(HZ, HZ)
                told = stage.play(int(seconds * HZ), HZ)
                found[num_blocks] = told | {"most": stage.play(HZ * 2, 0)["draws_a_second"]}
                stage.close()
        finally:
            browser.close()
    return found
