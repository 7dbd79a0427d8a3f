"""Recordings side by side: each figure is what the frames say, and a policy that differs shows."""

from __future__ import annotations

import math
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
