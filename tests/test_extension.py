"""Loading, reloading and unloading: nothing doubled, nothing left, and the engine outlives a reload (J01)."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from nvexplore.notebook.extension import active_session, load_ipython_extension, unload_ipython_extension
from tests.conftest import RunPython
from tests.notebook_fakes import FakeLLM, Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "made", [])
    shell = Shell(str(tmp_path))
    shell.run("%lsmagic", "%config")  # IPython registers its own magics when they are first asked for
    yield shell
    shell.close()


def everything(shell: Shell) -> dict[str, Any]:
    """Whatever an extension could have touched, in a form that compares."""
    ip = shell.ip
    magics = ip.magics_manager
    shell.run("%config")
    return {
        "magics": {kind: sorted(table) for kind, table in magics.magics.items()},
        "registry": sorted(magics.registry),
        "configurables": [type(c).__name__ for c in ip.configurables],
        "config": shell.shown,
        "hooks": {event: list(callbacks) for event, callbacks in ip.events.callbacks.items()},
        "transformers": list(ip.input_transformers_cleanup) + list(ip.input_transformers_post),
        "completion": list(ip.Completer.custom_matchers),
        "settings": dict(ip.config.get("NvExplore", {})),
        "display": sorted(map(str, ip.display_formatter.formatters["text/html"].type_printers)),
        "names": sorted(n for n in ip.user_ns if not n.startswith("_")),
        "attributes": sorted(vars(ip)),
        "atexit": atexit._ncallbacks(),
        "loaded": sorted(ip.extension_manager.loaded),
    }


def test_unload_removes_exactly_what_load_added(shell: Shell) -> None:
    before = everything(shell)
    shell.run("%load_ext nvexplore")
    assert shell.shown == ""
    loaded = everything(shell)
    assert loaded["magics"] != before["magics"]
    assert "NvExplore" in loaded["config"]
    shell.run("%unload_ext nvexplore")
    assert shell.shown == ""
    assert everything(shell) == before
    with pytest.raises(UsageError, match="not found"):
        shell.run("%nvx_load")


def test_loading_and_reloading_double_nothing(shell: Shell) -> None:
    before = everything(shell)
    shell.run("%load_ext nvexplore")
    once = everything(shell)
    shell.run("%load_ext nvexplore")
    assert "already loaded" in shell.shown  # IPython's own words
    assert shell.shown.count("\n") <= 2
    for _ in range(2):
        shell.run("%reload_ext nvexplore")
        assert shell.shown == ""
    load_ipython_extension(shell.ip)  # by hand, a second time
    again = everything(shell)
    changed = {key for key in once if again[key] != once[key]}
    assert changed <= {"transformers", "completion"}  # other instances of the same
    assert all(len(again[key]) == len(once[key]) for key in ("transformers", "completion"))
    shell.run("%unload_ext nvexplore")
    unload_ipython_extension(shell.ip)  # by hand, a second time
    assert everything(shell) == before


def test_the_engine_outlives_a_reload(shell: Shell) -> None:
    shell.run("%load_ext nvexplore", "%nvx_load -o llm", "%nvx_add --max-tokens 3 hello", "%nvx_step")
    shell.run("%config NvExplore.max_tokens = 9")
    session = active_session(shell.ip)
    shell.run("%reload_ext nvexplore", "%reload_ext nvexplore")
    assert active_session(shell.ip) is session
    assert shell.run("%nvx_run").finished[0].prompt == "hello"
    assert len(shell.run("%nvx_frame steps")) == 3  # recorded once, and without a gap
    assert shell.run("%config NvExplore.max_tokens") == 9
    assert not shell["llm"].is_closed


@pytest.mark.parametrize("line", ["%nvx_load nowhere", "%nvx_load --option colour=red", "%nvx_load --seed -1"])
def test_what_cannot_be_loaded_closes_nothing(shell: Shell, line: str) -> None:
    shell.run("%load_ext nvexplore", "%nvx_load -o llm", "%nvx_add --max-tokens 3 hello", "%nvx_step")
    with pytest.raises(UsageError):
        shell.run(line)
    assert not shell["llm"].is_closed
    assert shell.run("%nvx_run").finished[0].prompt == "hello"


def test_what_was_recorded_outlives_a_reload(shell: Shell, tmp_path: Path) -> None:
    """Of a model that is closed, and of a file."""
    shell.run("%load_ext nvexplore", "%nvx_load", "%nvx_add --max-tokens 3 hello", "%nvx_run")
    shell.run(f"%nvx_save {tmp_path / 'run'}", "%nvx_close", "%reload_ext nvexplore")
    assert len(shell.run("%nvx_frame steps")) == 3
    shell.run("%unload_ext nvexplore", "%load_ext nvexplore", f"%nvx_open {tmp_path / 'run.nvx'}")
    shell.run("%reload_ext nvexplore")
    assert len(shell.run("%nvx_frame steps")) == 3
    shell.run("%unload_ext nvexplore", "%load_ext nvexplore")
    with pytest.raises(UsageError, match="no model is loaded"):
        shell.run("%nvx_frame steps")


def test_unloading_closes_the_engine_when_the_cell_is_over(shell: Shell) -> None:
    before = everything(shell)
    shell.run("%load_ext nvexplore", "%nvx_load -o llm")
    assert shell.run("%unload_ext nvexplore\nllm.is_closed") is False
    assert shell["llm"].is_closed
    assert active_session(shell.ip) is None
    shell.run("del llm, _")
    after = everything(shell)
    assert after == before
    shell.run("%load_ext nvexplore")
    with pytest.raises(UsageError, match="no model is loaded"):
        shell.run("%nvx_step")


def test_settings_are_configurable_and_gone_with_the_extension(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    shell.ip.config.NvExplore.temperature = 0.25  # as ipython_config.py does
    before = everything(shell)
    shell.run("%load_ext nvexplore", "%nvx_load -o llm")
    shell.run("%config NvExplore.max_tokens = 128", "%config NvExplore.live_hz = 5")
    session = active_session(shell.ip)
    assert session is not None
    assert (session.settings.max_tokens, session.settings.live_hz) == (128, 5.0)
    params = shell.run("%nvx_add --id x hello", "llm.engine.live['x'].sampling_params")
    assert (params.max_tokens, params.temperature) == (128, 0.25)
    shell.run("%config NvExplore")
    for name in ("model", "max_tokens", "temperature", "chat", "live_hz", "live_slice_ms"):
        assert f"NvExplore.{name}=<" in shell.shown
    assert "Current: 128" in shell.shown
    for bad in ("max_tokens = 0", "temperature = -1", "live_slice_ms = 0", "chat = 3"):
        shell.run(f"%config NvExplore.{bad}")  # IPython logs the error and goes on
    assert [bad in caplog.text for bad in ("value of 0 was", "value of -1.0 was", "int 3")] == [True] * 3
    assert (session.settings.max_tokens, session.settings.chat) == (128, False)
    with pytest.warns(UserWarning, match="Did you mean `max_tokens`"):
        shell.run("%config NvExplore.max_token = 3")
    shell.run("%reload_ext nvexplore")
    assert shell.run("%config NvExplore.max_tokens") == 128
    shell.run("%unload_ext nvexplore", "del llm, _")
    assert everything(shell) == before
    with pytest.raises(UsageError, match="Invalid config statement"):
        shell.run("%config NvExplore")
    shell.run("%load_ext nvexplore")
    again = active_session(shell.ip)
    assert again is not None and again is not session
    assert (again.settings.max_tokens, again.settings.temperature) == (64, 0.25)


def test_magics_of_others_stay(shell: Shell) -> None:
    shell.run("%load_ext nvexplore")
    shell.ip.register_magic_function(lambda line: "mine", magic_name="nvx_peek")
    shell.run("%unload_ext nvexplore")
    assert shell.run("%nvx_peek") == "mine"


def test_plain_ipython_without_widgets(run_python: RunPython, tmp_path: Path) -> None:
    shown = run_python(
        """
import sys
for name in ("ipywidgets", "anywidget", "ipykernel", "matplotlib.pyplot"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
shell.run_cell("%load_ext nvexplore").raise_error()
assert "torch" not in sys.modules and "pandas" not in sys.modules
import tests.notebook_fakes as fakes, nvexplore.llm
nvexplore.llm.LLM = fakes.FakeLLM
for cell in ("%nvx_load", "%nvx_add --max-tokens 2 hello", "%nvx_peek", "%nvx_run --until finish"):
    shell.run_cell(cell).raise_error()
result = shell.run_cell("%nvx_watch")
print("RAISED", result.error_in_exec)
""",
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "IPYTHONDIR": str(tmp_path)},
    )
    assert 'the views need ipywidgets and anywidget: pip install "nvexplore[notebook]"' in shown
    assert "all requests are finished" in shown


def test_what_ipython_config_sets(run_python: RunPython, tmp_path: Path) -> None:
    profile = tmp_path / "profile_default"
    profile.mkdir()
    lines = ["c = get_config()", "c.NvExplore.max_tokens = 7", "c.NvExplore.chat = True"]
    (profile / "ipython_config.py").write_text("\n".join(lines))
    shown = run_python(
        """
from IPython import start_ipython
code = "%load_ext nvexplore\\na = %config NvExplore.max_tokens\\nb = %config NvExplore.chat\\nprint(a, b)"
start_ipython(["--no-banner", "--HistoryManager.enabled=False", "-c", code])
""",
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "IPYTHONDIR": str(tmp_path)},
    )
    assert shown.split()[-2:] == ["7", "True"]


def test_loading_is_quick_and_changes_no_global_state(run_python: RunPython, tmp_path: Path) -> None:
    """J22, seen from the notebook side: backend, rcParams, logging, warnings and random numbers stay the user's."""
    shown = run_python(
        """
import logging, random, sys, warnings, matplotlib
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
def state():
    return (matplotlib.get_backend(auto_select=False), dict(matplotlib.rcParams), list(logging.root.handlers),
            logging.root.level, list(warnings.filters), random.getstate(), sys.excepthook)
before = state()
shell.run_cell("%load_ext nvexplore").raise_error()
import nvexplore.notebook.explorer, nvexplore.notebook.block_view, nvexplore.notebook.schedule_view
import nvexplore.explore.frames, nvexplore.explore.plots
assert state() == before
assert "torch" not in sys.modules and "matplotlib.pyplot" not in sys.modules
print("same")
""",
        env={"MPLBACKEND": "module://matplotlib_inline.backend_inline", "IPYTHONDIR": str(tmp_path)},
    )
    assert shown == "same\n"


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_torch_finds_threads_that_do_not_spin(run_python: RunPython, given: str | None) -> None:
    """On a busy machine spinning makes a step of the demo model several times as slow. What is set already stays."""
    out = run_python(
        "import os, sys\n"
        f"os.environ.pop('OMP_WAIT_POLICY', None); given = {given!r}\n"
        "if given: os.environ['OMP_WAIT_POLICY'] = given\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "assert 'OMP_WAIT_POLICY' not in os.environ or given\n"
        "shell.run_line_magic('load_ext', 'nvexplore')\n"
        "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)\n"
    )
    assert out == f"{given or 'PASSIVE'} False\n"
