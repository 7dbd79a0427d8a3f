"""How many steps a second a page draws with all views open, and what that costs it, at 30 messages a second.

``python -m tests.browser.frame_rate 20000 1000000`` prints it by the size of the pool.
"""

from __future__ import annotations

import json
import sys
import time
from math import inf
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from nvexplore.engine.engine import Engine
from nvexplore.notebook.display import MODULES
from nvexplore.sampling_params import SamplingParams
from tests.browser.bridge import FLAGS, Bridge
from tests.browser.demo_run import decode
from tests.fakes import toy_engine

HZ = 30
TRIES = 6
HEIGHT, TALL = 1400, 5000  # pixels: a large window; one in which all views are in sight
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

    def __init__(self, browser: Browser, num_blocks: int, height: int = HEIGHT) -> None:
        self.browser = browser
        page = browser.new_context(viewport={"width": 980, "height": height}).new_page()
        page.set_default_timeout(60_000)
        self.bridge = Bridge(page, decode=decode, hz=HZ, max_hz=2 * HZ)
        self.engine = busy_pool(num_blocks)
        explorer = self.bridge.explorer
        self.feed = explorer._feed
        explorer.panels = [MODULES[name] for name in VIEWS if name not in ("schedule", "blocks")]
        explorer.status = "running"
        self.metrics = page.context.new_cdp_session(page)
        self.metrics.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time: other programs do not count
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

    def play_traced(self, count: int, hz: int) -> dict[str, float]:
        """``play``; longest_task_ms: CPU time of the page's main thread. To trace takes time itself."""
        self.browser.start_tracing(page=self.bridge.page, categories=["disabled-by-default-devtools.timeline"])
        told = self.play(count, hz)
        return told | {"longest_task_ms": longest_task(self.browser.stop_tracing())}

    def play(self, count: int, hz: int) -> dict[str, float]:
        """Frames a second in which another step was shown, at ``hz`` messages a second (0: one a frame).

        cpu_ms_a_draw: of the page's main thread, with what taking a message in costs.
        """
        messages = self.messages(count)
        before = self._cpu_seconds()
        self.bridge.page.evaluate(PLAY, [messages, hz])
        end = time.monotonic() + 60
        while not (told := self.bridge.page.evaluate("() => told"))["isOver"]:
            assert time.monotonic() < end, told
            self.wait(0.1)
        cpu_ms = 1e3 * (self._cpu_seconds() - before)
        return {
            "draws_a_second": told["draws"] / told["seconds"],
            "frames_a_second": told["frames"] / told["seconds"],
            "longest_ms": told["longest"],
            "cpu_ms_a_draw": cpu_ms / max(1, told["draws"]),
            "cpu_part": cpu_ms / told["seconds"] / 1e3,
        }

    def _cpu_seconds(self) -> float:
        told = self.metrics.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in told if each["name"] == "TaskDuration"))

    def close(self) -> None:
        self.subscription.close()
        self.bridge.page.context.close()
        assert self.bridge.errors == []


def longest_task(trace: bytes) -> float:
    """Milliseconds of CPU that the longest task of a page's main thread took, from a trace of chromium."""
    events = json.loads(trace)["traceEvents"]
    mains = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and "CrRendererMain" in str(e["args"])}
    tasks = (e for e in events if e["name"] == "RunTask" and (e["pid"], e["tid"]) in mains)
    return max((float(e["tdur"]) / 1e3 for e in tasks if "tdur" in e), default=0.0)


def fastest(stage: Stage, enough: float) -> float:
    """Draws a second when each frame brings a message, the best of up to TRIES: other work only takes away."""
    best = 0.0
    for _ in range(TRIES):
        best = max(best, stage.play(HZ * 2, 0)["draws_a_second"])
        if best >= enough:
            break
    return best


def frame_rates(
    sizes: tuple[int, ...], seconds: float = 5.0, height: int = HEIGHT, *, enough: float = inf
) -> dict[int, dict[str, float]]:
    """By the pool's size, ``play`` at 30 messages a second; most: ``fastest``."""
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        try:
            for num_blocks in sizes:
                stage = Stage(browser, num_blocks, height)
                stage.play(HZ, HZ)
                told = stage.play_traced(int(seconds * HZ), HZ)
                found[num_blocks] = told | {"most": fastest(stage, enough)}
                stage.close()
        finally:
            browser.close()
    return found


if __name__ == "__main__":
    for height in (HEIGHT, TALL):
        for size, rates in frame_rates(
            tuple(map(int, sys.argv[1:])) or (20_000, 200_000, 1_000_000), 5.0, height
        ).items():
            print(f"{height} px, {size} blocks:", {name: round(value, 1) for name, value in rates.items()})
