"""Public bug reports about views, plots and magics in a notebook, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Loading and reloading
is in tests/test_extension.py, prompts of magics in test_magic_prompts.py, real kernels in test_notebooks.py; buttons
and event loops in test_running_cell_reports.py.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

from nvexplore.notebook import rerun
from nvexplore.notebook.block_view import BlockView
from nvexplore.notebook.controls_view import ControlsView
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.extension import load_ipython_extension
from nvexplore.notebook.schedule_view import ScheduleView
from tests.comms import RecordedComm, displayed, recorded_comms, small_engine
from tests.fakes import run_to_end, toy_engine
from tests.notebook_fakes import FakeLLM, Shell
from tests.watch import Watch, greedy


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    with recorded_comms() as made:
        yield made
        ipywidgets.Widget.close_all()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "made", [])
    shell = Shell(str(tmp_path))
    shell.run("%load_ext nvexplore")
    yield shell
    shell.run("%unload_ext nvexplore")
    shell.close()


# ---------------------------------------------------------------------------------------------------------- J01


def test_j01_two_loads_and_two_reloads_are_one(shell: Shell) -> None:
    """ipython#13145, mesa-llm#202: hooks fired three times a cell, and the state was lost or doubled."""

    def counts() -> list[int]:
        ip = shell.ip
        hooks = [len(callbacks) for callbacks in ip.events.callbacks.values()]
        magics = [len(table) for table in ip.magics_manager.magics.values()]
        return [*hooks, *magics, len(ip.configurables), len(ip.input_transformers_cleanup), atexit._ncallbacks()]

    shell.run("%nvx_load -o llm", "%nvx_add --max-tokens 3 hello")
    once = counts()
    shell.run("%load_ext nvexplore", "%reload_ext nvexplore", "%reload_ext nvexplore")
    load_ipython_extension(shell.ip)  # what a start-up file may do
    assert counts() == once
    assert len(shell.run("%nvx_run").finished) == 1
    assert len(shell.run("%nvx_frame steps")) == 3 and len(FakeLLM.made) == 1


# ---------------------------------------------------------------------------------------------------------- J05


def size(message: dict[str, Any]) -> int:
    return sum(len(part) if isinstance(part, bytes) else len(json.dumps(part)) for part in message.values())


@pytest.mark.parametrize(("steps", "seconds"), [(2000, 1.0), (2000, 0.1), (500, 5.0)])
def test_j05_thirty_messages_and_a_megabyte_a_second_at_most(steps: int, seconds: float) -> None:
    """ipython#7704, notebook#4583: a message a step floods the front end. By a clock that the test moves."""
    watch, engine = Watch(), toy_engine(200, 4, max_num_seqs=1)
    for i in range(steps // 50):
        engine.add_request([i], greedy(50))
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        while engine.has_unfinished:
            engine.step()
            watch.wait(seconds / steps)
        watch.feed.flush()
        watch.feed.keyframe()
        watch.wait(3)
    assert engine.next_step == steps
    assert watch.most_in_a_second() <= 30
    assert len(watch.messages) <= 30 * (seconds + 4)
    sizes = list(zip(watch.times, map(size, watch.messages), strict=True))
    assert max(sum(n for other, n in sizes if t <= other < t + 1) for t, _ in sizes) < 1_000_000
    last = watch.messages[-1]
    assert (last["full"], last["step"]) == (True, steps)  # the last state is always told


def test_j05_nothing_is_sent_while_nobody_looks() -> None:
    """notebook#1821, ipywidgets PR#3470, the sibling: without a view, and after it was closed, no message at all."""
    watch, engine = Watch(), toy_engine(200, 4)
    with engine.subscribe(watch.feed.push):
        engine.add_request([1], greedy(300))
        for _ in range(100):
            engine.step()
            watch.wait(0.001)
        assert watch.messages == []
        watch.feed.start()
        engine.step()
        watch.wait(1)
        sent = len(watch.messages)
        assert sent > 0
        watch.feed.stop()
        run_to_end(engine)
        watch.feed.flush()
        watch.wait(5)
    assert len(watch.messages) == sent


# ---------------------------------------------------------------------------------------------------------- J06


def saved_bytes() -> int:
    """What a notebook that is saved now keeps of all widgets."""
    return len(json.dumps(ipywidgets.Widget.get_manager_state()))


def test_j06_twenty_runs_of_a_cell_leave_the_widgets_of_one(
    comms: list[RecordedComm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ipywidgets#1952, #3007: the state of every view that a cell ever made was saved."""
    models, sizes, before = [], [], saved_bytes()
    for count in range(20):
        monkeypatch.setattr(rerun, "current_cell", lambda count=count: ("the cell", count))
        engine = small_engine()
        explorer = displayed(engine)
        views = [BlockView(explorer), ScheduleView(explorer)]
        for view in views:
            view._repr_mimebundle_()
        run_to_end(engine)
        explorer.keyframe()
        models.append(len(ipywidgets.widgets.widget._instances))
        sizes.append(saved_bytes())
    assert set(models) == {models[0]} and max(sizes) < 1.1 * sizes[0]
    assert max(sizes) - before < 1_000_000


@pytest.mark.parametrize("kind", [BlockView, ScheduleView, ControlsView])
def test_j06_ten_views_do_not_carry_ten_times_the_code(comms: list[RecordedComm], kind: type[BlockView]) -> None:
    """qubex PR#283: anywidget stores its module in every instance; here only the one Explorer has the code."""
    explorer = displayed(small_engine())
    before = saved_bytes()
    views = [kind(explorer) for _ in range(10)]
    assert saved_bytes() - before < 10 * 5_000
    assert max(len(view._esm) for view in views) < 2_000 < len(explorer._esm)


@pytest.mark.parametrize("steps", [1_000, 10_000])
def test_j06_a_long_history_is_saved_as_its_end(comms: list[RecordedComm], steps: int) -> None:
    """jupyterlab#9233, ipywidgets#1970: 10,000 steps, of which a view keeps the last ones: at most 200 kB are saved."""
    engine = toy_engine(100, 4, max_num_seqs=4)
    explorer = displayed(engine)
    for i in range(steps // 25):
        engine.add_request([i % 900, i // 900], greedy(100))
    run_to_end(engine)
    explorer.keyframe()
    assert engine.next_step > steps
    state = ipywidgets.Widget.get_manager_state()["state"][explorer.model_id]
    assert len(json.dumps(state)) - len(json.dumps(explorer._esm)) < 200_000
    frame = explorer._take_frame()
    assert frame["step"] == engine.next_step and len(frame["steps"]) // 4 // 12 <= 512


# ---------------------------------------------------------------------------------------------------------- J13


def test_j13_fifty_cells_with_plots_leave_no_figure_open(shell: Shell) -> None:
    """ipympl#4, livelossplot#4, matplotlib#20067: fifty cells that plot, then one that plots more than twenty."""
    import matplotlib.pyplot as plt

    shell.run("%nvx_load", "%nvx_add --max-tokens 4 hello", "%nvx_run")
    for cell in range(50):
        shown = "" if cell % 10 else "\nfigure"  # some are drawn too
        shell.run(f"figure = %nvx_plot {('memory', 'throughput', 'schedule')[cell % 3]}{shown}")
        assert shell["figure"].axes
    assert plt.get_fignums() == []
    shell.run("figures = []\nfor _ in range(25):\n    figure = %nvx_plot memory\n    figures.append(figure)")
    assert len(set(map(id, shell["figures"]))) == 25
    assert plt.get_fignums() == []


# ---------------------------------------------------------------------------------------------------------- J20


def test_j20_twenty_explorers_come_and_go(comms: list[RecordedComm]) -> None:
    """ipywidgets#3544, #1345, anywidget#929: closed views stayed in the registry, with layouts and observers."""
    before = len(ipywidgets.widgets.widget._instances)
    for _ in range(20):
        engine = small_engine()
        explorer = Explorer()
        with engine.subscribe(explorer.push):
            explorer.on_select(lambda kind, id: None)
            views = [BlockView(explorer), ScheduleView(explorer), ControlsView(explorer)]
            for view in views:
                view._repr_mimebundle_()
            engine.step()
            assert len(ipywidgets.widgets.widget._instances) > before
            explorer.close()
            engine.step()  # told to nobody, and no error
        assert len(ipywidgets.widgets.widget._instances) == before
