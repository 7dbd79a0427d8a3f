"""The scheduler's benchmark: the same work for all, fair turns, a peer imported alone, and the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nvexplore import cli
from nvexplore.bench import scheduler_cost
from nvexplore.bench.deciders import FIRST_TOKENS, Decider, Nvexplore, Shape
from nvexplore.bench.nano_vllm_scheduler import NanoVllm, NotNanoVllm
from nvexplore.bench.scheduler_cost import Cost, DifferentWork, admission_costs, scheduler_costs, step_cost
from nvexplore.bench.scheduler_table import table

# The least that looks like nano-vllm from outside: everything fits, nothing is cached.
PACKAGE = {
    "__init__": "raise ImportError('the package itself must not be imported')",
    "sampling_params": """
class SamplingParams:
    def __init__(self, temperature=1.0, max_tokens=64):
        self.max_tokens = max_tokens
""",
    "engine.sequence": """
from itertools import count
from nanovllm.sampling_params import SamplingParams

class Sequence:
    block_size = 256
    counter = count()

    def __init__(self, token_ids, params):
        self.seq_id = next(Sequence.counter)
        self.token_ids = list(token_ids)
        self.end = len(token_ids) + params.max_tokens
""",
    "engine.block_manager": """
class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
""",
    "engine.scheduler": """
from collections import deque
from nanovllm.config import Config
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.sequence import Sequence

class Scheduler:
    def __init__(self, config: Config):
        self.block_manager = BlockManager(config.num_kvcache_blocks, config.kvcache_block_size)
        self.waiting, self.running, self.config = deque(), deque(), config

    def add(self, seq):
        self.waiting.append(seq)

    def schedule(self):
        new = list(self.waiting)
        self.waiting.clear()
        self.running.extend(new)
        return (new, True) if new else (list(self.running), False)

    def postprocess(self, seqs, token_ids, is_prefill):
        for seq, token_id in zip(seqs, token_ids):
            seq.token_ids.append(token_id)
            if len(seq.token_ids) == seq.end:
                self.running.remove(seq)
""",
}


@pytest.fixture
def peer_path(tmp_path: Path) -> Path:
    folder = tmp_path / "nano-vllm"
    for name, text in PACKAGE.items():
        file = folder.joinpath("nanovllm", *name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def rewrite(peer_path: Path, name: str, old: str, new: str) -> None:
    file = peer_path.joinpath("nanovllm", *name.split(".")).with_suffix(".py")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


SHAPE = Shape(num_blocks=40, block_size=4, max_num_seqs=8, max_model_len=40)


@pytest.fixture(params=["nvexplore", "nano-vllm"])
def decider(request: pytest.FixtureRequest, peer_path: Path) -> Decider:
    return Nvexplore(SHAPE) if request.param == "nvexplore" else NanoVllm(peer_path, SHAPE)


def test_a_decider_samples_what_it_is_told(decider: Decider) -> None:
    assert not decider.is_prefilling()
    decider.add([[1, 2, 3], [4, 5]], max_tokens=3)
    assert decider.is_prefilling()
    decider.step(FIRST_TOKENS)
    assert not decider.is_prefilling()
    decider.step([8, 9])
    assert decider.completions() == [[1, 2, 3, 7, 8], [4, 5, 7, 9]]
    decider.step([8, 9])
    assert decider.completions() == []


class TestPeer:
    def test_it_is_imported_alone_and_leaves_no_trace(self, peer_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mine: Any = object()
        monkeypatch.setitem(sys.modules, "nanovllm.config", mine)
        before = dict(sys.modules)
        deciders = [NanoVllm(peer_path, Shape(10, size, 2, 99)) for size in (16, 256)]
        assert sys.modules == before
        assert [decider._new_sequence.block_size for decider in deciders] == [16, 256]
        config = deciders[0]._scheduler.config
        assert (config.num_kvcache_blocks, config.kvcache_block_size, config.max_num_seqs) == (10, 16, 2)

    def test_a_folder_without_it(self, tmp_path: Path) -> None:
        with pytest.raises(NotNanoVllm, match=r"is no checkout of nano-vllm: it has no .*sequence\.py"):
            NanoVllm(tmp_path, SHAPE)

    def test_one_that_cannot_be_imported_alone(self, peer_path: Path) -> None:
        rewrite(peer_path, "engine.sequence", "from itertools", "import nanovllm.models\nfrom itertools")
        with pytest.raises(NotNanoVllm, match=r"cannot be imported by itself: No module named 'nanovllm.models'"):
            NanoVllm(peer_path, SHAPE)

    @pytest.mark.parametrize("old", ["num_kvcache_blocks", "def postprocess", "class Sequence"])
    def test_one_that_is_used_in_another_way(self, old: str, peer_path: Path) -> None:
        for name in ("engine.scheduler", "engine.sequence"):
            if old in PACKAGE[name]:
                rewrite(peer_path, name, old, f"{old}_too")
        with pytest.raises(NotNanoVllm, match=r"not used as nano-vllm's is|cannot be imported"):
            NanoVllm(peer_path, SHAPE)


class Fake:
    """Notes who did what when; says one token more than it was given if it is wrong."""

    def __init__(self, name: str, log: list[str], shape: Shape, wrong: bool = False) -> None:
        self.name, self.log, self.shape, self.wrong = name, log, shape, wrong
        self.tokens: list[list[int]] = []
        self.waiting = False

    def add(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        self.tokens += [list(prompt) for prompt in prompts]
        self.waiting = True

    def step(self, token_ids: list[int]) -> None:
        self.log.append(f"{self.name}{self.shape.num_blocks}")
        for tokens, token_id in zip(self.tokens, token_ids, strict=False):
            tokens.append(token_id)
        self.waiting = False

    def is_prefilling(self) -> bool:
        return self.waiting

    def completions(self) -> list[list[int]]:
        return [[*tokens, 0] for tokens in self.tokens] if self.wrong else self.tokens


def fakes(log: list[str], wrong: str = "") -> list[Callable[[Shape], Decider]]:
    return [lambda shape, name=name: Fake(name, log, shape, name == wrong) for name in "ab"]  # type: ignore[misc]


def test_all_move_in_turns_and_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_cost, "STEPS", 1)
    log: list[str] = []
    cost = step_cost(fakes(log), 16, 3, [5, 6], 2)
    a, b, c, d = "a5", "b5", "a6", "b6"
    turns = [log[i : i + 4] for i in range(0, len(log), 4)]  # the prefill, a pass that does not count, two that do
    assert turns == [[c, d, a, b], [d, a, b, c], [a, b, c, d], [b, c, d, a]]
    assert (cost.what, cost.block_size, cost.rows) == ("step", 16, 3)
    assert list(cost.passes) == [("a", 5), ("b", 5), ("a", 6), ("b", 6)]
    assert all(len(passes) == 2 for passes in cost.passes.values())


@pytest.mark.parametrize(
    "measure", [lambda makers: step_cost(makers, 16, 2, [5], 1), lambda m: admission_costs(m, 16, [5], 1)]
)
def test_different_work_is_not_compared(measure: Callable[[Any], object]) -> None:
    with pytest.raises(DifferentWork, match="b with 5 blocks has other tokens than a with 5"):
        measure(fakes([], wrong="b"))


def test_figures_are_medians_of_ratios() -> None:
    passes = {("a", 10): [1.0, 2.0, 9.0], ("b", 10): [2.0, 6.0, 9.0], ("a", 30): [2.0, 2.0, 9.0], ("b", 30): [9.0] * 3}
    cost = Cost("step", 16, 8, passes)
    assert (cost.median("a", 10), cost.speedup("a", "b", 10), cost.growth("a"), cost.growth("b")) == (2, 2, 1, 1.5)
    figures = json.loads(json.dumps(cost.as_dict()))
    assert figures["times"][1] == {"name": "b", "num_blocks": 10, "median_us": 6, "passes_us": [2, 6, 9]}
    assert (figures["speedup"], figures["growth"]) == ({"10": 2, "30": 4.5}, {"a": 1, "b": 1.5})
    lines = table([cost])
    assert [line.split()[-4:] for line in lines[3:5]] == [["10", "2.0", "6.0", "2.00x"], ["30", "2.0", "9.0", "4.50x"]]
    assert lines[5].split()[-2:] == ["1.00x", "1.50x"]


def test_without_a_peer_there_is_nothing_to_compare() -> None:
    cost = Cost("hits", 16, 8, {("a", 10): [3.0]})
    assert "speedup" not in cost.as_dict()
    assert table([cost])[-1].split()[-3:] == ["8", "10", "3.0"]


def test_a_pool_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="3 sequences of 723 tokens need 138 blocks of 16, not 137"):
        scheduler_costs([Nvexplore], 16, [3], [137], 1, lambda line: None)


OPTIONS = ["bench", "--scheduler", "--passes", "1", "--rows", "2,3", "--blocks", "1600", "--block-size", "256"]


def test_the_command_prints_a_table_and_writes_json(
    peer_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    assert cli.main([*OPTIONS, "--peer", "nano-vllm", "--peer-path", str(peer_path), "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if "256 tokens a block" in line] == ["nano-vllm"]
    assert sum("a step" in line for line in lines) == 2 and sum("a prompt" in line for line in lines) == 3
    report = json.loads(file.read_text())
    results = report["results"]
    assert [(each["what"], each["rows"]) for each in results] == [
        ("step", 2), ("step", 3), ("admission", 256), ("hits", 256), ("freed hits", 4)
    ]  # fmt: skip
    assert [each["num_blocks"] for each in results[0]["times"]] == [6, 6, 1600, 1600]
    assert set(results[0]["speedup"]) == {"6", "1600"} and set(results[0]["growth"]) == {"nvexplore", "nano-vllm"}
    assert (report["peer"], report["passes"]) == ("nano-vllm", 1) and "xxhash" in report["versions"]


def test_alone_and_json_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*OPTIONS, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["peer"] is None and {each["name"] for each in report["results"][0]["times"]} == {"nvexplore"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*OPTIONS, "--peer", "nano-vllm"], "--peer nano-vllm needs --peer-path"),
        ([*OPTIONS, "--peer", "nano-vllm", "--peer-path", "."], "is no checkout of nano-vllm"),
        ([*OPTIONS, "--peer", "transformers"], "with --scheduler the peer is nano-vllm"),
        ([*OPTIONS, "--peer-path", "."], "with --scheduler the peer is nano-vllm"),
        ([*OPTIONS, "--blocks", "4"], "2 sequences of 723 tokens need 6 blocks of 256, not 4"),
        (["bench", "--peer", "nano-vllm"], "add --scheduler"),
        (["bench", "--peer-path", "."], "add --scheduler"),
    ],
)
def test_what_does_not_fit_together_is_said(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 1
    assert said in capsys.readouterr().err
