"""Files that ``nvexplore replay`` writes: never the recording itself, and over others only with --replace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nvexplore import cli
from nvexplore.explore.recording import load_recording, save_recording
from nvexplore.explore.trace import trace, write_trace
from tests.test_trace import recorded


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return save_recording(recorded(1), tmp_path / "run")


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("flag", ["--trace", "--redact"])
@pytest.mark.parametrize("target", ["run.nvx", "./x/../run.nvx", "link.json", "hard.json", "{tmp_path}/run.nvx"])
@pytest.mark.parametrize("source", ["run.nvx", "run", "{tmp_path}/run", "link.json"])
def test_the_recording_itself_is_never_written(
    source: str, target: str, flag: str, replace: bool, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved.read_bytes()
    (tmp_path / "x").mkdir()
    (tmp_path / "link.json").symlink_to(saved)
    os.link(saved, tmp_path / "hard.json")
    argv = ["replay", source.format(tmp_path=tmp_path), flag, target.format(tmp_path=tmp_path)]
    assert cli.main(argv + ["--replace"] * replace) == 1
    told = capsys.readouterr()
    assert "this is the recording itself; give another file" in told.err and told.out == ""
    assert saved.read_bytes() == before and len(list(tmp_path.iterdir())) == 4


def test_a_redacted_file_gets_its_suffix_before_that_is_looked_at(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved.read_bytes()
    assert cli.main(["replay", "run", "--redact", "run", "--replace"]) == 1
    assert "--redact run.nvx: this is the recording itself" in capsys.readouterr().err and saved.read_bytes() == before


@pytest.mark.parametrize(("flag", "name"), [("--plots", "memory.png"), ("--csv", "schedule.csv")])
def test_a_recording_with_the_name_of_a_picture_or_table(
    flag: str, name: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved.rename(tmp_path / name).read_bytes()
    assert cli.main(["replay", name, flag, ".", "--replace"]) == 1
    assert f"{flag} {name}: this is the recording itself" in capsys.readouterr().err
    assert (tmp_path / name).read_bytes() == before and list(tmp_path.iterdir()) == [tmp_path / name]


@pytest.mark.parametrize(("flag", "name"), [("--trace", "mine.json"), ("--redact", "mine.nvx")])
def test_another_file_is_replaced_where_that_is_said(
    flag: str, name: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / name
    mine.write_text("my own work")
    assert cli.main(["replay", "run", flag, name]) == 1
    assert f"{name} is there already; say replace=True (in a command --replace)" in capsys.readouterr().err
    assert mine.read_text() == "my own work"
    assert cli.main(["replay", "run", flag, name, "--replace"]) == 0
    assert mine.read_bytes()[:1] in (b"{", b"\x1f") and sorted(tmp_path.iterdir()) == sorted([mine, saved])


def test_two_targets_in_one_file(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, said in (
        (["--trace", "a.nvx", "--redact", "a", "--replace"], "--trace and --redact would both write a.nvx"),
        (["--csv", ".", "--trace", "x/../steps.csv"], "--csv and --trace would both write x/../steps.csv"),
    ):
        (tmp_path / "x").mkdir(exist_ok=True)
        assert cli.main(["replay", "run", *argv]) == 1
        assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.nvx", "x"]


def test_pictures_and_tables_are_written_again(saved: Path, tmp_path: Path) -> None:
    for folder, flag, name in ((tmp_path / "p", "--plots", "memory.png"), (tmp_path / "c", "--csv", "steps.csv")):
        for _ in range(2):
            assert cli.main(["replay", "run", flag, str(folder)]) == 0
            written = (folder / name).read_bytes()
            (folder / name).write_bytes(b"old")
        assert len(written) > 500 and not list(folder.glob(".*"))


def test_a_trace_appears_whole_or_not_at_all(saved: Path, tmp_path: Path) -> None:
    recorder, file = load_recording("run").recorder, tmp_path / "t.json"
    assert write_trace(recorder, "t.json") == Path("t.json")
    with pytest.raises(FileExistsError, match="is there already"):
        write_trace(recorder, file)
    assert json.loads(write_trace(recorder, file, replace=True).read_text()) == json.loads(json.dumps(trace(recorder)))
    with pytest.raises(FileNotFoundError) as error:
        write_trace(recorder, tmp_path / "no" / "t.json")
    assert error.value.filename == str(tmp_path / "no" / "t.json")
    with pytest.raises(IsADirectoryError):
        write_trace(recorder, tmp_path, replace=True)
