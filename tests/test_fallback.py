"""What a view leaves where no widget is shown: text and picture of every view, true, readable and small."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import matplotlib.image
import numpy as np
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.explore.frames import steps
from nvexplore.notebook import fallback, still, still_frames
from nvexplore.notebook.answers import view_class
from nvexplore.notebook.display import MODULES
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.still_panel import Scene
from nvexplore.notebook.still_rates import rates
from nvexplore.notebook.still_tables import slot_words, tree_order
from tests.browser.demo_run import decode, demo_engine, demo_steps
from tests.comms import RecordedComm, comm_of, displayed, recorded_comms
from tests.fakes import toy_engine
from tests.watch import greedy

PNG = "image/png"
ROOT = Path(__file__).parents[1]


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


def demo(num_steps: int) -> Explorer:
    engine = demo_engine()
    explorer = displayed(engine, decode=decode)
    for _ in demo_steps(engine, num_steps):
        pass
    return explorer


def data_of(explorer: Explorer, name: str) -> dict[str, Any]:
    view = view_class(name)
    assert view is not None
    data: dict[str, Any] = view(explorer)._repr_mimebundle_()[0]
    return data


def pixels_of(data: dict[str, Any]) -> Any:
    return matplotlib.image.imread(io.BytesIO(base64.b64decode(data[PNG])))[..., :3]


@pytest.mark.parametrize("num_steps", [1, 12, 26, 38])
def test_every_view_has_a_text_and_all_but_the_sentences_a_picture(comms: list[RecordedComm], num_steps: int) -> None:
    explorer = demo(num_steps)
    seen = []
    for name in MODULES.values():
        data = data_of(explorer, name)
        assert f"\nafter step {num_steps - 1}: " in data["text/plain"]
        assert all(line.isprintable() for line in data["text/plain"].split("\n"))
        assert (PNG in data) == (name != "why_view")
        if PNG not in data:
            continue
        pixels = pixels_of(data)
        seen.append(data[PNG])
        assert len(base64.b64decode(data[PNG])) <= fallback.MAX_BYTES
        assert pixels.shape[1] == 608 and 50 < pixels.shape[0] < 900
        assert np.all(pixels[0] == 1) and 0.6 < pixels.mean() < 0.999, "words and colours on a light page"
    assert len(set(seen)) == len(seen), "each view has a picture of its own"


def test_the_words_say_what_the_pictures_show(comms: list[RecordedComm]) -> None:
    explorer = demo(38)
    slots, memory = (data_of(explorer, name)["text/plain"].split("\n")[-1] for name in ("slot_view", "memory_view"))
    told = explorer._answers.answer("slot_view", -1)
    assert slots.startswith(f"its batch wrote {told['num_tokens']} tokens of {told['num_rows']} rows to the pool: ")
    kinds = explorer._answers.answer("memory_view", -1)["slots"]
    assert f"{kinds['slots']:,} slots in the blocks in use: {kinds['held']:,} hold a token, " in memory
    assert kinds["slots"] == kinds["held"] + kinds["due"] + kinds["unused"]


def test_a_name_is_drawn_as_it_is_written(comms: list[RecordedComm]) -> None:
    """No formula, no markup, no line end, no character that the font lacks breaks a picture."""
    engine = demo_engine()
    explorer = displayed(engine, decode=lambda ids: "$\\frac{1$ 🦜\n" * len(ids))
    for name in ("$x^$", "two\nlines", "مرحبا 🦜 漢字", "\u202eback", "x" * 500):
        engine.add_request(list(range(40)), greedy(9), request_id=name)
    engine.step()
    engine.step()
    for name in ("slot_view", "prefix_view", "schedule_view"):
        assert pixels_of(data_of(explorer, name)).shape[1] == 608
    told = explorer._answers.answer("slot_view", -1)
    scene = Scene(1, fallback.block_states(explorer._feed.mirror.state), explorer.recorder, told)  # type: ignore[union-attr]
    assert still.draw(scene, ("slots", "prefix")) is not None


def test_the_rates_are_those_of_the_frame(comms: list[RecordedComm]) -> None:
    explorer = demo(38)
    mine, theirs = rates(explorer.recorder.records), steps(explorer.recorder)
    for name in mine.columns:
        np.testing.assert_allclose(mine[name], theirs[name])
    scene = Scene(30, np.zeros(96, np.uint8), explorer.recorder)
    assert [record.step for record in scene.last_records(4)] == [27, 28, 29, 30]
    assert len(scene.last_records(100)) == 31 and Scene(99, scene.states, explorer.recorder).last_records(4) == []


def test_parts_of_the_tables() -> None:
    assert tree_order([-1, 0, -1, 0, 3, 99]) == [0, 1, 3, 4, 2, 5]
    assert slot_words([4, 5, 6, 9]) == "4-6, 9" and slot_words([1, 3, 5]) == "1, 3 …"
    assert slot_words([7], is_cut=True) == "7 …" and slot_words([]) == ""
    assert still.draw(Scene(0, np.zeros(4, np.uint8), Explorer().recorder), ("slots", "prefix", "throughput")) is None


# ------------------------------------------------------------------------------------------- a pool of a million blocks


def large_engine(num_blocks: int = 1_000_000) -> Engine:
    engine = toy_engine(num_blocks, 16, max_num_batched_tokens=200_000, max_num_seqs=256)
    for i in range(20):
        engine.add_request([i] * 9_000, greedy(4))
    engine.step()
    engine.step()
    return engine


def saved_bytes(explorer: Explorer) -> int:
    """What a notebook's file keeps of the data."""
    state = ipywidgets.Widget.get_manager_state()["state"][explorer.model_id]
    return len(json.dumps(state)) - len(json.dumps(explorer._esm)) - len(json.dumps(explorer._css))


def test_a_million_blocks_are_saved_small_and_whole(comms: list[RecordedComm]) -> None:
    engine = large_engine()
    explorer = displayed(engine)
    engine.step()
    explorer.keyframe()
    assert saved_bytes(explorer) < 50_000
    whole = explorer._feed.frame()
    assert still_frames.size_of(whole) > 2_000_000
    sent = comm_of(explorer).messages()[-1]
    assert "left_out" not in sent and unfolded(sent) == (whole["words"], whole["tables"])
    for name in ("", *MODULES.values()):
        data = data_of(explorer, name) if name else explorer._repr_mimebundle_()[0]
        assert len(json.dumps(data)) < 1.4 * fallback.MAX_BYTES
        assert "of 1,000,000 blocks in use" in data["text/plain"] and (PNG in data) == (name != "why_view")
        left_out = "\nleft out: " in data["text/plain"]
        assert left_out == (name in ("", "schedule_view", "slot_view", "memory_view")), name
    assert explorer._repr_mimebundle_()[1][PNG]["alt"].endswith("since there are more than 50,000 blocks")


UNFOLD = """import { copyAs, unfolded } from "./widgets/wire.js";
import { readFileSync } from "node:fs";
const { frame } = unfolded(JSON.parse(readFileSync(0)));
const text = (Type, part) => Buffer.from(copyAs(Type, part).buffer).toString("base64");
console.log(JSON.stringify([text(Uint16Array, frame.words), text(Uint32Array, frame.tables)]));"""


def unfolded(frame: dict[str, Any]) -> tuple[bytes, bytes]:
    """The words and the tables that the page makes of a frame, which here comes as text."""
    told = json.dumps(still_frames.as_text(frame))
    command = ["node", "--input-type=module", "-e", UNFOLD]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=True, cwd=ROOT)
    words, tables = map(base64.b64decode, json.loads(done.stdout))
    return words, tables


def test_what_does_not_fit_is_left_out_of_the_file_and_said(comms: list[RecordedComm]) -> None:
    """A million blocks in a state that can't be told in few runs: pages that are open get them, a file does not."""
    engine = large_engine()
    explorer = displayed(engine)
    engine.step()
    explorer._feed.fold()
    writer = explorer._feed._writer
    assert writer is not None
    writer._words = np.random.default_rng(0).integers(0, 5, 1_000_000).astype("<u2")
    comm = comm_of(explorer)
    comm.sent.clear()
    explorer._feed.resync()
    (_, custom, buffers), (_, update, _) = comm.sent
    content = custom["content"]
    assert content["type"] == "frame" and content["num_blocks"] == 1_000_000 and "left_out" not in content
    assert len(buffers[content["buffers"].index("words")]) == 2_000_000
    kept = update["state"]["frame"]
    assert (kept["seq"], kept["step"], kept["num_blocks"]) == (content["seq"], 3, 0)
    what = "the map of 1,000,000 blocks and the block tables were left out of the saved notebook"
    assert kept["left_out"] == f"{what}: with them it takes 2.0 MB, and 1.0 MB are saved at most"
    assert saved_bytes(explorer) < 50_000


def test_runs_and_caps() -> None:
    equal, following = still_frames.runs_of(np.array([5, 5, 0], "<u2"), 0), still_frames.runs_of(np.array([5, 6, 9]), 1)
    assert np.frombuffer(equal, "<u4").tolist() == [5, 2, 0, 1]
    assert np.frombuffer(following, "<u4").tolist() == [5, 2, 9, 1]
    assert still_frames.runs_of(np.array([], "<u2"), 0) == b""
    small = {"words": bytes(100), "tables": b"", "rows": b""}
    assert still_frames.compact(small) is small and still_frames.saved(small) is small
    rows = np.arange(22, dtype="<i4")
    huge = {"num_blocks": 7, "rows": rows.tobytes()}
    huge |= {"words": bytes(300_000), "tables": b"", "entries": bytes(2_000_000)}
    kept = still_frames.saved(still_frames.compact(huge))
    assert kept["entries"] == b"" and "and the steps were left out" in kept["left_out"]
    assert np.frombuffer(kept["rows"], "<i4").tolist() == [*range(9), 0, 0, *range(11, 20), 0, 0]
    assert sys.getsizeof(json.dumps(still_frames.as_text(kept))) < 1_000


def test_an_image_that_is_too_large_or_fails_leaves_the_text(
    comms: list[RecordedComm], monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer = demo(3)
    monkeypatch.setattr(fallback, "MAX_BYTES", 10)
    data = data_of(explorer, "memory_view")
    assert PNG not in data and "after step 2" in data["text/plain"]
    monkeypatch.setattr(still, "draw", lambda scene, parts: 1 / 0)
    assert data_of(explorer, "memory_view")["text/plain"].startswith("MemoryView of Explorer(step 3")
