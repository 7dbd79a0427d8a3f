"""The benchmark: fair turns, honest rates, and a real run on a toy from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import cli
from nvexplore.bench import command, contenders
from nvexplore.bench.compare import compare
from nvexplore.bench.workload import Run, Workload
from nvexplore.demo import DemoModelError
from nvexplore.model_config import ModelConfig
from nvexplore.toy import make_toy

torch.set_num_threads(1)


class Fake:
    """Takes a second for each run, a tenth of it for the prefill; notes who ran when."""

    def __init__(self, name: str, log: list[str], ids: list[int], seconds: list[float]) -> None:
        self.name, self.log, self.ids, self.seconds = name, log, ids, seconds

    def run(self, workload: Workload) -> Run:
        self.log.append(f"{self.name}{workload.batch}")
        decode = self.seconds.pop(0)
        return Run([self.ids] * workload.batch, 0.1, decode)

    def close(self) -> None:
        raise AssertionError


def test_passes_alternate_and_medians_are_of_the_passes() -> None:
    log: list[str] = []
    a = Fake("a", log, [1, 2, 3, 4, 5], [9.0, 1.0, 2.0, 4.0])
    b = Fake("b", log, [1, 2, 9, 4, 5], [9.0, 1.0, 4.0, 6.0])
    told: list[str] = []
    (found,) = compare((a, b), [Workload(2, 10, 5)], 3, told.append)
    assert log == ["b2", "a2", "a2", "b2", "b2", "a2", "a2", "b2"]
    assert told == ["warming up", "pass 1 of 3", "pass 2 of 3", "pass 3 of 3"]
    assert found.decode == ([8.0, 4.0, 2.0], [8.0, 2.0, 8 / 6])  # 2 x (5 - 1) tokens; the first run does not count
    assert found.decode_ratio == 1.5
    assert found.prefill == ([200.0] * 3, [200.0] * 3)
    assert found.equal_tokens == 0.4
    figures = found.as_dict()
    assert figures["decode_tokens_per_second"]["a"] == {"median": 4.0, "passes": [8.0, 4.0, 2.0]}
    assert (figures["batch"], figures["prefill_ratio"]) == (2, 1.0)
    json.dumps(figures)


def test_prompts_are_the_same_every_time_and_different_from_one_another() -> None:
    prompts = Workload(8, 20, 2).prompts(1000)
    assert prompts == Workload(8, 20, 2).prompts(1000) != Workload(8, 20, 3).prompts(2000)
    assert [len(prompt) for prompt in prompts] == [20] * 8
    assert len({tuple(prompt) for prompt in prompts}) == 8
    assert all(500 <= token < 1000 for prompt in prompts for token in prompt)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("bench") / "toy", "llama")


def test_both_contenders_do_the_same_work(toy: Path) -> None:
    """In fp32 token for token; every completion has its length although the toy may say an end-of-sequence id."""
    workload = Workload(3, 12, 9)
    runs = []
    for contender in (
        contenders.Nvexplore(toy, "float32", workload),
        contenders.Transformers(toy, "float32", workload),
    ):
        first = contender.run(workload)
        again = contender.run(Workload(2, 12, 4))  # smaller ones fit too
        assert [len(ids) for ids in first.token_ids] == [9, 9, 9] and [len(ids) for ids in again.token_ids] == [4, 4]
        assert first.prefill_seconds > 0 and first.decode_seconds > 0
        runs.append(first)
        contender.close()
    assert runs[0].token_ids == runs[1].token_ids


def test_prefill_is_one_step_without_hits(toy: Path) -> None:
    workload = Workload(4, 16, 5)
    contender = contenders.Nvexplore(toy, "float32", workload)
    counts: list[tuple[int, int]] = []
    runner = contender._llm.runner
    assert runner is not None
    run = runner.run

    def spied(batch: Any) -> Any:
        counts.append((len(batch.seqs), batch.num_tokens))
        return run(batch)

    runner.run = spied  # type: ignore[method-assign]
    for _ in range(2):
        counts.clear()
        contender.run(workload)
        assert counts == [(4, 64)] + [(4, 4)] * 4
    contender.close()


def run_command(*argv: str) -> int:
    return cli.main(["bench", "--threads", "1", "--prompt-len", "6", "--new-tokens", "4", *argv])


def test_the_command_prints_a_table_and_writes_json(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    options = ["--model", str(toy), "--dtype", "float32,bfloat16", "--batch", "2,1", "--passes", "1"]
    assert run_command(*options, "--json", str(file)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[:1] not in ("", " ")] == ["float32", "bfloat16"]
    assert sum("x" in line and "%" in line for line in lines) == 4
    report = json.loads(file.read_text())
    assert [(r["dtype"], r["batch"]) for r in report["results"]] == [
        ("float32", 1), ("float32", 2), ("bfloat16", 1), ("bfloat16", 2)
    ]  # fmt: skip
    assert report["results"][0]["equal_tokens"] == 1
    assert (report["threads"], report["peer"]) == (1, "transformers")
    assert report["versions"]["torch"] == torch.__version__


def test_json_alone_is_all_of_the_output(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("--model", str(toy), "--dtype", "float32", "--batch", "1", "--passes", "2", "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["results"][0]["decode_tokens_per_second"]["nvexplore"]["passes"]) == 2


@pytest.mark.parametrize(
    "argv", [["--dtype", "int8"], ["--batch", "0"], ["--batch", "x"], ["--peer", "llama.cpp"], ["--passes", "0"]]
)
def test_a_wrong_command_line_shows_the_usage(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(*argv)


def test_one_new_token_leaves_nothing_to_decode(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--model", str(toy), "--new-tokens", "1"]) == 1
    assert "--new-tokens" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_command() == 1
    assert 'bench needs torch, transformers: pip install "nvexplore[run]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--peer", "vllm"], "--peer vllm: this measures beside transformers only; add --scheduler or --serving"),
        (["--peer-path", "."], "--peer-path: this measures beside transformers only"),
        (["--json", "nowhere/figures.json"], "--json nowhere/figures.json: no file can be written there"),
    ],
)
def test_what_does_not_fit_together_is_said(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(*argv) == 1
    assert said in capsys.readouterr().err


def test_every_peer_that_the_command_offers_exists() -> None:
    assert tuple(contenders.PEERS) == command.PEER_NAMES


class TestRefusals:
    """What is wrong with a command is told in one line, before anything is measured; nothing of it stays open."""

    @pytest.fixture(params=[[], ["--serving"]], ids=["decode", "serving"])
    def mode(self, request: pytest.FixtureRequest) -> list[str]:
        found: list[str] = request.param
        return found

    def refused(self, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
        assert cli.main(["bench", "--threads", "1", "--passes", "1", *argv]) == 1
        told = capsys.readouterr()
        lines = [line for line in told.err.splitlines() if line.startswith("nvexplore: ")]
        assert len(lines) == 1 and told.err.splitlines()[-1] == lines[0] and "Traceback" not in told.err
        return lines[0]

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("./nosuch", "model='./nosuch': no such folder"),
            ("nosuch", "model='nosuch': no such folder"),
            ("random:nosuch", "nosuch"),
            ("nvexplore-tests/no-such-model", "the Hub did not give it"),
        ],
    )
    def test_a_model_that_is_not_there(
        self, mode: list[str], model: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert message in self.refused(capsys, *mode, "--model", model)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("config.json", None, "no config.json"),
            ("config.json", "{", "is not valid JSON"),
            ("config.json", '{"architectures": ["Mamba"]}', "architecture 'Mamba' is not supported"),
            ("model.safetensors", None, "safetensors"),
            ("model.safetensors", "x", "safetensors"),
            ("tokenizer.json", "{", ""),
        ],
    )
    def test_a_model_that_is_not_whole(
        self,
        mode: list[str],
        name: str,
        content: str | None,
        message: str,
        toy: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        folder = shutil.copytree(toy, tmp_path / "toy")
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_text(content)
        assert message in self.refused(capsys, *mode, "--model", str(folder))

    def test_a_demo_model_that_cannot_be_fetched(
        self, mode: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> Path:
            raise DemoModelError("the demo model\ncannot be fetched")

        monkeypatch.setattr("nvexplore.demo.demo_model_path", fail)
        assert self.refused(capsys, *mode) == "nvexplore: the demo model cannot be fetched"

    def test_longer_than_the_model(self, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        most = ModelConfig.from_path(toy).max_positions
        line = self.refused(capsys, "--model", str(toy), "--prompt-len", str(most), "--new-tokens", "2")
        assert f"--prompt-len {most} and --new-tokens 2 are {most + 2} tokens: at most {most}" in line
        self.refused(capsys, "--model", str(toy), "--prompt-len", "5000")
        self.refused(capsys, "--model", str(toy), "--new-tokens", str(10**30))

    @pytest.mark.parametrize("batch", [10**6, 10**30])
    def test_more_than_an_engine_takes(self, toy: Path, batch: int, capsys: pytest.CaptureFixture[str]) -> None:
        line = self.refused(capsys, "--model", str(toy), "--batch", str(batch), "--prompt-len", "20")
        assert f"max_num_batched_tokens={20 * batch}: input should be less than or equal to" in line

    def test_an_option_that_no_machine_has_room_for(self, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--workloads", "step", "--option", "num_kvcache_blocks=10000000000"]
        line = self.refused(capsys, "--serving", "--model", str(toy), *options)
        assert "num_kvcache_blocks=10000000000: needs" in line

    def test_the_first_is_closed_where_the_peer_does_not_load(
        self, toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        closed: list[str] = []

        def peer(*args: object) -> None:
            raise OSError("no such file")

        monkeypatch.setitem(contenders.PEERS, "transformers", peer)
        monkeypatch.setattr(contenders.Nvexplore, "close", lambda self: closed.append(self.name))
        assert self.refused(capsys, "--model", str(toy)) == "nvexplore: no such file"
        assert closed == ["nvexplore"]
