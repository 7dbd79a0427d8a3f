"""``nvexplore bench --serving``: a real run on a toy, what is made of the options, and what cannot be measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nvexplore
from nvexplore import cli
from nvexplore.bench import serving_command, serving_setup
from nvexplore.bench.servers import SERVERS, Recorded, make_server
from nvexplore.bench.serving import WORKLOADS, Server
from nvexplore.toy import make_toy
from tests.serving_fakes import Clock, FakeServer, FakeStreaming

torch.set_num_threads(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("time.sleep", clock.sleep)
    return clock


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("serving") / "toy", "qwen3")


def run_command(*argv: str) -> int:
    return cli.main(["bench", "--serving", "--threads", "1", "--passes", "1", *argv])


def test_a_real_run_with_table_json_and_pictures(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plots = tmp_path / "figures.json", tmp_path / "new" / "plots"
    options = ["--model", str(toy), "--scale", "0.001", "--rate", "100", "--json", str(file), "--plots", str(plots)]
    assert run_command(*options) == 0
    out = capsys.readouterr().out
    assert f"{toy}, float32, CPU: scale 0.001 of the full workloads\n" in out
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if line[-1:] == ["tokens/s"]] == ["throughput", "prefill"]
    assert sorted(path.stem for path in plots.iterdir()) == sorted([*WORKLOADS, "startup"])
    report = json.loads(file.read_text())
    assert list(dict.fromkeys(row["workload"] for row in report["results"])) == list(WORKLOADS)
    assert all(list(row["passes"]) == ["nvexplore"] and row["times_better"] is None for row in report["results"])
    assert (report["measures"], report["peer"], report["device"], report["scale"]) == ("serving", None, "CPU", 0.001)
    assert report["versions"]["torch"] == torch.__version__ and report["processors"] >= 1
    (startup,) = report["startup"]
    assert startup["to_first_token"] == startup["load"] + startup["first_token"] > 0


def test_beside_itself_with_a_recorder(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What watching costs; both engines have the options, and say what computes their attention."""
    file = tmp_path / "figures.json"
    options = ["--model", str(toy), "--scale", "0.002", "--workloads", "throughput", "--json", str(file)]
    options += ["--peer", "recorded", "--option", "block-size=8", "--option", "policy=mixed"]
    assert run_command(*options) == 0
    assert "recorded: prefill by torch; decode by torch, no graphs\n" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["options"] == {"block_size": 8, "policy": "mixed"} and report["peer_version"] == nvexplore.__version__
    (row,) = report["results"]
    assert list(row["passes"]) == ["nvexplore", "recorded"] and row["times_better"] > 0


def test_a_recorder_is_attached(toy: Path) -> None:
    server = make_server(
        "recorded", toy, dtype="float32", max_model_len=64, memory=0.5, options={"num_kvcache_blocks": 9}
    )
    assert isinstance(server, Recorded)
    assert server.generate([[40, 41]], [5]) == 5
    records = server.recorder.records
    assert len(records) == 5 and records[0].planned.prefill_backend == server.backends["prefill"] == "torch"
    assert server._llm.engine.limits.num_blocks == 9
    server.close()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--serving", "--option", "dtype=float16"], "--option dtype=float16: say --dtype"),
        (["--serving", "--option", "max_model_len=9"], "--option max_model_len=9: it is what the workloads need"),
        (["--serving", "--option", "blok_size=9"], "unknown option 'blok_size'; did you mean 'block_size'?"),
        (["--serving", "--option", "block_size=0"], "block_size=0: input should be greater than or equal to 1"),
        (["--option", "block_size=9"], "--option block_size=...: this measures with the defaults; add --serving"),
    ],
)
def test_options_that_are_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *argv]) != 0
    assert message in capsys.readouterr().err


def fake(server: type[FakeServer], name: str, clock: Clock, log: list[Any]) -> Callable[..., Server]:
    class Made(server):  # type: ignore[misc, valid-type]
        module = "json"

        def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float) -> None:
            super().__init__(clock, name)
            log.append((name, dtype, max_model_len, memory))

        @staticmethod
        def refusal(config: Any, dtype: str, *, has_gpu: bool) -> str | None:
            return "runs no such thing" if dtype == "float16" else None

        def close(self) -> None:
            log.append(f"{name} closed")

    return Made


@pytest.fixture
def made(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is made of faked servers, and when they are closed."""
    log: list[Any] = []
    monkeypatch.setitem(SERVERS, "nvexplore", fake(FakeStreaming, "nvexplore", clock, log))
    monkeypatch.setitem(SERVERS, "vllm", fake(FakeServer, "vllm", clock, log))
    return log


def test_beside_a_peer(toy: Path, made: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--peer", "vllm", "--workloads", "mixed-arrivals,prefill", "--model", str(toy), "--json", "-"]
    assert run_command(*options) == 0
    report = json.loads(capsys.readouterr().out)
    # The peer is loaded first, and told second.
    assert made == [
        ("vllm", "float32", 257, 0.45), ("nvexplore", "float32", 257, 0.45), "nvexplore closed", "vllm closed"
    ]  # fmt: skip
    assert [each["name"] for each in report["startup"]] == ["nvexplore", "vllm"]
    assert [row["workload"] for row in report["results"]] == ["prefill"] + ["mixed-arrivals"] * 4
    assert report["results"][0]["times_better"] == pytest.approx(1) and report["scale"] == 1 / 32
    assert report["left_out"] == ["mixed-arrivals: vllm is left out, it takes no requests while others run"]


def test_a_picture_that_cannot_be_written_is_told_in_a_line(
    toy: Path, made: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "startup.png").mkdir()
    assert run_command("--workloads", "first-token", "--model", str(toy), "--plots", str(tmp_path)) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"nvexplore: --plots {tmp_path}: Is a directory"
    assert made[-1] == "nvexplore closed"


def test_the_scale_of_a_cpu_is_said_and_memory_is_shared(
    toy: Path, made: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--workloads", "first-token", "--model", str(toy), "--memory", "0.8", "--dtype", "bfloat16"]
    assert run_command(*options) == 0
    assert "scale 0.03125 of the full workloads, as on every CPU (--scale 1 is full size)" in capsys.readouterr().out
    assert made[0] == ("nvexplore", "bfloat16", 5, 0.8)


def test_on_a_gpu_it_is_the_full_size_and_held_against_the_floor(
    toy: Path, made: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nvexplore.bench import roofline

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr(roofline, "measured_bandwidth", lambda device: roofline.Bandwidth(1e9, 1e9))
    monkeypatch.setattr(roofline, "measured_matmul", lambda device, dtype: 1e12)
    assert run_command("--workloads", "throughput", "--model", str(toy)) == 0
    out = capsys.readouterr().out
    assert "float32, a GPU: full size, as on every GPU" in out and "share of the floor's speed" in out
    assert made[0] == ("nvexplore", "float32", 2048, 0.9)


@pytest.mark.parametrize(
    ("options", "kv_dtype_bytes", "num_ranks"),
    [({}, 4, 1), ({"kv_cache_dtype": "fp8"}, 1, 1), ({"tensor_parallel_size": 2}, 4, 2)],
)
def test_the_floor_is_that_of_the_options(
    options: dict[str, Any], kv_dtype_bytes: int, num_ranks: int, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values of 8 bits are read faster, and two GPUs read two halves at once: a share is of that."""
    from nvexplore.bench import roofline
    from nvexplore.model_config import ModelConfig

    bandwidth, config = roofline.Bandwidth(1e9, 1e9), ModelConfig.from_path(toy)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr(roofline, "measured_bandwidth", lambda device: bandwidth)
    monkeypatch.setattr(roofline, "measured_matmul", lambda device, dtype: 1e12)
    setup = serving_setup.Setup(toy, config, "float32", True, "a GPU", 1.0, 0.9, options)
    found = [floor([5, 9], [4, 4]) for floor in serving_command._floors(setup, print)]
    assert found == [
        roofline.throughput_floor(
            config,
            ([5, 9], [4, 4]),
            bandwidth,
            dtype_bytes=4,
            kv_dtype_bytes=kv,
            num_ranks=ranks,
            matmul_flops_per_s=1e12,
        ).seconds
        for kv, ranks in ((kv_dtype_bytes, num_ranks), (4, 1))
    ]
    assert (found[0] < found[1]) is bool(options)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--peer", "vllm", "--memory", "0.6"], "--memory 0.6: at most 0.5, for each of two"),
        (["--memory", "1.5"], "--memory 1.5: at most 1"),
        (["--dtype", "float32,bfloat16"], "--serving measures one --dtype at a time, not float32,bfloat16"),
        (["--peer-path", "."], "--peer-path .: which peer is it?"),
        (["--peer", "vllm", "--peer-path", "nowhere"], "--peer-path nowhere: no such folder"),
        (["--peer", "nano-vllm"], "--peer nano-vllm: nanovllm is not installed; give a checkout of github.com/"),
        (["--peer", "vllm", "--dtype", "float16"], "--peer vllm runs no such thing"),
        (["--scheduler"], "--scheduler and --serving are two things to measure"),
        (["--plots", "file"], "--plots file: File exists"),
        (["--json", "nowhere/file"], "--json nowhere/file: no file can be written there"),
        (["--model", "./nowhere"], "no such folder"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    argv: list[str], said: str, toy: Path, made: list[Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert run_command("--model", str(toy), *argv) == 1
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and made == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--workloads", "prefill,decode"], "'decode': choose from throughput, step, first-token, prefill, shared-"),
        (["--scale", "0"], "0: must be above 0"),
        (["--rate", "inf"], "inf: must be above 0"),
        (["--peer", "llama.cpp"], "invalid choice"),
    ],
)
def test_a_wrong_option_names_those_there_are(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(*argv)
    assert said in " ".join(capsys.readouterr().err.split())


def test_every_peer_that_the_command_offers_exists() -> None:
    assert {*serving_setup.PEERS, "nvexplore"} == set(SERVERS)


@pytest.mark.parametrize(("text", "version"), [("[project]\nversion = '0.2.0'\n", "0.2.0 (a checkout)"), ("", None)])
def test_the_version_of_a_checkout(text: str, version: str | None, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert serving_command._peer_version("nano-vllm", tmp_path) == version
    assert (
        serving_command._peer_version("transformers", None) and serving_command._peer_version("nano-vllm", None) is None
    )
