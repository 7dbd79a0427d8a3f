"""Figures of the hot path: what they show of a toy on a CPU, and of the same with a GPU's columns filled in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec.structs import replace

from nvexplore.bench.hot_path import VARIANTS, HotPath, Requests, Variant, measure
from nvexplore.bench.hot_path_cost_plots import memory_parts, plot_costs, plot_floor, plot_memory_parts
from nvexplore.bench.hot_path_plots import plot_census, plot_padding, plot_timeline
from nvexplore.toy import make_toy

NAMES = ["eager", "graphs"]
DRAWN: dict[str, Callable[[HotPath], Figure]] = {
    "timeline": lambda hot: plot_timeline(hot, NAMES, num_steps=2),
    "census": lambda hot: plot_census(hot, NAMES),
    "padding": lambda hot: plot_padding(hot, "graphs"),
    "memory": lambda hot: plot_memory_parts(hot, "graphs"),
    "floor": lambda hot: plot_floor(hot, hot.variants["graphs"]),
    "costs": plot_costs,
}


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> HotPath:
    toy = make_toy(tmp_path_factory.mktemp("hot path plots") / "toy", "qwen3")
    asked = Requests(num=3, prompt_len=5, first_end=5, every=2)
    variants = {name: VARIANTS[name] for name in NAMES}
    return measure(toy, variants, asked, passes=2, device="cpu", num_kvcache_blocks=32, block_size=4)


@pytest.fixture(scope="module")
def gpu(cpu: HotPath) -> HotPath:
    """With a device that takes 1 ms a step from its launch on, a graph of 4 rows, and a floor of 0.25 ms at 1 GB/s."""

    def filled(variant: Variant) -> Variant:
        steps, count = variant.steps, len(variant.steps.step)
        graphs: dict[str, Any] = {}
        if "enforce_eager" not in variant.options:
            graphs = {"graph_size": [None, *[4] * (count - 1)], "padding": [None, *(4 - r for r in steps.rows[1:])]}
        steps = replace(
            steps,
            device_at=list(steps.launch_at),
            device_us=[1000.0] * count,
            read_bytes=[None, *[250_000] * (count - 1)],
            **graphs,
        )
        memory = {**variant.memory, "total": 10**7, "step_peak": 10**6, "graphs": 10**5, "others": 10**6}
        return replace(variant, steps=steps, memory=memory)

    variants = {name: filled(variant) for name, variant in cpu.variants.items()}
    return replace(cpu, device="A GPU", variants=variants, read_bytes_per_s=1e9)


def labels(figure: Figure) -> list[str]:
    """What the legends say."""
    legends = [*figure.legends, *(legend for ax in figure.axes if (legend := ax.get_legend()) is not None)]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_figure_can_be_drawn_and_says_whose_it_is(
    name: str, device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    hot: HotPath = request.getfixturevalue(device)
    figure = DRAWN[name](hot)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(tmp_path / "figure.png")
    said = [ax.get_xlabel() for ax in figure.axes] + [figure.get_suptitle()]
    assert any(hot.device in text for text in said)


def test_a_timeline_has_a_bar_for_each_phase_and_the_steps_of_the_device(cpu: HotPath, gpu: HotPath) -> None:
    figure = plot_timeline(gpu, NAMES, num_steps=2)
    for ax, name in zip(figure.axes, NAMES, strict=True):
        steps = gpu.variants[name].steps
        assert ax.get_title(loc="left") == name and len(ax.collections) == 4 + len(steps.step)
        full = [i for i, rows in enumerate(steps.rows) if rows == 3 and not steps.is_prefill[i]]
        first = full[len(full) // 3]
        left = ax.collections[0].get_paths()[first].get_extents()
        assert left.x0 == pytest.approx(0, abs=1e-6)  # the time begins with the plan of that step
        assert left.width == pytest.approx(steps.plan_us[first] / 1e3)
    widths = {ax.get_xlim()[1] for ax in figure.axes}
    assert widths == {2 * gpu.variants["eager"].steps.medians()["wall_us"] / 1e3}
    assert labels(figure)[:4] == ["host: plan", "host: launch", "host: wait", "host: commit"]
    on_cpu = plot_timeline(cpu, ["eager"])
    assert texts(on_cpu.axes[0]) == ["no clock of its own"] and len(on_cpu.axes[0].collections) == 4


def test_a_census_has_a_panel_for_each_that_was_made(cpu: HotPath) -> None:
    figure = plot_census(cpu, NAMES)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["eager: 22 operations", "graphs: 22 operations"]
    assert sum(len(paths.get_paths()) for paths in figure.axes[0].collections) == 22
    assert sorted(label.split(":")[0] for label in labels(figure))[0] == "RoPE, KV store (2)"
    none = replace(cpu, variants={"eager": replace(cpu.variants["eager"], census=None)})
    assert labels(plot_census(none, ["eager"])) == []


def test_padding_is_what_a_graph_has_above_the_rows(cpu: HotPath, gpu: HotPath) -> None:
    figure = plot_padding(gpu, "graphs")
    assert labels(figure) == ["rows", "padding", "size of the graph"]
    rows, padding, size = (patch.get_data() for patch in figure.axes[0].patches)  # type: ignore[attr-defined]
    assert padding.baseline.tolist() == rows.values.tolist() and set(size.values) == set(padding.values) == {4}
    assert rows.values.tolist() == gpu.variants["graphs"].steps.rows[1:]
    (dots,) = figure.axes[1].lines
    assert set(dots.get_ydata()) == {1.0} and "device" in figure.axes[1].get_ylabel()  # type: ignore[arg-type]
    assert labels(plot_padding(cpu, "graphs")) == ["rows"]


def test_the_parts_of_memory_are_all_of_it(cpu: HotPath, gpu: HotPath) -> None:
    variant = gpu.variants["graphs"]
    parts = memory_parts(variant)
    assert sum(parts.values()) == 10**7 and parts["KV pool"] == 32 * variant.memory["block_bytes"]
    assert list(parts)[-1] == "left alone" and len(parts) == 6
    assert list(memory_parts(cpu.variants["graphs"])) == ["weights", "KV pool"]
    figure = plot_memory_parts(gpu, "graphs")
    widths = [patch.get_width() * 2**20 for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert widths == pytest.approx(list(parts.values()))
    assert labels(figure)[0] == f"weights: {parts['weights'] / 2**20:.2f} MiB"


def test_the_floor_is_what_reading_takes(cpu: HotPath, gpu: HotPath) -> None:
    ax = plot_floor(gpu, gpu.variants["graphs"]).axes[0]
    measured, floor = ax.lines
    assert set(measured.get_ydata()) == {1.0} and list(floor.get_ydata()) == pytest.approx([0.25] * 8)  # type: ignore
    assert set(texts(ax)) == {"25%"} and "0.00 TB/s" in labels(ax.figure)[1]  # type: ignore[arg-type]
    without = plot_floor(cpu, cpu.variants["graphs"]).axes[0]
    assert len(without.lines) == 1 and without.get_ylabel() == "MiB that a step must read"


def test_costs_of_each_way(gpu: HotPath) -> None:
    rates, steps, loads = plot_costs(gpu).axes
    assert [label.get_text() for label in rates.get_yticklabels()] == NAMES
    frame = gpu.frame()
    assert texts(rates) == [f"{rate:,.0f}" for rate in frame["tokens_per_s"]]
    assert [len(dots.get_ydata()) for dots in rates.lines] == [2, 2]  # type: ignore[arg-type]
    bars = [patch.get_width() for patch in steps.patches]  # type: ignore[attr-defined]
    assert bars[::2] == pytest.approx(list(frame["wall_us"] / 1e3)) and len(bars) == 4
    assert texts(loads) == [f"{variant.load_seconds:.1f}" for variant in gpu.variants.values()]
