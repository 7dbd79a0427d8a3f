"""Options of the benchmark outside their mode: every option in every mode is read or refused, never ignored."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from nvexplore import cli
from nvexplore.bench import command
from nvexplore.bench.modes import DECODE, FLAGS, OPTIONS, settle_mode
from nvexplore.command_error import CommandError

# What reads what, written down apart from the table of the code. The values are the defaults where there is one.
READ_BY = {
    "--peer transformers": "decode serving scheduler",
    "--peer-path .": "serving scheduler",
    "--model demo": "decode serving",
    "--dtype float32": "decode serving",
    "--batch 1,8": "decode",
    "--prompt-len 64": "decode",
    "--new-tokens 48": "decode",
    "--passes 3": "decode serving scheduler",
    "--threads 1": "decode serving",
    "--workloads throughput": "serving",
    "--scale 1": "serving",
    "--rate 1": "serving",
    "--memory 0.5": "serving",
    "--option block_size=9": "serving",
    "--plots pictures": "serving",
    "--only-kernel silu": "kernels",
    "--rows 8,64,256,1024": "scheduler",
    "--block-size 16,256": "scheduler",
    "--blocks 100000,400000": "scheduler",
    "--json -": "decode serving scheduler kernels",
}


def parsed(*argv: str) -> argparse.Namespace:
    return cli.parser().parse_args(["bench", *argv])


def in_mode(mode: str) -> list[str]:
    return [] if mode == DECODE else [f"--{mode}"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which modes ran; nothing is measured."""
    ran: list[str] = []

    def runs(mode: str) -> object:
        return lambda args: ran.append(mode) or 0

    for name, mode in (("run_kernels", "kernels"), *((f"_bench_{mode}", mode) for mode in (DECODE, *FLAGS[1:]))):
        monkeypatch.setattr(command, name, runs(mode))
    return ran


@pytest.mark.parametrize("mode", [DECODE, *FLAGS])
@pytest.mark.parametrize("option", READ_BY)
def test_an_option_is_read_or_refused(
    option: str, mode: str, measured: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    status, err = cli.main(["bench", *in_mode(mode), *option.split()]), capsys.readouterr().err
    if mode in READ_BY[option].split():
        assert (status, err, measured) == (0, "", [mode])
        return
    assert status == 1 and measured == [] and err.count("\n") == 1 and list(tmp_path.iterdir()) == []
    assert err.startswith(f"nvexplore: {option.split()[0]}")
    if mode == DECODE:
        assert any(f"--{other}" in err.split("; add ")[1] for other in READ_BY[option].split())
    else:
        assert f"--{mode} measures with" in err and err.endswith("; leave one of the two out\n")


def test_no_option_is_forgotten() -> None:
    """Neither by the table of the modes nor here."""
    names = set(vars(parsed())) - {"run", "json", *FLAGS}
    assert names == set(OPTIONS) == {option.split()[0].lstrip("-").replace("-", "_") for option in READ_BY} - {"json"}


@pytest.mark.parametrize("both", [FLAGS[:2], FLAGS[1:], FLAGS[::2], FLAGS])
def test_one_thing_at_a_time(both: tuple[str, ...], measured: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *(f"--{mode}" for mode in both)]) == 1 and measured == []
    assert f"--{both[0]} and --{both[1]} are two things to measure: give one of them" in capsys.readouterr().err


def test_defaults_and_what_replaces_them() -> None:
    args = parsed()
    assert settle_mode(args) == DECODE
    assert (args.model, args.batch, args.prompt_len, args.new_tokens) == ("demo", (1, 8), 64, 48)
    args = parsed("--batch", "3,1", "--model", "x")
    assert settle_mode(args) == DECODE and (args.model, args.batch, args.prompt_len) == ("x", [3, 1], 64)
    args = parsed("--serving", "--option", "a=1", "--option", "b=c")
    assert settle_mode(args) == "serving" and args.option == [("a", 1), ("b", "c")]
    with pytest.raises(CommandError, match=r"^--option a=\.\.\.: --kernels measures with the defaults; leave one"):
        settle_mode(parsed("--kernels", "--option", "a=1"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--scale", "abc"], "argument --scale: 'abc': must be a number"),
        (["--rate", ""], "argument --rate: '': must be a number"),
        (["--memory", "nan"], "argument --memory: nan: must be above 0"),
        (["--threads", "x"], "argument --threads: 'x': must be a whole number"),
        (["--batch", "1,,2"], "argument --batch: '': must be a whole number"),
        (["--rows", "1.5"], "argument --rows: '1.5': must be a whole number"),
        (["--passes", "9" * 5000], "must be a whole number"),
    ],
)
def test_no_number(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*argv)
    err = " ".join(capsys.readouterr().err.split())
    assert said in err and "_count" not in err and "_positive" not in err
