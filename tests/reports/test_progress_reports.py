"""Public bug reports about progress bars, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. The bar of a long load
is in tests/test_progress.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import tqdm.auto
import tqdm.notebook
import tqdm.std

from tests.comms import RecordedComm, recorded_comms
from tests.conftest import RunPython
from tests.reports.common import GREEDY, toy_llm


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


class NoWidgets:
    """tqdm's notebook bar where ipywidgets is missing or does not fit."""

    def __init__(self, **options: Any) -> None:
        raise ImportError("IProgress not found. Please update jupyter and ipywidgets.")


def test_j19_a_bar_that_cannot_be_made_becomes_text(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tqdm#1364, py-pde#3: "IProgress not found" ended the run. Here the bar is text, and the run goes on."""
    with toy_llm(toy) as llm:
        monkeypatch.setattr(tqdm.auto, "tqdm", NoWidgets)
        (output,) = llm.generate(["abc"], GREEDY)
        assert len(output.token_ids) == 6 and "6/6" in capsys.readouterr().err
        llm.generate(["abc"], GREEDY, use_tqdm=False)
    assert capsys.readouterr() == ("", "")


def test_j19_a_kernel_without_ipywidgets_gets_text_and_no_warning(run_python: RunPython) -> None:
    """tqdm#1359: a real tqdm in what it takes for a kernel, ipywidgets not installed: one bar, and no warning."""
    code = """
import sys, types, warnings
warnings.simplefilter("always")  # as an error tqdm would catch it
sys.modules["ipywidgets"] = None
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")  # that is how tqdm knows a kernel
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
from nvexplore.progress import progress_bar
sys.stderr = sys.stdout
bar = progress_bar(10, True)
bar.update(10)
bar.close()
off = progress_bar(10, False)
off.update(10)
off.close()
"""
    shown = run_python(code)
    assert "10/10" in shown and shown.count("100%") == 1 and "IProgress" not in shown


@pytest.mark.parametrize("is_widget", [False, True])
def test_j19_an_error_in_the_middle_closes_the_bar(
    toy: Path, comms: list[RecordedComm], is_widget: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """llama-cookbook#257: the bar stayed open after an error. With ipywidgets 8 it is a widget, and turns red."""
    with toy_llm(toy) as llm:
        if is_widget:
            monkeypatch.setattr(tqdm.auto, "tqdm", tqdm.notebook.tqdm)
            monkeypatch.setattr(tqdm.notebook, "display", lambda *things: None)
        assert llm.runner is not None
        llm.generate(["abc"], GREEDY)
        run, steps = llm.runner.run, iter([True, True, False])

        def failing(batch: Any) -> Any:
            if next(steps):
                return run(batch)
            raise RuntimeError("in the middle")

        monkeypatch.setattr(llm.runner, "run", failing)
        with pytest.raises(RuntimeError, match="in the middle"):
            llm.generate(["abc"], GREEDY)
    assert list(getattr(tqdm.std.tqdm, "_instances", [])) == []  # tqdm's open bars
    bars = [w for w in ipywidgets.widgets.widget._instances.values() if isinstance(w, ipywidgets.FloatProgress)]
    expected = [("success", 6.0), ("danger", 2.0)] if is_widget else []
    assert [(bar.bar_style, bar.value) for bar in bars] == expected
    assert is_widget or "2/6" in capsys.readouterr().err
