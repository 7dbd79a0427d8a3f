"""Recordings as files: every state comes back, texts too, without what made them, by the name that was given."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.explore import frames
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import load_recording, save_recording
from nvexplore.explore.token_texts import TokenTexts
from nvexplore.sampling_params import SamplingParams
from tests.drive import run_workload
from tests.fakes import toy_engine
from tests.workloads import make_workload


def recorded(seed: int = 0, steps: int = 40) -> tuple[Engine, Recorder]:
    engine, recorder, rng = (
        toy_engine(24, 4, max_num_batched_tokens=16, max_num_seqs=4),
        Recorder(),
        random.Random(seed),
    )
    engine.subscribe(recorder)
    for _ in range(8):
        engine.add_request([rng.randrange(3) for _ in range(rng.randint(1, 20))], SamplingParams(max_tokens=20))
    for _ in range(steps):
        engine.step()
    return engine, recorder


@pytest.mark.parametrize("seed", range(60))
def test_every_state_comes_back(seed: int, tmp_path: Path) -> None:
    """Of random runs with everything an engine does, interrupts and overlap among it."""
    work, recorder = make_workload(seed, overlap=seed % 3 == 0), Recorder(snapshot_every=1 + seed % 7)
    work.engine.subscribe(recorder)
    run_workload(work)
    found = load_recording(save_recording(recorder, tmp_path / "run")).recorder
    assert found.records == recorder.records and found.requests == recorder.requests
    for step in range(recorder.first_step or 0, (recorder.last_step or 0) + 1):
        assert found.state_at(step).snapshot() == recorder.state_at(step).snapshot()


def test_frames_gaps_and_what_goes_with_it(tmp_path: Path) -> None:
    engine, recorder = recorded()
    with recorder.lock:
        assert not recorder.gaps
    other = Recorder()
    subscription = engine.subscribe(other)
    engine.step()
    subscription.close()
    engine.step()
    engine.subscribe(other)
    engine.step()
    assert len(other.gaps) == 1
    file = save_recording(other, tmp_path / "gap.rec", model="a model", memory={"weights": 7})
    found = load_recording(file)
    assert file.name == "gap.rec" and found.recorder.gaps == other.gaps and found.recorder.segments == other.segments
    assert (found.model, found.memory, found.decode) == ("a model", {"weights": 7}, None)
    again = load_recording(save_recording(recorder, tmp_path / "whole")).recorder
    for frame in (frames.steps, frames.sequences, frames.blocks, frames.schedule, frames.prefix_hits):
        assert frame(again).equals(frame(recorder))


def test_a_file_of_before_there_were_beginnings_in_it(tmp_path: Path) -> None:
    """It still loads: when its first requests were admitted is unknown, not when they were admitted again."""
    engine, recorder = toy_engine(6, 4, max_model_len=24), Recorder(12, snapshot_every=4)
    engine.subscribe(recorder)
    for at in (0, 10, 20):
        engine.add_request(list(range(at, at + 6)), SamplingParams(max_tokens=12))
    while engine.has_unfinished:
        engine.step()
    file = save_recording(recorder, tmp_path / "run")
    rewritten(file, lambda header: header.pop("begun"))
    old = load_recording(file).recorder
    assert len(old.requests) == len(recorder.requests) == 2 and old.records == recorder.records and old.begun == []
    columns = ["admitted_step", "admitted_s", "first_token_step", "first_token_s", "queue_time_s", "ttft_s"]
    left, right = frames.sequences(recorder), frames.sequences(old)
    assert left[columns].notna().all(axis=None) and right[columns].isna().all(axis=None)
    assert left.drop(columns=columns).equals(right.drop(columns=columns))


def test_texts_of_tokens(tmp_path: Path) -> None:
    """Only of those that occur, and each once."""
    _, recorder = recorded()
    asked: list[int] = []

    def token_bytes(token_id: int) -> bytes:
        asked.append(token_id)
        return "é".encode()[:1] if token_id == 0 else f"<{token_id}>".encode()

    decode = load_recording(save_recording(recorder, tmp_path / "x", token_bytes=token_bytes)).decode
    assert decode is not None and asked == sorted(set(asked)) and {0, 1, 2} < set(asked)
    assert decode([1, 2, 1]) == "<1><2><1>" and decode([0]) == "\N{REPLACEMENT CHARACTER}"
    assert decode([max(asked) + 1]) == "\N{REPLACEMENT CHARACTER}"


def test_a_character_of_several_tokens() -> None:
    tokens = {i: byte.to_bytes() for i, byte in enumerate("🎉".encode())}
    assert TokenTexts(tokens)([0, 1, 2, 3, 0]) == "🎉\N{REPLACEMENT CHARACTER}"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    _, recorder = recorded()
    file = save_recording(recorder, tmp_path / "run", model="first")
    assert file == tmp_path / "run.nvx" and file.stat().st_mode & 0o777 == 0o666 & ~umask()
    with pytest.raises(FileExistsError, match=r"run\.nvx is there already; say replace"):
        save_recording(recorder, file, model="second")
    before = file.read_bytes()

    def fail(token_id: int) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_recording(recorder, file, token_bytes=fail, replace=True)
    with pytest.raises(TypeError):
        save_recording(recorder, file, memory={"weights": object()}, replace=True)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
    save_recording(recorder, file, model="second", replace=True)
    assert load_recording(file).model == "second"
    with pytest.raises(FileNotFoundError):
        save_recording(recorder, tmp_path / "nowhere" / "run")
    with pytest.raises(ValueError, match="nothing is recorded yet"):
        save_recording(Recorder(), tmp_path / "empty")
    assert list(tmp_path.iterdir()) == [file]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def rewritten(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a recording."""
    whole = gzip.decompress(file.read_bytes())
    size = int.from_bytes(whole[:4], "little")
    header = msgspec.msgpack.decode(whole[4 : 4 + size])
    change(header)
    message = msgspec.msgpack.encode(header)
    file.write_bytes(gzip.compress(len(message).to_bytes(4, "little") + message + whole[4 + size :]))


def test_a_name_without_suffix(tmp_path: Path) -> None:
    """The file is found by the name that it was saved under; where both are there, the one that is named."""
    recorder = recorded()[1]
    save_recording(recorder, tmp_path / "run", model="with")
    (tmp_path / "dir").mkdir()
    save_recording(recorder, tmp_path / "dir.nvx", model="beside a folder")
    assert [load_recording(tmp_path / name).model for name in ("run", "dir")] == ["with", "beside a folder"]
    (tmp_path / "run.nvx").rename(tmp_path / "old")
    save_recording(recorder, tmp_path / "old.nvx", model="another")
    assert load_recording(tmp_path / "old").model == "with"
    for name in ("no", "no.nvx", "old.rec"):
        with pytest.raises(FileNotFoundError) as error:
            load_recording(tmp_path / name)
        assert error.value.filename == str(tmp_path / name)


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_is_no_file_to_save_to(replace: bool, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for path in (folder, tmp_path / "runs" / ".." / "runs"):
        with pytest.raises(IsADirectoryError) as error:
            save_recording(recorded()[1], path, replace=replace)
        assert error.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [folder] and list(folder.iterdir()) == []


def test_a_failed_save_names_the_path_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, kind in ((tmp_path / "no" / "run.nvx", FileNotFoundError), (tmp_path / "file" / "x", NotADirectoryError)):
        with pytest.raises(kind) as error:
            save_recording(recorded()[1], path)
        assert error.value.filename == str(path.with_suffix(".nvx")) and error.value.strerror
        assert str(error.value).endswith(f": '{path.with_suffix('.nvx')}'")


def test_it_opens_with_the_core_alone(tmp_path: Path) -> None:
    """No torch, no Jupyter: a report can be looked at where there is neither."""
    file = save_recording(recorded()[1], tmp_path / "run")
    code = (
        "import sys; from nvexplore.cli import main; code = main(['replay', sys.argv[1], '--step', '3']); "
        "heavy = {'torch', 'IPython', 'ipywidgets', 'anywidget', 'transformers', 'triton'} & sys.modules.keys(); "
        "print(code, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0 []\n") and "step 3 ran" in done.stdout
