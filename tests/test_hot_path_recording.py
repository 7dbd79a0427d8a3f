"""The recording of a GPU that notebook 04 shows: complete, and such that what the notebook says of it is true."""

from __future__ import annotations

import pytest

from nvexplore.bench.hot_path import HotPath
from nvexplore.bench.hot_path_results import RECORDING
from nvexplore.cli import notebooks_path


@pytest.fixture(scope="module")
def recording() -> HotPath:
    file = notebooks_path() / RECORDING
    assert file.stat().st_size < 300_000
    return HotPath.from_json(file.read_bytes())


def test_the_recording_is_of_a_gpu(recording: HotPath) -> None:
    """Every step has the device's times, every variant its kernels, and the ledger all of the memory."""
    assert recording.read_bytes_per_s is not None and recording.crowd is not None
    assert {"eager", "graphs", "graphs + overlap"} <= set(recording.variants)
    for variant in (*recording.variants.values(), recording.crowd):
        steps = variant.steps
        assert None not in steps.device_us and variant.census is not None and variant.census.counted == "kernels"
        assert variant.memory["total"] and "num_blocks" in variant.ledger


def test_what_the_notebook_says_of_the_recording(recording: HotPath) -> None:
    frame = recording.frame()
    eager, graphs, overlap = (frame.loc[name] for name in ("eager", "graphs", "graphs + overlap"))
    # "if a step takes the device nearly as long as the host needs to launch it": it waits, kernels are a part of it.
    assert eager["device_us"] > 0.7 * eager["host_us"] and eager["kernel_us"] < 0.6 * eager["device_us"]
    # "the kernels themselves have not become faster, they have moved together".
    assert graphs["kernel_us"] == pytest.approx(eager["kernel_us"], rel=0.25)
    assert graphs["device_us"] < 0.7 * eager["device_us"] and graphs["tokens_per_s"] > eager["tokens_per_s"]
    # "the device goes from graph to graph".
    assert overlap["device_us"] > 0.93 * overlap["wall_us"] and graphs["device_us"] < 0.93 * graphs["wall_us"]
    assert overlap["tokens_per_s"] > graphs["tokens_per_s"]
    # The host's work "has not become less", and it is hidden.
    assert overlap["host_us"] > 0.6 * graphs["host_us"] and overlap["host_us"] < overlap["device_us"]


def test_the_ladder_and_the_floor_of_the_recording(recording: HotPath) -> None:
    steps = recording.variants["graphs"].steps.frame()
    decodes = steps[~steps["is_prefill"]]
    assert (decodes["rows"] + decodes["padding"] == decodes["graph_size"]).all()
    assert sorted(set(decodes["graph_size"])) == [1, 2, 4, 8, 16, 24, 32]
    assert set(steps[steps["is_prefill"]]["eager_reason"]) == {"prefill"}
    assert recording.crowd is not None and recording.read_bytes_per_s is not None
    crowd = recording.crowd.steps.frame()
    crowd = crowd[~crowd["is_prefill"]]
    share = crowd["read_bytes"].astype("float64") / recording.read_bytes_per_s * 1e6 / crowd["device_us"]
    # "With many rows and long contexts a step is busy reading ... With few rows it is not".
    assert share[crowd["rows"] == 256].median() > 0.5 > 0.35 > share[crowd["rows"] == 1].median()
    assert share.max() < 1
