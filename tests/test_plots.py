"""Plots: what is drawn against hand-made numbers, odd sizes, and that nothing global is touched."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from nvexplore.explore import frames
from nvexplore.explore.plots import NotebookFigure, plot_memory, plot_schedule, plot_throughput
from nvexplore.explore.plots._figure import COLOURS
from nvexplore.explore.plots.schedule import CELLS, merged
from nvexplore.explore.plots.throughput import binned_rate, intervals, num_bins
from nvexplore.explore.recorder import Recorder
from nvexplore.sampling_params import SamplingParams
from tests import hand_made
from tests.conftest import RunPython
from tests.fakes import toy_engine
from tests.toy_device import ToyDevice

ROOT = Path(__file__).parents[1]
PLOTS: list[tuple[Callable[..., Axes], str]] = [
    (plot_memory, "steps"),
    (plot_throughput, "steps"),
    (plot_schedule, "schedule"),
]


@pytest.fixture(scope="module")
def by_hand() -> dict[str, pd.DataFrame]:
    items = hand_made.items()
    return {"steps": frames.steps(items), "schedule": frames.schedule(items)}


@pytest.fixture(scope="module")
def long_run() -> dict[str, pd.DataFrame]:
    """5,000 steps with preemptions and evictions."""
    rng, recorder = random.Random(0), Recorder()
    engine = toy_engine(16, 4, max_num_batched_tokens=16, max_num_seqs=6)
    engine.subscribe(recorder)
    while engine.next_step < 5000:
        while len(engine.live) < 8:
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
            engine.add_request(prompt, SamplingParams(max_tokens=rng.randint(1, 30)))
        engine.step()
    return {"steps": frames.steps(recorder), "schedule": frames.schedule(recorder)}


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


# ---------------------------------------------------------------- what is drawn


def test_memory_areas_add_up_to_the_pool(by_hand: dict[str, pd.DataFrame]) -> None:
    frame = by_hand["steps"].query("step in (4, 7)")
    # One step each, so that an area is one rectangle: 5 blocks in step 4, and in step 7.
    for step, heights in ((4, [0, 3, 1, 1]), (7, [1, 2, 1, 1])):
        ax = plot_memory(frame[frame["step"] == step])
        bottom = 0
        for area, height in zip(ax.collections, heights, strict=True):
            (path,) = area.get_paths() or [None]
            x, y = path.vertices[:, 0], path.vertices[:, 1]
            assert (x.min(), x.max()) == (step - 0.5, step + 0.5)
            assert (y.min(), y.max()) == (bottom, bottom + height)
            bottom += height
        assert bottom == hand_made.NUM_BLOCKS


def test_memory_areas_add_up_where_steps_overlap() -> None:
    """Four long requests end while the plan that follows has been made: no area gets a negative height."""
    engine, recorder = toy_engine(64, 4, make_runner=ToyDevice, overlap=True, max_num_batched_tokens=256), Recorder()
    engine.subscribe(recorder)
    for i in range(4):
        engine.add_request(range(100 * i, 100 * i + 40), SamplingParams(max_tokens=4))
    engine.add_request(range(900, 908), SamplingParams(max_tokens=12))
    while engine.has_unfinished:
        engine.advance()
    frame = frames.steps(recorder)
    assert sum(record.planned.is_ahead for record in recorder) == 11 and frame["num_finished"].max() == 4
    for step in frame["step"]:
        bottom = 0.0
        for area in plot_memory(frame[frame["step"] == step]).collections:
            for path in area.get_paths():
                y = path.vertices[:, 1]
                assert y.min() == bottom < y.max() or y.min() == y.max() == bottom
                bottom = y.max()
        assert bottom == 64, step


def test_memory_follows_each_step_and_leaves_gaps_white(by_hand: dict[str, pd.DataFrame]) -> None:
    frame = by_hand["steps"].query("step not in (3, 4)")
    free = plot_memory(frame).collections[3]
    spans = sorted((p.vertices[:, 0].min(), p.vertices[:, 0].max()) for p in free.get_paths())
    assert spans == [(-0.5, 2.5), (4.5, 8.5)]
    used = plot_memory(frame).collections[1]
    corners = np.concatenate([path.vertices for path in used.get_paths()])
    for step, top in ((0, 4), (2, 4), (5, 3), (8, 5)):
        at = corners[np.isclose(corners[:, 0], step - 0.5) | np.isclose(corners[:, 0], step + 0.5), 1]
        assert top in at


def test_memory_marks_evictions_and_preemptions(by_hand: dict[str, pd.DataFrame]) -> None:
    ax = plot_memory(by_hand["steps"])
    marks = {line.get_label(): list(line.get_xdata()) for line in ax.lines}
    assert marks == {"evictions (1)": [8], "preemptions (1)": [4]}
    assert all(min(line.get_ydata()) > hand_made.NUM_BLOCKS for line in ax.lines)
    assert labels(ax)[-2:] == list(marks)
    assert hand_made.NUM_BLOCKS in ax.get_yticks()


def test_throughput_keeps_the_number_of_tokens(by_hand: dict[str, pd.DataFrame]) -> None:
    frame = by_hand["steps"]
    begin, end = intervals(frame, "wall")
    # 10 ms of plan and of commit, and 10 ms a token
    assert end.tolist() == [float(i) for i in range(1, 10)]
    assert (end - begin).tolist() == pytest.approx([0.10, 0.06, 0.04, 0.04, 0.03, 0.10, 0.03, 0.05, 0.10])
    edges = np.array([0.0, 0.95, 1.0, 2.0, 9.0])
    rate = binned_rate(begin, end, frame["num_prefill_tokens"].to_numpy(), edges)
    # Half of step 0's 8 tokens run in [0.90, 0.95], half in [0.95, 1.0].
    assert rate.tolist() == pytest.approx([4 / 0.95, 4 / 0.05, 4.0, 20 / 7])
    for clock in ("wall", "busy"):
        ax = plot_throughput(frame, clock=clock)
        for patch, tokens in zip(ax.patches[1::2], (32, 5), strict=True):
            values, edges, _ = patch.get_data()
            assert (values * np.diff(edges)).sum() == pytest.approx(tokens)
            assert len(values) == num_bins(9) == 2
    assert labels(plot_throughput(frame)) == [
        "prefill: 32 tokens, 4.0/s on average",
        "decode: 5 tokens, 0.6/s on average",
    ]


def test_throughput_without_pauses(by_hand: dict[str, pd.DataFrame]) -> None:
    begin, end = intervals(by_hand["steps"], "busy")
    assert begin.tolist() == pytest.approx([0.0, 0.10, 0.16, 0.20, 0.24, 0.27, 0.37, 0.40, 0.45])
    assert end[-1] == pytest.approx(0.55)
    with pytest.raises(ValueError, match="clock='cpu': must be 'wall' or 'busy'"):
        plot_throughput(by_hand["steps"], clock="cpu")


def test_throughput_without_step_times_uses_the_time_between_steps(by_hand: dict[str, pd.DataFrame]) -> None:
    frame = by_hand["steps"].assign(plan_us=0.0, run_us=0.0, commit_us=0.0, work_us=0.0)
    begin, end = intervals(frame, "wall")
    assert (end - begin).tolist() == pytest.approx([1e-9, *[1.0] * 8])


def cells(ax: Axes) -> dict[str, set[tuple[float, ...]]]:
    """Phase -> (row, left, right) of its cells."""
    names = {to_hex(colour): phase for phase, (colour, _, _) in CELLS.items()}
    found: dict[str, set[tuple[float, ...]]] = {}
    for collection in ax.collections:
        assert isinstance(collection, PolyCollection)
        corners = [path.vertices for path in collection.get_paths()]
        found[names[to_hex(collection.get_facecolor()[0])]] = {
            (round(float(c[:4, 1].mean()), 6), float(c[:, 0].min()), float(c[:, 0].max())) for c in corners
        }
    return found


def test_schedule_draws_a_row_a_sequence_and_a_column_a_step(by_hand: dict[str, pd.DataFrame]) -> None:
    ax = plot_schedule(by_hand["schedule"])
    drawn = cells(ax)
    assert drawn["waiting"] == {(2, 0.5, 2.5), (1, 3.5, 4.5)}
    assert drawn["idle"] == {(0, 0.5, 1.5), (3, 7.5, 8.5), (4, 7.5, 8.5)}
    assert drawn["recompute"] == {(1, 4.5, 5.5)}
    assert drawn["decode"] == {(row, s - 0.5, s + 0.5) for row, s in [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3)]}
    assert [(t.get_position(), t.get_text()) for t in ax.texts] == [
        ((0, 0), "6"),
        ((0, 1), "2"),
        ((1, 1), "4"),
        ((6, 1), "1"),
        ((7, 3), "1"),
        ((7, 4), "2"),
        ((8, 5), "8"),
        ((5, 1), "8"),
    ]
    marks = {line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in ax.lines}
    assert marks == {"preempted": [(3.5, 1)], "finished": [(4.5, 0), (6.5, 1)], "aborted": [(2.5, 2)]}
    assert labels(ax) == [*CELLS, *marks]
    assert ax.get_xlim() == (-0.5, 9.5)
    assert ax.get_ylim() == (5.5, -0.5)


def test_schedule_labels_rows_by_seq_id(by_hand: dict[str, pd.DataFrame]) -> None:
    frame = by_hand["schedule"].query("step >= 7")
    ax = plot_schedule(frame)
    ax.set_yticks([0, 1, 2])
    ax.figure.draw_without_rendering()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["3", "4", "5"]


def test_cells_that_touch_become_one() -> None:
    row, start, end = merged(np.array([1, 0, 0, 0, 1]), np.array([3, 0, 1, 5, 0]), np.array([4, 1, 3, 6, 3]))
    assert list(zip(row.tolist(), start.tolist(), end.tolist(), strict=True)) == [(0, 0, 3), (0, 5, 6), (1, 0, 4)]


# ---------------------------------------------------------------- every plot


@pytest.mark.parametrize(("plot", "name"), PLOTS)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 9])
def test_any_number_of_steps_is_drawn(
    plot: Callable[..., Axes], name: str, num_steps: int, by_hand: dict[str, pd.DataFrame]
) -> None:
    frame = by_hand[name]
    ax = plot(frame[frame["step"] < num_steps])
    assert ax.figure._repr_png_()[:4] == b"\x89PNG"
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    if not num_steps:
        assert [text.get_text() for text in ax.texts] == ["no steps recorded"]


@pytest.mark.parametrize(("plot", "name"), PLOTS)
def test_the_legend_covers_no_data(
    plot: Callable[..., Axes], name: str, long_run: dict[str, pd.DataFrame], by_hand: dict[str, pd.DataFrame]
) -> None:
    for frame in (long_run[name], by_hand[name]):
        ax = plot(frame)
        ax.figure.draw_without_rendering()
        legend = ax.get_legend()
        assert legend is not None
        box, page = legend.get_window_extent(), ax.figure.bbox
        assert box.y0 >= ax.get_window_extent().y1
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and box.y1 <= page.y1, "the legend leaves the page"


def test_five_thousand_steps_are_few_shapes(long_run: dict[str, pd.DataFrame]) -> None:
    assert len(long_run["steps"]) == 5000
    assert long_run["steps"]["num_preempted"].sum() > 100
    assert long_run["steps"]["num_evicted"].sum() > 100
    assert all(len(patch.get_data().values) == 80 for patch in plot_throughput(long_run["steps"]).patches)
    num_cells = sum(len(c.get_paths()) for c in plot_schedule(long_run["schedule"]).collections)
    assert num_cells < len(long_run["schedule"])


@pytest.mark.parametrize(("plot", "name"), PLOTS)
def test_an_ax_that_is_given_is_drawn_on_and_returned(
    plot: Callable[..., Axes], name: str, by_hand: dict[str, pd.DataFrame]
) -> None:
    figure = Figure()
    ax = figure.add_subplot(1, 2, 2)
    assert plot(by_hand[name], ax) is ax
    assert figure.axes == [ax]
    assert isinstance(plot(by_hand[name]).figure, NotebookFigure)


@pytest.mark.parametrize(("plot", "name"), PLOTS)
def test_another_frame_is_refused_by_the_columns_it_lacks(
    plot: Callable[..., Axes], name: str, by_hand: dict[str, pd.DataFrame]
) -> None:
    with pytest.raises(ValueError, match=rf"lacks .*: this plot takes the frame of nvexplore's {name}\(\)"):
        plot(pd.DataFrame({"step": [1]}))


@pytest.mark.parametrize(("plot", "name"), PLOTS)
def test_the_frame_is_left_as_it_is(plot: Callable[..., Axes], name: str, by_hand: dict[str, pd.DataFrame]) -> None:
    before = by_hand[name].copy()
    plot(by_hand[name])
    pd.testing.assert_frame_equal(by_hand[name], before)


def test_phases_differ_in_more_than_hue() -> None:
    """In grey, too, two phases of equal form differ in lightness or have a pattern."""
    light = {}
    for phase, (colour, hatch, height) in CELLS.items():
        red, green, blue = (int(to_hex(colour)[i : i + 2], 16) / 255 for i in (1, 3, 5))
        light[phase] = (0.2126 * red + 0.7152 * green + 0.0722 * blue, hatch, height)
    for a in light:
        for b in light:
            if a < b and light[a][1:] == light[b][1:]:
                assert abs(light[a][0] - light[b][0]) > 0.2, (a, b)


def test_colours_mean_what_they_mean_in_the_views(by_hand: dict[str, pd.DataFrame]) -> None:
    light = (ROOT / "widgets" / "paint.js").read_text(encoding="utf-8").split("const LIGHT = {")[1].split("}")[0]
    of_views = {name: colour.upper() for name, colour in re.findall(r'(\w+): "(#\w{6})"', light)}
    assert of_views.items() >= COLOURS.items() and len(COLOURS) >= 9
    drawn = {}
    for plot, name in PLOTS:
        ax = plot(by_hand[name])
        legend = ax.get_legend()
        assert legend is not None
        for label, handle in zip(labels(ax), legend.legend_handles, strict=True):
            of_patch = "get_facecolor" if isinstance(handle, Patch) and handle.get_fill() else "get_edgecolor"
            colour = getattr(handle, of_patch if isinstance(handle, Patch) else "get_color")()
            drawn[re.split(r" by| \(|:", label)[0], plot] = to_hex(colour).upper()
    means = {"recompute": "preempted", "aborted": "preempted", "preemptions": "preempted"}
    for (label, _), colour in drawn.items():
        if label not in ("finished", "evictions"):  # marks in the colour of the text
            assert colour == COLOURS[means.get(label, label)], label
    assert len(drawn) == 16


# ---------------------------------------------------------------- manners

DRAW = """
import sys
from nvexplore.explore import frames
from nvexplore.explore.plots import plot_memory, plot_schedule, plot_throughput
from tests import hand_made
items = hand_made.items()
steps, schedule = frames.steps(items), frames.schedule(items)
def draw():
    return [ax.figure for ax in (plot_memory(steps), plot_throughput(steps), plot_schedule(schedule))]
"""


def test_j13_fifty_plots_leave_no_pyplot_figure(run_python: RunPython) -> None:
    code = f"""{DRAW}
import gc, weakref
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
drawn = []
for _ in range(50):
    drawn += map(weakref.ref, draw())
for figure in draw():
    figure._repr_png_()
del figure
gc.collect()
print(len(plt.get_fignums()), sum(ref() is not None for ref in drawn))
"""
    assert run_python(code, env={"PYTHONPATH": str(ROOT)}) == "0 0\n"


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", ""])
def test_j22_importing_and_drawing_leave_all_settings_alone(backend: str, run_python: RunPython) -> None:
    code = f"""
import logging, random, sys, warnings
import matplotlib, numpy, pandas
def settings():
    get = dict.__getitem__ # a plain look-up: it must not make matplotlib choose a backend
    options = pandas.get_option
    shown = [options(o) for o in ("display.width", "display.max_rows", "display.max_columns", "display.precision")]
    return (
        {{name: get(matplotlib.rcParams, name) for name in matplotlib.rcParams}},
        pandas.describe_option(_print_desc=False),
        shown,
        list(warnings.filters),
        logging.root.level,
        list(logging.root.handlers),
        random.getstate(),
        numpy.random.get_state()[1].tolist(),
        numpy.get_printoptions(),
        numpy.geterr(),
    )
before = settings()
{DRAW}
for figure in draw():
    figure._repr_png_()
print(settings() == before, "matplotlib.pyplot" in sys.modules, [m for m in ("torch", "IPython") if m in sys.modules])
"""
    env = {"PYTHONPATH": str(ROOT)} | ({"MPLBACKEND": backend} if backend else {})
    assert run_python(code, env=env) == "True False []\n"


def test_a_cell_that_ends_with_the_figure_shows_one_image(by_hand: dict[str, pd.DataFrame]) -> None:
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(plot_memory(by_hand["steps"]).figure)
    assert set(data) == {"text/plain", "image/png"}


def test_patches_of_the_legend_show_the_pattern(by_hand: dict[str, pd.DataFrame]) -> None:
    legend = plot_schedule(by_hand["schedule"]).get_legend()
    assert legend is not None
    hatched = [
        text.get_text()
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
        if isinstance(handle, Patch) and handle.get_hatch()
    ]
    assert hatched == ["recompute"]
