"""Recordings side by side: each figure is what the frames say, and a policy that differs shows."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from nvexplore import cli
from nvexplore.explore import frames
from nvexplore.explore.compare import compare
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import save_recording
from nvexplore.sampling_params import SamplingParams
from tests.fakes import run_to_end, toy_engine


def recorded(policy: str, *, num_blocks: int = 12, steps: int | None = None) -> Recorder:
    """Prompts of which each begins as the one before, in a pool that is too small for them."""
    engine = toy_engine(num_blocks, 4, max_num_batched_tokens=8, max_num_seqs=3, policy=policy)
    recorder = Recorder()
    engine.subscribe(recorder)
    for n in range(5):
        engine.add_request([1, 2, 3, 4] * 2 + list(range(n + 1)), SamplingParams(max_tokens=12))
    if steps is None:
        run_to_end(engine)
    for _ in range(steps or 0):
        engine.step()
    return recorder


def test_figures_are_those_of_the_frames() -> None:
    runs = {policy: recorded(policy) for policy in ("prefill_first", "mixed")}
    table = compare(runs)
    assert list(table.columns) == list(runs) and table.loc["steps", "mixed"] != table.loc["steps", "prefill_first"]
    for name, recorder in runs.items():
        steps, requests, hits = (make(recorder) for make in (frames.steps, frames.sequences, frames.prefix_hits))
        column = table[name]
        assert column["steps"] == len(steps) and column["requests finished"] == 5
        assert column["tokens sampled"] == steps.num_sampled_tokens.sum() == 60
        assert column["preemptions"] == requests.num_preemptions.sum() > 0
        assert column["of these run again"] == requests.num_recomputed_tokens.sum() > 0
        assert column["share of admitted tokens hit"] == hits.num_hit_tokens.sum() / hits.num_tokens.sum() > 0
        assert column["most blocks in use"] == 12 and column["most requests waiting"] >= 2
        assert column["time to first token, median, s"] == requests.ttft_s.median() > 0
        busy = (steps.plan_us + steps.run_us + steps.commit_us).sum() / 1e6
        assert column["tokens sampled a second of steps"] == pytest.approx(60 / busy)


def ended(reasons: dict[str, float]) -> Recorder:
    """Requests that came at 0 s, by the word for how they left, and when."""
    engine, recorder = toy_engine(20, 4), Recorder()
    engine.subscribe(recorder)
    for name in reasons:
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True), request_id=name)
    engine.step()
    for info in recorder.requests.values():
        info.arrival, info.finish_reason, info.finish_step = 0.0, info.request_id.split("-")[0], 0
        # Of those that left in a gap the time is not known.
        info.finish_time = None if info.finish_reason == "unknown" else reasons[info.request_id]
    return recorder


def test_an_abort_is_no_end_and_no_latency() -> None:
    engine, recorder = toy_engine(20, 4), Recorder()
    engine.subscribe(recorder)
    for name in "abc":
        engine.add_request([1, 2, 3, 4], SamplingParams(max_tokens=9, ignore_eos=True), request_id=name)
    engine.step()
    engine.abort("a"), engine.abort("b")
    run_to_end(engine)
    column, requests = compare({"run": recorder})["run"], frames.sequences(recorder).set_index("request_id")
    assert (column["requests finished"], column["requests aborted"], column["of these in an error"]) == (1, 2, 0)
    assert column["requests finished"] == frames.steps(recorder).num_finished.sum()
    assert column["requests aborted"] == frames.steps(recorder).num_aborted.sum()
    assert column["latency, median, s"] == requests.latency_s["c"] > requests.latency_s["a"]


@pytest.mark.parametrize(
    ("left", "finished", "error", "aborted", "latency"),
    [
        ({"stop": 3.0, "length": 5.0}, 2, 0, 0, 4.0),
        ({"stop": 3.0, "error": 1.0}, 2, 1, 0, 3.0),
        ({"length": 3.0, "abort-1": 1.0, "abort-2": 1.0}, 1, 0, 2, 3.0),
        ({"length": 3.0, "unknown": 1.0}, 1, 0, 0, 3.0),
        ({"error": 1.0, "abort": 1.0, "unknown": 1.0}, 1, 1, 1, math.nan),
    ],
)
def test_how_requests_left(left: dict[str, float], finished: int, error: int, aborted: int, latency: float) -> None:
    """Finished is who came to an end by itself, as everywhere; a latency is of those that said all they had to say."""
    column = compare({"run": ended(left)})["run"]
    assert (column["requests finished"], column["of these in an error"]) == (finished, error)
    assert column["requests aborted"] == aborted
    assert column["latency, median, s"] == pytest.approx(latency, nan_ok=True)


def test_what_has_not_happened_yet() -> None:
    column = compare({"begun": recorded("mixed", steps=1)})["begun"]
    assert column["requests finished"] == 0 and math.isnan(column["latency, median, s"])
    with pytest.raises(ValueError, match="new: no step is recorded, so there is nothing to compare"):
        compare({"new": Recorder()})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(save_recording(recorded(policy), tmp_path / policy)) for policy in ("prefill_first", "mixed")]
    assert cli.main(["compare", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 recordings" and all(file in lines[1] for file in files)
    (sampled,) = [line.split() for line in lines if line.strip().startswith("tokens sampled  ")]
    assert sampled == ["tokens", "sampled", "60", "60"]
    assert cli.main(["compare", files[0], str(tmp_path / "no")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_every_file_that_is_named_has_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same one twice, by one spelling or two, and two of one name in different folders."""
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    for file, steps in (("run", 2), ("other/run", 3), ("run.nvx (2)", 4)):
        save_recording(recorded("mixed", steps=steps), file)
    files = ["run.nvx", "run.nvx (2)", "run.nvx", "./run.nvx", "run", "other/run.nvx", "other/run.nvx"]
    assert cli.main(["compare", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7 recordings"
    assert re.split(" {2,}", lines[1].strip()) == [
        *("run.nvx", "run.nvx (2)", "run.nvx (3)", "run.nvx (4)", "run", "other/run.nvx", "other/run.nvx (2)")
    ]
    (steps_row,) = [line.split() for line in lines if line.strip().startswith("steps  ")]
    assert steps_row == ["steps", "2", "4", "2", "2", "2", "3", "3"]
