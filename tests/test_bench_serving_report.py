"""Results of serving workloads: fair turns, ratios, tables and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib import image

from nvexplore.bench import serving_plots
from nvexplore.bench.servers import STAGES
from nvexplore.bench.serving import Figure, Server, Serving
from nvexplore.bench.serving_compare import Row, compare_servers, left_out, short, table
from nvexplore.bench.serving_plots import plot_startup, plot_workload, write_plots
from nvexplore.bench.serving_startup import Startup
from nvexplore.bench.serving_workloads import Sizes, workloads
from tests.serving_fakes import Clock, FakeServer, FakeStreaming


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("time.sleep", clock.sleep)
    return clock


# ---------------------------------------------------------------- turns, ratios, tables


def test_passes_alternate_and_ratios_are_of_the_same_pass(clock: Clock) -> None:
    log: list[str] = []
    values = {"a": iter([0, 0, 10.0, 30.0, 20.0]), "b": iter([0, 0, 20.0, 20.0, 20.0])}

    def measure(server: Server, seed: int) -> list[Figure]:
        log.append(f"{server.name}{seed}")
        return [Figure("decode step", "batch 8", next(values[server.name]), "ms", False)]

    servers, told = [FakeServer(clock, "a"), FakeServer(clock, "b")], list[str]()
    (row,) = compare_servers(servers, [Serving("step", measure, 1)], 3, told.append)
    assert log == ["b-2", "a-2", "a-1", "b-1", "b0", "a0", "a1", "b1", "b2", "a2"]
    assert told[-2:] == ["step: pass 3 of 3", "decode step batch 8: a 20.0, b 20.0"]
    assert (row.median("a"), row.median("b")) == (20, 20)
    assert row.ratio() == pytest.approx(1)  # 2, 2/3 and 1 times better
    assert json.loads(json.dumps(row.as_dict()))["passes"]["a"] == [10, 30, 20]
    assert table([row])[1].split() == ["step", "decode", "step", "batch", "8", "20.0", "20.0", "ms", "1.00x"]


def test_ratios_only_where_something_is_compared(clock: Clock) -> None:
    def row(more_is_better: bool | None, **values: float) -> Row:
        return Row("w", {name: [Figure("q", "", value, "u", more_is_better)] for name, value in values.items()})

    assert row(True, a=3, b=2).ratio() == 1.5 and row(False, a=3, b=2).ratio() == pytest.approx(2 / 3)
    for alone in (row(True, a=3), row(None, a=3, b=2), row(False, a=3, b=0), row(False, a=-1, b=2)):
        assert alone.ratio() is None and alone.as_dict()["times_better"] is None
    lines_of_table = table([row(True, a=3, b=2), row(None, b=1234.5)])
    assert lines_of_table[1].split() == ["w", "q", "3.00", "2.00", "u", "1.50x"]
    assert lines_of_table[2].split() == ["q", "-", "1,234", "u"]
    assert "ours" not in table([row(True, a=3)])[0] and table([]) == []


@pytest.mark.parametrize(
    ("value", "said"), [(0.00981, "0.00981"), (1, "1.00"), (52.94, "52.9"), (99.99, "100"), (24234.4, "24,234")]
)
def test_numbers_have_the_digits_that_tell_passes_apart(value: float, said: str) -> None:
    assert short(value) == said


def test_who_takes_no_requests_meanwhile_is_left_out(clock: Clock) -> None:
    servers = [FakeStreaming(clock, "a"), FakeServer(clock, "b")]
    chosen = workloads(["first-token", "mixed-arrivals"], Sizes(scale=1 / 64, rate=50))
    rows = compare_servers(servers, chosen, 1, lambda line: None)
    assert [list(row.figures) for row in rows] == [["a", "b"], *[["a"]] * 4]
    assert left_out(servers, chosen) == ["mixed-arrivals: b is left out, it takes no requests while others run"]
    assert compare_servers(servers[1:], chosen[1:], 1, lambda line: None) == []


# ---------------------------------------------------------------- pictures


def rows_of(*names: str) -> list[Row]:
    def row(quantity: str, case: str, *values: float, more: bool | None = False) -> Row:
        figures = {
            name: [Figure(quantity, case, value + i, "ms", more) for i in range(3)]
            for name, value in zip(names, values, strict=False)
        }
        return Row("mixed-arrivals", figures)

    return [
        row("time to first token", "median", 10, 20),
        row("time to first token", "p95", 30, 50),
        row("hit rate", "", 90, more=None),
    ]


def test_a_figure_a_workload_with_a_panel_a_quantity() -> None:
    figure = plot_workload(rows_of("nvexplore", "vllm"), "toy, CPU")
    first, hits = figure.axes
    assert (first.get_title(), hits.get_title()) == ("time to first token", "hit rate")
    assert [round(bar.get_height()) for bar in first.patches] == [11, 21, 31, 51]  # type: ignore[attr-defined]
    assert [label.get_text() for label in first.get_xticklabels()] == ["median\n1.91x as fast", "p95\n1.65x as fast"]
    assert (first.get_ylabel(), hits.get_ylabel()) == ("ms, less is better", "ms")
    assert first.get_ylim()[0] == 0 and [line.get_ydata().tolist() for line in first.lines[:1]] == [[10, 11, 12]]  # type: ignore[union-attr]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "nvexplore", "vllm", "passes (3); bars are medians"
    ]  # fmt: skip


def test_nothing_of_a_figure_overlaps_or_is_cut_off() -> None:
    startups = [Startup("nvexplore", 9.0, 0.1, 0.1, {"weights": 3.0, "other": 6.0}), Startup("vllm", 80.0, 1, 0.1, {})]
    figures = [plot_workload(rows_of("nvexplore", "vllm"), "a model, NVIDIA H200"), plot_startup(startups, "a model")]
    figures += [plot_workload(rows_of("nvexplore")[2:], "a model"), plot_startup(startups[:1], "a model")]
    for figure in figures:
        figure.draw_without_rendering()
        whole, title = figure.bbox, figure.texts[0]
        boxes = [text.get_window_extent() for text in figure.texts]
        boxes += [box for ax in figure.axes if (box := ax.get_tightbbox()) is not None]
        boxes += [legend.get_window_extent() for legend in figure.legends]
        boxes[figure.texts.index(title)] = boxes[0].from_extents(
            boxes[0].x0, (boxes[0].y0 + boxes[0].y1) / 2, boxes[0].x1, boxes[0].y1
        )  # its second line is room for the line below it
        for number, box in enumerate(boxes):
            assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, number
            assert not any(box.overlaps(other) for other in boxes[number + 1 :]), number


def test_one_file_a_workload(tmp_path: Path) -> None:
    files = write_plots(tmp_path, rows_of("nvexplore"), [Startup("nvexplore", 1.0, 0.1, 0.1, {})], "toy")
    assert [file.name for file in files] == ["mixed-arrivals.png", "startup.png"]
    assert all(image.imread(file).std() > 0.1 for file in files)


def test_every_part_of_a_start_has_a_colour() -> None:
    assert set(serving_plots.PARTS) == {*STAGES, "load", "other", "first call"}
