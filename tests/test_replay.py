"""Sessions and the command on recordings: all that looks works, and nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from IPython.core.error import UsageError

from nvexplore import cli
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import save_recording
from nvexplore.llm import LLM
from nvexplore.notebook.session import Session
from nvexplore.sampling_params import SamplingParams
from nvexplore.text.token_bytes import TokenBytes
from nvexplore.toy import make_toy
from tests.comms import recorded_comms
from tests.fakes import run_to_end, toy_engine
from tests.notebook_fakes import Shell

TEXT = "naïve 日本語 🎉🎉 </script>\N{RIGHT-TO-LEFT OVERRIDE}abc"


@pytest.fixture(autouse=True)
def comms() -> Iterator[None]:
    """Views need somewhere to send to, and are not left to other tests."""
    with recorded_comms():
        yield
        ipywidgets.Widget.close_all()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """A file of a real engine's run, what was shown of its requests, and of its memory."""
    folder = tmp_path_factory.mktemp("replay")
    session = Session()
    session.load(str(make_toy(folder / "toy", "llama")), num_kvcache_blocks=40, block_size=4, device="cpu")
    for prompt in (TEXT, "Once", TEXT):
        session.add(prompt, max_tokens=9, ignore_eos=True)
    session.run()
    session.save(folder / "run")
    told = repr(session.requests)
    assert session.llm is not None
    ledger = str(session.llm.memory).splitlines()
    session.close()
    return folder / "run.nvx", told, ledger


def test_a_session_on_a_recording(saved: tuple[Path, str, list[str]]) -> None:
    file, told, ledger = saved
    session = Session()
    summary = session.open(file)
    assert repr(summary).splitlines()[0].startswith(f"{file}: ") and "3 requests" in repr(summary)
    assert repr(session.requests) == told and not session.is_loaded and not session.has_work
    assert repr(session) == f"Session(a recording of {session.model})"
    assert len(session.frame("steps")) == len(session.recorder) and session.plot("memory").axes
    for what in ("all", "why", "memory", "prefix"):
        text = session.watch(what)._repr_mimebundle_()[0]["text/plain"]
        assert f"after step {session.recorder.last_step}: 0 running, 0 waiting" in text
    memory = session.explorer._answers._memory
    assert memory is not None and str(memory).splitlines() == ledger
    session.explorer.look_at(2)
    assert session.explorer._answers.answer("sequence", 0, 2)["prompt"] == TEXT
    for run in (session.step, session.peek, session.run, session.pause, lambda: session.add("x")):
        with pytest.raises(RuntimeError, match="no model is loaded"):
            run()
    explorer = session.explorer
    session.close()
    assert explorer.status == "closed" and repr(session) == "Session(no model is loaded)"


def test_magics(shell: Shell, tmp_path: Path) -> None:
    shell.run("%nvx_load first", "%nvx_add hello", "%nvx_run")
    summary = shell.run(f"%nvx_save {tmp_path}/a")
    assert repr(summary).startswith(f"{tmp_path}/a.nvx: ") and repr(summary).endswith(
        "\n  it holds the prompts and completions of its requests"
    )
    text = repr(shell.run("%nvx_text"))
    for line, message in (
        (f"%nvx_save {tmp_path}/a", r"is there already; say replace=True \(in a command --replace\) to write over it"),
        (f"%nvx_save {tmp_path}/no/a", f"No such file or directory: '{tmp_path}/no/a.nvx'"),
        (f"%nvx_save --replace {tmp_path}", f"Is a directory: '{tmp_path}'"),
        (f"%nvx_open {tmp_path}/b", "No such file or directory"),
        (f"%nvx_open {__file__}", "is not a recording of nvexplore"),
        (f"%nvx_open {tmp_path}", "Is a directory"),
        ("%nvx_open", "the following arguments are required: file"),
    ):
        with pytest.raises(UsageError, match=message):
            shell.run(line)
    shell.run(f"%nvx_save --replace {tmp_path}/a", "%nvx_step")  # the model is still there
    opened = shell.run(f"%nvx_open '{tmp_path}/a.nvx'")
    assert " of first, saved 20" in repr(opened) and repr(shell.run("%nvx_text")) == text
    shell.run("%nvx_load second", "%nvx_add hello", "%nvx_run", "%nvx_close")
    text = repr(shell.run("%nvx_text"))
    shell.run(f"%nvx_save {tmp_path}/late", f"%nvx_open {tmp_path}/late.nvx", f"%nvx_save {tmp_path}/copy")
    assert repr(shell.run("%nvx_text")) == text and "hello" in text
    assert (tmp_path / "copy.nvx").stat().st_size == pytest.approx((tmp_path / "late.nvx").stat().st_size, abs=40)
    shell.run(f"%nvx_open {tmp_path}/copy.nvx")
    assert repr(shell.run("%nvx_text")) == text


def test_a_recording_without_texts(tmp_path: Path) -> None:
    """One that a program has saved by itself shows ids."""
    engine, recorder = toy_engine(24, 4), Recorder()
    engine.subscribe(recorder)
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=3))
    run_to_end(engine)
    file, session = save_recording(recorder, tmp_path / "x"), Session()
    assert "token ids stand where texts would" in repr(session.open(file))
    assert session.explorer._answers.answer("sequence", 0, 1)["prompt"] == "5 6 7"


def test_the_command(saved: tuple[Path, str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, told, _ = saved
    assert cli.main(["replay", str(file), "--plots", str(tmp_path / "new"), "--csv", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert told in out and f"wrote {tmp_path / 'new' / 'memory.png'}" in out
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "memory.png",
        "schedule.png",
        "throughput.png",
    ]
    csv = (tmp_path / "steps.csv").read_text().splitlines()
    assert csv[0].startswith("step,time_s,") and len(csv) > 9
    assert cli.main(["replay", str(file), "--step", "1", "--csv", str(tmp_path)]) == 0
    assert "step 1 ran" in capsys.readouterr().out
    for argv, message in (
        ([str(file), "--step", "500"], "step 500 is not recorded: kept are steps 0 to"),
        ([str(tmp_path / "no")], "No such file"),
        ([__file__], "is not a recording of nvexplore"),
        ([str(file), "--plots", str(file)], "File exists"),
    ):
        assert cli.main(["replay", *argv]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_bytes_of_tokens_join_to_the_text(kind: str, tmp_path: Path) -> None:
    """Of the toys' byte tokenizer; qwen2's is byte-level BPE to transformers."""
    with LLM(make_toy(tmp_path, kind), device="cpu", num_kvcache_blocks=4) as llm:
        told = TokenBytes(llm.tokenizer, llm.decode)
        ids = llm.encode(TEXT)
        assert b"".join(map(told, ids)).decode() == llm.decode(ids)
        assert [told(token_id) for token_id in llm.tokenizer.all_special_ids] == [b""] * len(
            llm.tokenizer.all_special_ids
        )


class Sentencepiece:
    """A tokenizer that writes spaces as the word's first letter, leaves out the first, and has bytes by name."""

    names = ("▁a", "▁the", "<0xF0>", "<0x9F>", "<0x8E>", "<0x89>", "ing")

    def encode(self, text: str, **options: Any) -> list[int]:
        assert (text, options) == ("a", {"add_special_tokens": False})
        return [0]

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.names[token_id]

    def decode(self, ids: list[int]) -> str:
        parts = [
            bytes.fromhex(n[3:5]) if n[0] == "<" else n.replace("▁", " ").encode()
            for n in map(self.names.__getitem__, ids)
        ]
        return b"".join(parts).decode("utf-8", "replace").removeprefix(" ")


def test_spaces_and_bytes_of_another_kind_of_tokenizer() -> None:
    tokenizer = Sentencepiece()
    told = TokenBytes(tokenizer, tokenizer.decode)
    assert b"".join(map(told, [1, 6, 1, 2, 3, 4, 5])).decode() == " theing the🎉"
