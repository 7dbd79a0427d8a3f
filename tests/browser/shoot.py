"""Screenshots of the dashboard into build/shots/: ``python -m tests.browser.shoot``."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.bridge import FLAGS, LAB_DARK, Bridge
from tests.browser.demo_run import decode, demo_engine, demo_steps

SHOTS = Path(__file__).resolve().parents[2] / "build" / "shots"


def look(bridge: Bridge) -> None:
    """Let the views draw, ask about what is selected, and draw the answer."""
    for _ in range(4):
        bridge.settle()
        bridge.page.wait_for_timeout(100)


def shoot(steps: int = 44) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": 980, "height": 860}, device_scale_factor=2)
        bridge = Bridge(page, decode=decode)
        bridge.explorer.on_command(lambda name: None)
        bridge.explorer.status = "paused"
        engine = demo_engine()
        with engine.subscribe(bridge.explorer.push):
            bridge.show()
            bridge.explorer._repr_mimebundle_()
            for _ in demo_steps(engine, steps):
                pass
            bridge.explorer.keyframe()
            bridge.settle()
            for theme in ("light", "dark"):
                if theme == "dark":
                    page.add_style_tag(content=LAB_DARK)
                    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
                look(bridge)
                page.screenshot(path=SHOTS / f"dashboard_{theme}.png", full_page=True)
                seq = next(s for s in engine.live.values() if len(s.block_table) > 6)
                bridge.explorer.select("sequence", seq.seq_id)
                look(bridge)
                page.screenshot(path=SHOTS / f"dashboard_{theme}_sequence.png", full_page=True)
                shared = next((b for b, n in enumerate(engine.blocks.ref_count) if n > 1), 0)
                bridge.explorer.select("block", shared)
                look(bridge)
                page.screenshot(path=SHOTS / f"dashboard_{theme}_block.png", full_page=True)
                bridge.explorer.select("none", -1)
                bridge.explorer.cursor = steps // 2
                look(bridge)
                page.screenshot(path=SHOTS / f"dashboard_{theme}_past.png", full_page=True)
                bridge.explorer.cursor = -1
        print(bridge.errors or "no errors")
        browser.close()


if __name__ == "__main__":
    shoot(*map(int, sys.argv[1:]))
