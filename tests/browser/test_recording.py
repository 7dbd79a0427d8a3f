"""A recording on a page: every view as it was, with time travel, and no buttons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import load_recording, save_recording
from tests.browser.bridge import Bridge
from tests.browser.demo_run import decode, demo_engine, demo_steps
from tests.browser.pages import BLOCKS, number, wait_for

pytestmark = pytest.mark.browser


def test_a_recording_looks_as_its_run_did(open_page: Callable[..., Bridge], tmp_path: Path) -> None:
    engine, recorder = demo_engine(), Recorder()
    engine.subscribe(recorder)
    for _ in demo_steps(engine):
        pass

    def token_bytes(token_id: int) -> bytes:
        return f"{decode([token_id])} ".encode()

    def words_of(token_ids: list[int]) -> str:
        return b"".join(map(token_bytes, token_ids)).decode()

    file = save_recording(recorder, tmp_path / "run", token_bytes=token_bytes)
    recording = load_recording(file)
    states = []
    for source, text in ((recorder, words_of), (recording.recorder, recording.decode)):
        bridge = open_page({"recorder": source, "decode": text})
        for snapshot, records in source.segments:
            bridge.explorer.push(snapshot)
            for record in records:
                bridge.explorer.push(record)
        bridge.show("controls_view", "schedule_view", "block_view", "why_view", "prefix_view")
        bridge.explorer.flush()
        bridge.settle()
        sequences = "[...store.sequences.values()].map((s) => [s.name, s.table])"
        words = bridge.store(f"[store.step, [...store.words], {sequences}]")
        bridge.explorer.look_at(20)
        wait_for(bridge, lambda b=bridge: number(b.page.locator(BLOCKS), "step") == 21)  # type: ignore[misc]
        wait_for(bridge, lambda b=bridge: "step 20 ran" in b.page.locator(".nvx-why").inner_text())  # type: ignore[misc]
        bridge.settle()
        shown = [bridge.page.locator(view).inner_text() for view in (".nvx-why", ".nvx-prefix")]
        assert bridge.page.locator(".nvx-buttons").is_hidden() and bridge.errors == []
        states.append((words, shown))
    assert states[0] == states[1]
