"""The pictures of the slots and the prefix view: a batch row by row, and the prefix cache as a tree."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from nvexplore.explore.plots._figure import COLOURS
from nvexplore.notebook.still_panel import DIM, LINE, Panel, Scene, cleared, one_line, write
from nvexplore.notebook.summary import counted

MAX_ROWS, MAX_TABLE = 20, 9
"""Rows of a batch, and blocks of a row's block table."""
MAX_RUNS, MAX_DEPTH = 24, 8
# Of each column of the batch where it begins, 0-1; numbers end there instead.
COLUMNS = {"request": 0.0, "work": 0.2, "positions": 0.30, "slots": 0.47, "context": 0.71, "block table": 0.735}
RIGHT = ("context",)


def slots_panel(scene: Scene) -> Panel | None:
    """The rows that the step gave the runner: which tokens, which slots they were written to, and the block table."""
    lines, groups = scene.told.get("lines"), {group["row"]: group for group in scene.told.get("groups", [])}
    if not lines:
        return None
    shown = lines[:MAX_ROWS]
    size, num_rows, num_pads = (scene.told[name] for name in ("block_size", "num_rows", "num_pads"))
    pads = f", and {counted(num_pads, 'row' if scene.told['pads_rows'] else 'token')} of padding" if num_pads else ""
    tokens = counted(scene.told["num_tokens"], "token")
    title = f"the batch of step {scene.step:,}: {tokens} in {counted(num_rows, 'row')}{pads}; blocks of {size:,} slots"
    hidden = num_rows + (num_pads if scene.told["pads_rows"] else 0) - len(shown)

    def paint(ax: Axes) -> None:
        cleared(ax, len(shown) + 2 + (hidden > 0))
        write(ax, 0, 0.5, title, weight="bold")
        for name, x in COLUMNS.items():
            write(ax, x, 1.5, name, color=DIM, ha="right" if name in RIGHT else "left")
        for at, line in enumerate(shown):
            if at % 2 == 0:
                ax.add_patch(Rectangle((-0.01, at + 2), 1.02, 1, facecolor="#F3F3F3", linewidth=0))
            for name, text in _cells(line, groups.get(line["row"]), size).items():
                write(ax, COLUMNS[name], at + 2.5, text, ha="right" if name in RIGHT else "left")
        if hidden > 0:
            write(ax, 0, len(shown) + 2.5, _more(hidden, "row"), color=DIM)

    return Panel(0.12, LINE * (len(shown) + 2 + (hidden > 0)), paint, left=0.03, below=0.1)


def _more(number: int, noun: str) -> str:
    return f"and {number:,} more {noun}{'' if number == 1 else 's'}"


def _cells(line: dict[str, Any], group: dict[str, Any] | None, size: int) -> dict[str, str]:
    """A row of the table. group: its tokens, where they were told too."""
    start, count, table = line["start"], line["count"], line["table"]
    if line["seq_id"] < 0:
        return {"request": "(padding)", "positions": "-", "slots": "-", "context": "0", "block table": "-"}
    blocks = " ".join(map(str, table[:MAX_TABLE])) + (" …" if line["num_blocks"] > MAX_TABLE else "")
    return {
        "request": one_line(line["name"], 22),
        "work": "" if group is None else "prefill" if group["is_prefill"] else "decode",
        "positions": f"{start:,} to {start + count - 1:,}" if count > 1 else f"{start:,}",
        "slots": "" if group is None else slot_words(group["slots"], is_cut=len(group["slots"]) < count),
        "context": f"{line['context']:,}",
        "block table": blocks,
    }


def slot_words(slots: list[int], *, is_cut: bool = False) -> str:
    """Stretches of slots that follow each other, the first two of them."""
    stretches: list[list[int]] = []
    for slot in slots:
        if stretches and slot == stretches[-1][1] + 1:
            stretches[-1][1] = slot
        else:
            stretches.append([slot, slot])
    words = [f"{first}-{last}" if last > first else str(first) for first, last in stretches[:2]]
    return ", ".join(words) + (" …" if is_cut or len(stretches) > 2 else "")


def prefix_panel(scene: Scene) -> Panel | None:
    """The runs of the prefix cache as a tree: a bar as long as the run, solid where somebody holds its blocks."""
    runs = scene.told.get("runs")
    if not runs:
        return None
    order = tree_order([run["parent"] for run in runs])
    shown = order[:MAX_RUNS]
    hidden = len(runs) - len(shown) + scene.told.get("hidden_runs", 0)
    longest = max(runs[at]["length"] for at in shown)
    num_runs = counted(len(runs) + scene.told.get("hidden_runs", 0), "run")
    title = f"{counted(scene.told['cached'], 'block')} in the prefix cache after step {scene.step:,}, in {num_runs}"
    rows = {at: row for row, at in enumerate(shown)}

    def paint(ax: Axes) -> None:
        cleared(ax, len(shown) + 2 + (hidden > 0))
        write(ax, 0, 0.5, title, weight="bold")
        for x, colour, hatch, word in (
            (0.0, COLOURS["used"], None, "held by a request"),
            (0.22, COLOURS["cached"], "////", "cached only"),
        ):
            _bar(ax, x, 1.5, 0.03, colour, hatch)
            write(ax, x + 0.04, 1.5, word, color=DIM)
        write(ax, 0.4, 1.5, "a run's text follows that of the run it hangs from", color=DIM)
        for at, row in rows.items():
            _draw_run(ax, runs, at, row + 2.5, longest, rows)
        if hidden > 0:
            write(ax, 0, len(shown) + 2.5, _more(hidden, "run"), color=DIM)

    return Panel(0.12, LINE * (len(shown) + 2 + (hidden > 0)), paint, left=0.03, below=0.1)


def _draw_run(ax: Axes, runs: list[dict[str, Any]], at: int, y: float, longest: int, rows: dict[int, int]) -> None:
    run = runs[at]
    x, width = _indent(run), 0.2 * run["length"] / longest
    parent = run["parent"]
    if parent in rows:
        stem = _indent(runs[parent]) + 0.008
        ax.plot([stem, stem, x - 0.003], [rows[parent] + 2.9, y, y], color="#888888", linewidth=0.8, zorder=0)
    held = width * run["held"] / run["length"]
    _bar(ax, x, y, held, COLOURS["used"], None)
    _bar(ax, x + held, y, width - held, COLOURS["cached"], "////")
    hits = counted(run["hits"], "hit")
    write(ax, 0.37, y, f"{counted(run['length'], 'block')}, {run['held']:,} held, {hits}")
    write(ax, 0.6, y, one_line(" … ".join(run["text"]), 42), color=DIM, fontsize=7.5)


def _indent(run: dict[str, Any]) -> float:
    return 0.02 * min(MAX_DEPTH, int(run["depth"]))


def _bar(ax: Axes, x: float, y: float, width: float, colour: str, hatch: str | None) -> None:
    if width > 0:
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "linewidth": 0}
        ax.add_patch(Rectangle((x, y - 0.33), width, 0.66, **style))


def tree_order(parents: list[int]) -> list[int]:
    """Each place after its parent's, with its branch behind it. parents: the place of each one's parent, or -1."""
    children: dict[int, list[int]] = {}
    for at, parent in enumerate(parents):
        children.setdefault(parent if 0 <= parent < len(parents) else -1, []).append(at)
    order: list[int] = []
    open_ = children.get(-1, [])[::-1]
    while open_:
        at = open_.pop()
        order.append(at)
        open_ += children.get(at, [])[::-1]
    return order
