"""A load that is refused leaves what was loaded or opened before; one that fails later says that it was closed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError

from nvexplore import LLM
from nvexplore.notebook.recorded import RecordedDisplay
from nvexplore.notebook.session import Session
from nvexplore.toy import make_toy
from tests.conftest import RunPython
from tests.notebook_fakes import FakeLLM, Shell

SMALL: dict[str, Any] = {"num_kvcache_blocks": 16, "max_model_len": 64}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_toy(tmp_path_factory.mktemp("toy") / "qwen3", "qwen3")


@pytest.fixture(params=["a model", "a recording"])
def session(toy: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A real session that looks at something."""
    session = Session()
    session.load(str(toy), **SMALL)
    session.add("abc", max_tokens=2, request_id="kept")
    session.step()
    if request.param == "a recording":
        session.save(tmp_path / "run.nvx")
        session.open(tmp_path / "run.nvx")
    yield session
    session.close()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such GPU": ({"device": "cuda:99"}, "device='cuda:99'"),
    "no such device": ({"device": "tpu"}, "device='tpu'"),
    "attention of a GPU": ({"device": "cpu", "attention_backend": "triton"}, "attention_backend='triton'"),
    "attention of prefill": ({"device": "cpu", "prefill_backend": "triton"}, "prefill_backend='triton'"),
    "attention of decoding": ({"device": "cpu", "decode_backend": "flash_attn"}, "decode_backend='flash_attn'"),
    "compiled for a CPU": ({"device": "cpu", "compile_layers": True}, "compile_layers=True"),
    "too long": ({"max_model_len": 100_000_000}, "max_model_len=100000000"),
    "heads that do not divide": ({"device": "cpu", "tensor_parallel_size": 3}, "tensor_parallel_size=3"),
    "out of range": ({"seed": -1}, "seed=-1"),
    "unknown": ({"colour": "red"}, "unknown option 'colour'"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_changes_nothing(session: Session, toy: Path, why: str) -> None:
    options, message = REFUSED[why]
    is_loaded, was, display = session.is_loaded, repr(session), session.display
    with pytest.raises((ValueError, TypeError)) as refused:
        session.load(str(toy), **options)
    assert message in str(refused.value) and not hasattr(refused.value, "__notes__")
    assert (session.is_loaded, repr(session), session.display) == (is_loaded, was, display)
    assert [request.request_id for request in session.requests] == ["kept"]
    with pytest.raises(type(refused.value)) as made:  # check says exactly what making it says
        LLM(toy, **options)
    assert str(made.value) == str(refused.value)


@pytest.mark.parametrize("model", [3, b"demo", ["demo"], 1.5, True], ids=repr)
def test_a_model_of_another_type_is_named(session: Session, model: Any) -> None:
    was = repr(session)
    for load in (LLM, LLM.check, session.load):
        with pytest.raises(TypeError) as error:
            load(model)
        assert str(error.value) == f"model={model!r}: must be a text or a path, not {type(model).__name__}"
    assert repr(session) == was


def test_no_model_at_all_is_named() -> None:
    with pytest.raises(TypeError, match=r"^model=None: must be a text or a path, not NoneType$"):
        LLM(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["", " ", "~nobody-of-that-name/model", "a/b/c"])
def test_a_name_that_is_none_is_quoted(loaded: Shell, model: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        LLM.check(model)
    assert str(error.value).startswith(f"model={model!r}: ")


def test_an_unreadable_model_changes_nothing(session: Session, tmp_path: Path) -> None:
    was = repr(session)
    (tmp_path / "config.json").write_text('{"architectures": ["Unheard"]}', encoding="utf-8")
    with pytest.raises(ValueError, match="Unheard"):
        session.load(str(tmp_path))
    assert repr(session) == was


def test_what_fails_later_says_what_was_closed(session: Session, toy: Path, tmp_path: Path) -> None:
    """No weights: that shows only when they are read."""
    broken = make_toy(tmp_path / "broken", "qwen3")
    for file in broken.glob("*.safetensors"):
        file.unlink()
    before = "recording opened" if isinstance(session.display, RecordedDisplay) else "model loaded"
    with pytest.raises((ValueError, OSError)) as error:
        session.load(str(broken), **SMALL)
    assert error.value.__notes__ == [f"the {before} before ({toy}) was closed"]
    with pytest.raises((ValueError, OSError)) as again:  # nothing was there now
        session.load(str(broken), **SMALL)
    assert not hasattr(again.value, "__notes__")


@pytest.mark.parametrize("error", [ValueError("no room"), OSError("gone"), KeyboardInterrupt()], ids=repr)
def test_the_magic_says_so_in_its_line(loaded: Shell, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(self: FakeLLM, *args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(FakeLLM, "__init__", fail)
    with pytest.raises((UsageError, KeyboardInterrupt)) as told:
        loaded.run("%nvx_load other")
    assert "the model loaded before (demo) was closed" in loaded.shown
    if isinstance(told.value, UsageError):
        assert str(told.value) == f"{error}; the model loaded before (demo) was closed"


def test_a_closed_llm_is_not_attached(loaded: Shell) -> None:
    closed: Any = FakeLLM()
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        loaded["session"].attach(closed)
    assert loaded["session"].llm is loaded["llm"] and not loaded["llm"].is_closed


@pytest.mark.parametrize("missing", ["torch", "transformers", "safetensors"])
def test_a_missing_package_is_found_by_the_check(run_python: RunPython, toy: Path, missing: str) -> None:
    out = run_python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import nvexplore\n"
        f"try: nvexplore.LLM.check({str(toy)!r})\n"
        "except ImportError as error: print(error)\n"
    )
    assert out == f'LLM needs {missing}: pip install "nvexplore[run]"\n'


def test_the_check_loads_nothing(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise AssertionError("loaded")

    for name in ("model_runner.load_weights", "model_runner.KVCache", "tensor_parallel.RankProcesses"):
        monkeypatch.setattr(f"nvexplore.runner.{name}", fail)
    checks: list[Callable[[], object]] = [
        lambda: LLM.check(toy, **SMALL),
        lambda: LLM.check(toy, device="cpu", tensor_parallel_size=2, **SMALL),
    ]
    for check in checks:
        check()
    with pytest.raises(AssertionError, match="loaded"):
        LLM(toy, **SMALL)


def test_a_format_that_may_overflow_is_warned_of_once(tmp_path: Path) -> None:
    path = make_toy(tmp_path / "toy", "qwen3", dtype="bfloat16")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        LLM.check(path, dtype="float16")
        assert not seen
        LLM(path, dtype="float16", **SMALL).close()
    assert [str(each.message)[:15] for each in seen] == ["dtype='float16'"]
