"""Kernels beside their ceilings: what is timed, what the table says, failures, and who is refused."""

from __future__ import annotations

import argparse
import importlib.util
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.bench import kernel_bench, kernel_command, roofline
from nvexplore.bench.graph_timer import median_seconds
from nvexplore.bench.kernel_bench import Case, Ceiling, Result, Work, num_copies, table_head, table_line, time_case
from nvexplore.command_error import CommandError

CEILINGS: dict[Ceiling, float] = {"copy": 4e12, "read": 2e12, "matmul": 8e14}


class FakeTimer:
    """Runs what it is given, twice as a graph would, and says 10 microseconds."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.is_inference = False

    def __call__(self, calls: Sequence[Callable[[], Any]]) -> float:
        self.num_calls = len(calls)
        self.is_inference = torch.is_inference_mode_enabled()
        for call in [*calls, *calls]:
            call()
        return 1e-5


def case_of(make: Callable[[], Work], by: str = "triton", ceiling: Ceiling = "copy") -> Case:
    return Case("add", by, "3 x 4", ceiling, make)


def test_launches_go_over_as_much_memory_as_no_cache_holds() -> None:
    made: list[list[int]] = []

    def make() -> Work:
        made.append([])
        number = len(made)
        return Work(lambda: made[number - 1].append(number), num_bytes=300 << 20)

    timer = FakeTimer()
    result = time_case(case_of(make), timer)
    assert made == [[1, 1], [2, 2], [3, 3], [4, 4]], "each on memory of its own"
    assert (timer.num_calls, timer.is_inference) == (4, True)
    assert result == Result("add", "triton", "3 x 4", "copy", 1e-5, 300 << 20, 0)


@pytest.mark.parametrize(("num_bytes", "copies"), [(1, 256), (1 << 22, 256), (1 << 23, 128), (700 << 20, 2), (9e9, 2)])
def test_number_of_copies(num_bytes: float, copies: int) -> None:
    assert num_copies(int(num_bytes)) == copies


def test_a_failure_is_told_and_only_ours_counts() -> None:
    def fails() -> Work:
        raise ImportError("no such package\nand more")

    def silent() -> Work:
        raise RuntimeError

    ours, theirs = (time_case(case_of(fails, by), FakeTimer()) for by in ("compiled", "flash-attn-4"))
    assert ours.is_failure and not theirs.is_failure
    assert table_line(theirs, CEILINGS).split("  ")[-1].strip() == "failed: no such package"
    assert theirs.rate() is None and theirs.as_dict(CEILINGS)["share"] is None

    def wordy() -> Work:
        raise ValueError("the compiler raised:\n\n  OutOfMemory: 3 GiB\nand more")

    assert time_case(case_of(silent), FakeTimer()).error == "RuntimeError"
    assert time_case(case_of(wordy), FakeTimer()).error == "the compiler raised: OutOfMemory: 3 GiB"


def test_shares_are_of_the_ceiling_that_a_case_names() -> None:
    results = [Result("k", "triton", "-", ceiling, 1e-3, int(1e9), int(4e11)) for ceiling in CEILINGS]
    assert [result.share(CEILINGS) for result in results] == pytest.approx([0.25, 0.5, 0.5])
    assert results[2].rate() == pytest.approx(4e14)


def test_the_table() -> None:
    rows = [
        Result("silu_mul", "triton", "256 x 2 x 3,072", "copy", 2.5e-6, 4_718_592),
        Result(
            "prefill_attention", "flash-attn 2", "8 x 1,024 after 7,168, blocks of 256", "matmul", 4e-3, 10**8, 10**12
        ),
    ]
    lines = [table_head(), *(table_line(row, CEILINGS) for row in rows)]
    assert lines[0].split() == ["kernel", "by", "inputs", "us", "MB", "TB/s", "TFLOP/s", "of", "its", "ceiling"]
    assert lines[1].startswith("silu_mul             triton       256 x 2 x 3,072  ")
    assert lines[1].split()[-5:] == ["2.50", "4.72", "1.89", "47.2%", "copy"]
    assert lines[2].split()[-6:] == ["4000.00", "100.00", "0.03", "250.0", "31.2%", "matmul"]
    assert len({len(line) for line in lines}) == 1, "columns stand under their heads"
    figures = rows[1].as_dict(CEILINGS)
    assert (figures["microseconds"], figures["share"], figures["error"]) == (pytest.approx(4000), 0.3125, None)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    kernel_command.add_kernel_options(parser)
    return parser.parse_args(["--kernels", *words])


def test_without_a_gpu_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(CommandError) as refused:
        kernel_command.run_kernels(parsed())
    assert str(refused.value) == "--kernels: torch sees no CUDA device here, and kernels are measured on one"


def test_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    needed = r'--kernels needs a CUDA device, and torch to see it: pip install "nvexplore\[run\]"'
    with pytest.raises(CommandError, match=needed):
        kernel_command.run_kernels(parsed())


@pytest.mark.parametrize(
    ("has_gpu", "said"),
    [
        (False, "--kernels: torch sees no CUDA device here, and kernels are measured on one"),
        (True, "--kernels needs triton: pip install triton"),
    ],
)
def test_without_triton_the_gpu_is_asked_for_first(has_gpu: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    with pytest.raises(CommandError) as refused:
        kernel_command.run_kernels(parsed())
    assert str(refused.value) == said


def test_a_file_that_cannot_be_written(fake_gpu: list[Case], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"--json {tmp_path}: Is a directory"):
        kernel_command.run_kernels(parsed("--json", str(tmp_path)))


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """A GPU that copies 4 TB/s, with two cases; a test may add others."""
    cases = [
        Case("silu_mul", "triton", "2 x 3", "copy", lambda: Work(dict, 30_000_000)),
        Case("store_kv", "triton", "2 x 3", "copy", lambda: Work(dict, 20_000_000)),
    ]
    monkeypatch.setattr(kernel_command, "_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(kernel_command, "_cases", lambda config, device, dtype: cases)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fake")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(roofline, "measured_bandwidth", lambda device: roofline.Bandwidth(4e12, 4.2e12))
    monkeypatch.setattr(roofline, "measured_matmul", lambda device, dtype: 7e14)
    monkeypatch.setattr(kernel_bench, "time_case", partial(time_case, timer=FakeTimer()))
    return cases


def test_a_table_and_a_file(fake_gpu: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels.json"
    assert kernel_command.run_kernels(parsed("--json", str(file))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Fake: copies 4.00 TB/s (read and written), reads 4.20 TB/s, multiplies 700 TFLOP/s")
    assert [line.split()[0] for line in lines[2:5]] == ["kernel", "silu_mul", "store_kv"]
    assert lines[-1].startswith("nano-vLLM's benchmark at these rates: 3.78 s, 35,396 tokens/s")
    report = json.loads(file.read_text(encoding="utf-8"))
    assert [row["share"] for row in report["results"]] == pytest.approx([0.75, 0.5])
    assert report["ceilings"] == {"copy": 4e12, "read": 4.2e12, "matmul": 7e14}
    assert report["versions"]["torch"] == torch.__version__
    assert report["floor"]["num_tokens"] == 133_966


def test_json_alone_on_standard_output(fake_gpu: list[Case], capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_command.run_kernels(parsed("--json", "-", "--only-kernel", "store")) == 0
    told = capsys.readouterr()
    assert [row["kernel"] for row in json.loads(told.out)["results"]] == ["store_kv"]
    assert "store_kv" in told.err, "the table is still to be seen"


def test_an_unknown_name(fake_gpu: list[Case]) -> None:
    with pytest.raises(CommandError, match=r"--only-kernel x: no name contains it \(there are silu_mul, store_kv\)"):
        kernel_command.run_kernels(parsed("--only-kernel", "x"))


@pytest.mark.parametrize(("by", "status"), [("triton", 1), ("flash-attn 2", 0)])
def test_the_status_when_one_fails(
    by: str, status: int, fake_gpu: list[Case], capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Work:
        raise RuntimeError("not today")

    fake_gpu.insert(0, Case("decode_attention", by, "1 x 2", "read", fails))
    assert kernel_command.run_kernels(parsed()) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].endswith("failed: not today") and lines[4].startswith("silu_mul"), "the others still run"


class FakeDevice:
    """Stands for torch.cuda: a launch takes 10 microseconds, and what a captured graph holds is seen to be kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.graphs = 0.0, list[FakeGraph]()
        self.capturing: FakeGraph | None = None
        fakes = {"CUDAGraph": lambda: FakeGraph(self), "graph": self.capture, "Event": lambda **_: FakeEvent(self)}
        for name, fake in {**fakes, "synchronize": lambda: None}.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    @contextmanager
    def capture(self, graph: FakeGraph) -> Iterator[None]:
        self.capturing = graph
        yield
        self.capturing = None

    def launch(self) -> torch.Tensor:
        result = torch.zeros(1)
        if self.capturing is not None:
            self.capturing.results.append(weakref.ref(result))
        return result


class FakeGraph:
    def __init__(self, device: FakeDevice) -> None:
        """A graph of no launch yet."""
        self.device, self.results, self.num_replays = device, list[Any](), 0
        device.graphs.append(self)

    def replay(self) -> None:
        assert all(result() is not None for result in self.results), "memory of a result was used again"
        self.num_replays += 1
        self.device.now += 1e-5 * len(self.results)

    def reset(self) -> None: ...


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        """An event that nobody recorded."""
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.at = self.device.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1e3


def test_a_graph_is_long_enough_and_keeps_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    assert median_seconds([device.launch] * 30) == pytest.approx(1e-5)
    assert [len(graph.results) for graph in device.graphs] == [30, 210], "0.3 ms; then the rounds that give 2 ms"
    assert [graph.num_replays for graph in device.graphs] == [2, 49], "0.1 s, and one that does not count"
