"""The measuring of the hot path, on a toy: what its columns say, and that watching leaves no trace."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nvexplore.bench.hot_path import VARIANTS, HotPath, Requests, measure, recorded
from nvexplore.bench.hot_path_results import RECORDING
from nvexplore.bench.hot_path_steps import steps_of
from nvexplore.bench.hot_path_watch import CudaClock, Watch, hooked
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.conftest import RunPython

ASKED = Requests(num=3, prompt_len=5, first_end=3, every=2)
ROWS = [3, 3, 3, 2, 2, 1, 1]  # of each step: the first gives each request its first token
OPTIONS: dict[str, Any] = {"device": "cpu", "num_kvcache_blocks": 32, "block_size": 4}


class HostClock:
    """A device whose queue is empty: it reaches each place at once."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def ns(self, mark: int) -> int:
        return mark


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("hot path") / "toy", "qwen3")


@pytest.fixture(scope="module")
def hot(toy: Path) -> HotPath:
    variants = {name: VARIANTS[name] for name in ("eager", "graphs + overlap", "compile_layers")}
    return measure(toy, variants, ASKED, crowd=Requests(num=2, prompt_len=4, first_end=2), passes=2, **OPTIONS)


def test_every_step_is_a_row_that_says_what_ran(hot: HotPath) -> None:
    assert ASKED.max_tokens == [3, 5, 7] and list(hot.variants) == ["eager", "graphs + overlap"]
    for name, variant in hot.variants.items():
        steps = variant.steps
        assert steps.step == list(range(7)) and steps.rows == ROWS
        assert steps.tokens == [15, *ROWS[1:]] and steps.is_prefill == [True] + 6 * [False]
        assert set(steps.eager_reason) == {"cpu"} and set(steps.backend) == {"torch"}
        assert steps.graph_size == steps.padding == steps.device_us == [None] * 7
        assert steps.is_ahead == [False] + 6 * [name != "eager"]
        assert len(variant.tokens_per_s) == 2 and min(variant.tokens_per_s) > 0 < variant.watched_per_s
        assert variant.options == {**OPTIONS, **VARIANTS[name]} and variant.dtype == "float32"
        assert variant.memory["num_blocks"] == 32 and "32 blocks" in variant.ledger
        assert 0 < sum(variant.load_times.values()) <= variant.load_seconds
    assert hot.crowd is not None and hot.crowd.steps.rows == [2, 2, 1, 1] and hot.crowd.options == OPTIONS
    assert hot.read_bytes_per_s is None and hot.device.startswith("CPU") and hot.model == "toy"
    assert "toy in float32" in hot.about() and f"torch {torch.__version__}" in hot.about()


def test_what_a_step_must_read(hot: HotPath, toy: Path) -> None:
    """All matrices, and two layers' keys and values of 2 heads of 16 floats for each token so far."""
    with LLM(toy, **OPTIONS) as llm:
        assert llm.runner is not None
        model = llm.runner.model
        named = dict(model.named_parameters())
        weights = sum(p.nbytes for name, p in named.items() if p.dim() == 2 and ".layers." in name)
        weights += model.lm_head.weight.nbytes
    kv = 2 * 2 * 2 * 16 * 4
    contexts = [3 * 6, 3 * 7, 2 * 8, 2 * 9, 10, 11]
    assert hot.variants["eager"].steps.read_bytes == [None, *(weights + kv * length for length in contexts)]


def test_the_host_does_one_thing_after_another(hot: HotPath) -> None:
    for name, variant in hot.variants.items():
        s = variant.steps
        for i in range(7):
            assert s.plan_at[i] + s.plan_us[i] == pytest.approx(s.launch_at[i], abs=0.2)
            assert s.launch_at[i] + s.launch_us[i] <= s.wait_at[i] + 0.2
            assert s.wait_at[i] + s.wait_us[i] == pytest.approx(s.commit_at[i], abs=0.2)
        for i in range(6):
            assert s.commit_at[i] + s.commit_us[i] <= s.commit_at[i + 1]
            is_launched_before = s.launch_at[i + 1] + s.launch_us[i + 1] <= s.wait_at[i] + 0.2
            assert is_launched_before == (name != "eager")
        assert sum(s.wall_us) == pytest.approx(s.commit_at[-1] + s.commit_us[-1], abs=2)
        medians = s.medians()
        assert medians["host_us"] > 0 and medians["device_us"] != medians["device_us"]
        assert s.full()["step"].tolist() == [2]


def test_what_cannot_be_run_is_left_out_with_its_reason(hot: HotPath, toy: Path) -> None:
    assert list(hot.left_out) == ["compile_layers"] and "for a GPU only" in hot.left_out["compile_layers"]
    told: list[str] = []
    with pytest.raises(RuntimeError, match=r"nothing could be measured: .*for a GPU only"):
        measure(toy, {"compiled": {"compile_layers": True}}, ASKED, tell=told.append, device="cpu")
    assert told[0] == "measuring compiled" and told[1].startswith("compiled is left out: compile_layers=True")


def test_a_recording_comes_back_as_it_was(
    hot: HotPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_python: RunPython
) -> None:
    monkeypatch.setattr("nvexplore.cli.notebooks_path", lambda: tmp_path / "notebooks")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"04_hot_path\.json is neither in this folder nor among"):
        recorded()
    (tmp_path / "notebooks" / RECORDING).write_bytes(hot.to_json())
    assert recorded() == hot
    Path(RECORDING).write_bytes(b"[]")
    with pytest.raises(ValueError, match="no recording of nvexplore's hot path"):
        recorded()
    frame = hot.frame()
    assert frame.index.tolist() == list(hot.variants) and frame["kernels"].isna().all()
    assert (frame["wall_us"] > 0).all() and (frame["watched_per_s"] > 0).all()
    file = tmp_path / "notebooks" / RECORDING
    code = (
        f"import sys; from nvexplore.bench.hot_path import HotPath; HotPath.from_json(open({str(file)!r}, 'rb').read())"
    )
    assert run_python(f"{code}; print('torch' in sys.modules)") == "False\n"


# ---------------------------------------------------------------- watching


@pytest.mark.parametrize("overlap", [False, True])
def test_the_devices_clock(toy: Path, overlap: bool) -> None:
    """A step begins when its batch is given to the device, and ends behind its ids."""
    records: list[StepRecord] = []

    def keep(item: Snapshot | StepRecord) -> None:
        if isinstance(item, StepRecord):
            records.append(item)

    with LLM(toy, **OPTIONS, overlap=overlap) as llm:
        runner = llm.runner
        assert runner is not None
        began, clock = time.perf_counter_ns(), HostClock()
        with llm.engine.subscribe(keep), Watch(runner, clock) as watch:
            llm.generate([[1, 2, 3]] * 2, SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
        steps = steps_of(records, watch.steps, clock, began, llm.model_config, 4)
        assert not {"launch", "run"} & set(vars(runner)) and not {"begin", "replay"} & set(vars(runner.backend))
        with pytest.raises(ValueError, match="4 records, but 3 steps were watched"):
            steps_of(records, watch.steps[1:], clock, began, llm.model_config, 4)
    assert len(steps.step) == 4
    for at, us, launch_at, launch_us in zip(
        steps.device_at, steps.device_us, steps.launch_at, steps.launch_us, strict=True
    ):
        assert at is not None and us is not None
        assert launch_at <= at and at + us <= launch_at + launch_us + 0.3
    assert steps.frame()["device_us"].min() > 0


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "fp8"}, {"tensor_parallel_size": 2}, {}])
def test_the_bytes_a_step_must_read_are_those_of_this_rank_and_its_pool(options: dict[str, Any], toy: Path) -> None:
    found = measure(toy, {"graphs": VARIANTS["graphs"]}, ASKED, passes=1, **OPTIONS, **options).variants["graphs"].steps
    with LLM(toy, **OPTIONS, **options) as llm:
        runner = llm.runner
        assert runner is not None
        weights = {
            p.data_ptr(): p.nbytes
            for name, p in runner.model.named_parameters()
            if p.dim() == 2 and (".layers." in name or "lm_head" in name or "embed_tokens" in name)
        }
        per_token = runner.memory.block_bytes // 4
    decode = [count for count, is_prefill in zip(found.rows, found.is_prefill, strict=True) if not is_prefill]
    expected = [
        sum(weights.values()) + rows * (6 + step) * per_token for step, rows in enumerate(decode)
    ]  # prompts of 5, one new token, and the newest's own
    assert [each for each in found.read_bytes if each is not None] == expected


def test_a_hook_is_gone_after_an_error() -> None:
    target = SimpleNamespace()
    hook = hooked(target, "method", lambda: 1)
    hook.__enter__()
    assert target.method() == 1
    assert not hook.__exit__(KeyError, KeyError(), None)  # the error goes on
    assert not vars(target)


def test_cuda_events_on_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def __init__(self, **options: bool) -> None:
            assert options == {"enable_timing": True}
            self.at = 0.0
            self.is_past = False

        def record(self, stream: str) -> None:
            assert stream == "the stream"
            self.at = len(made) * 2.5
            made.append(self)

        def synchronize(self) -> None:
            self.is_past = True

        def elapsed_time(self, other: Event) -> float:
            assert self.is_past and other.is_past
            return other.at - self.at

    made: list[Event] = []
    ticks = iter([1_000, 3_000])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream")
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(ticks))
    clock = CudaClock(torch.device("cuda"))
    assert clock.ns(clock.mark()) == 2_000 + 2_500_000 and len(made) == 2
