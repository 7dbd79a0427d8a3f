"""Traces for Perfetto: what they show is what the frames say, and each track is one that a viewer can draw."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nvexplore import cli
from nvexplore.explore import frames
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import save_recording
from nvexplore.explore.trace import trace, write_trace
from nvexplore.sampling_params import SamplingParams
from tests.drive import run_workload
from tests.fakes import toy_engine
from tests.workloads import make_workload


def recorded(seed: int) -> Recorder:
    work, recorder = make_workload(seed, overlap=seed % 2 == 0), Recorder()
    work.engine.subscribe(recorder)
    run_workload(work)
    return recorder


@pytest.mark.parametrize("seed", range(40))
def test_slices_lie_side_by_side_and_counters_are_the_frames(seed: int, tmp_path: Path) -> None:
    """In a viewer slices of one track may lie within each other, but not half."""
    recorder = recorded(seed)
    told = json.loads(write_trace(recorder, tmp_path / "t.json").read_text())
    assert told == json.loads(json.dumps(trace(recorder)))
    by_track: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for event in told["traceEvents"]:
        assert event["ph"] in "XiCM"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            by_track[event["pid"], event["tid"]].append(event)
    for track in by_track.values():
        for one, other in pairwise(sorted(track, key=lambda event: (event["ts"], event["ts"] + event["dur"]))):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-3
    table = frames.steps(recorder)
    assert [event["name"].split(":")[0] for event in by_track[1, 1]] == [f"step {step}" for step in table.step]
    used = [e["args"]["used"] for e in told["traceEvents"] if e["ph"] == "C" and e["name"] == "KV blocks"]
    assert used == table.num_used_blocks.tolist()
    tokens = sum(e["args"]["num_tokens"] for key, track in by_track.items() if key[0] == 2 for e in track)
    assert tokens == table.budget_used.sum()
    moments = [event["name"] for event in told["traceEvents"] if event["ph"] == "i"]
    assert moments.count("finished") == table.num_finished.sum()
    assert moments.count("preempted") >= table.num_preempted.sum()


def test_a_preemption_is_told_with_its_cause() -> None:
    engine, recorder = toy_engine(7, 4, max_num_batched_tokens=64, max_num_seqs=4), Recorder()
    engine.subscribe(recorder)
    for name in ("first", "second\u202e"):
        engine.add_request([1, 2, 3, ord(name[0])] * 2, SamplingParams(max_tokens=14), request_id=name)
    while engine.has_unfinished:
        engine.step()
    events = trace(recorder)["traceEvents"]
    (lost,) = [event for event in events if event["name"] == "preempted"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    (told,) = [record.planned.preempted for record in recorder.records if record.planned.preempted.seq_id]
    assert lost["args"]["for"] == recorder.requests[told.cause[0]].request_id
    assert lost["tid"] == told.seq_id[0] + 1 and lost["args"]["tokens_lost"] == told.num_lost[0] > 0
    assert names[lost["tid"]] == "second\\u202e"
    waits = [event for event in events if event["ph"] == "X" and event["tid"] == lost["tid"] and event["pid"] == 2]
    assert [event["name"] for event in waits].count("recompute") == 1
    assert any(event["name"] == "waiting" and event["ts"] >= lost["ts"] for event in waits)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_recording(recorded(1), tmp_path / "run")
    assert cli.main(["replay", str(file), "--trace", str(tmp_path / "t.json")]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {tmp_path / 't.json'}\n")
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ms"
    with pytest.raises(ValueError, match="no step is recorded yet"):
        trace(Recorder())
