"""Every notebook runs from top to bottom as a reader would run it, and shows what its text says it shows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_async_kernel
from nbclient.exceptions import CellExecutionError

from nvexplore.bench.hot_path import VARIANTS, Requests, measure
from nvexplore.bench.hot_path_results import RECORDING
from nvexplore.demo import demo_model_path
from nvexplore.toy import make_toy
from tests.notebook_runs import CHECKOUT, Read, check_end, execute, has_figure, shown, side_by_side

NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))
# Those that show the same wherever they run, by the test that reads each. The longest first.
BY_TEST = {
    "test_scheduling_policies": "02_scheduling_policies",
    "test_first_steps": "01_first_steps",
    "test_look_inside": "05_look_inside",
    "test_prefix_cache": "03_prefix_cache",
}


@pytest.fixture(autouse=True)
def own_ipython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No start-up files of the user's; the checkout, if nvexplore is not installed; threads that wait politely."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine spinning makes torch ten times slower


@pytest.fixture(scope="module")
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    """Gives a notebook of ``BY_TEST``, executed; those whose tests run are begun together."""
    asked_for = {item.name for item in request.session.items}
    demo_model_path(quiet=True)
    names = [name for test, name in BY_TEST.items() if test in asked_for]
    with side_by_side(names, tmp_path_factory.mktemp("notebooks")) as read:
        yield read


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_committed(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.slow
def test_first_steps(executed: Read) -> None:
    notebook = executed("01_first_steps")
    check_end(notebook)
    assert "64 tokens" in shown(notebook, "step-0")
    assert "(0 to 95 cached)" in shown(notebook, "step-2")
    assert "3 decode rows" in shown(notebook, "step-3")
    assert "bees do not sleep" in shown(notebook, "run")
    assert "6 hit in the prefix cache" in shown(notebook, "again")
    preempted = shown(notebook, "until-preempted")
    assert re.search(r"[1-9]\d* cached blocks evicted", preempted)
    assert re.search(r"preempted: q-\d+ loses the KV of \d+ tokens, since q-\d+ needs a block", preempted)
    needs = r"waiting: q-\d+, since it needs \d+ blocks, beside \d+ kept free for others, and \d+ can be had"
    assert re.search(needs, shown(notebook, "peek-preempted"))
    assert "all requests are finished" in shown(notebook, "finish")
    for name in ("memory", "schedule", "throughput"):
        cell = next(cell for cell in notebook.cells if cell.id == f"plot-{name}")
        assert "image/png" in cell.outputs[0]["data"]
    assert not [out for cell in notebook.cells for out in cell.get("outputs", []) if out.output_type == "stream"]
    # The state of the views is kept in the notebook: a reader of the saved file sees the last step.
    state = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    assert any("frame" in model["state"] for model in state.values())


@pytest.mark.slow
def test_scheduling_policies(executed: Read) -> None:
    """What the text claims in numbers is asserted in the cells; here is what it says can be seen."""
    notebook = executed("02_scheduling_policies")
    check_end(notebook)
    for cell_id in ("rush-prefill-first", "rush-mixed", "chunked", "whole", "crowd", "priority-run", "duel"):
        assert has_figure(notebook, cell_id)
    assert re.search(r"longest silence, in steps +16 +0\n", shown(notebook, "rush-compared"))
    assert re.search(r"steps in all +40 +24\n", shown(notebook, "rush-compared"))
    assert re.search(r"tokens in the largest step +64 +242\n", shown(notebook, "budgets"))
    assert "74 tokens were lost, 24 of them found again, 50 computed again" in shown(notebook, "salvage")
    rows = [line.split()[0] for line in shown(notebook, "priority").splitlines()[2:5]]
    assert rows == ["urgent", "normal", "lax"]
    assert "all requests are finished" in shown(notebook, "last-run")
    mine = next(cell.source for cell in notebook.cells if cell.id == "mine")
    assert "class ShortestFirst" in mine and len(mine.splitlines()) <= 30


@pytest.mark.slow
def test_prefix_cache(executed: Read) -> None:
    notebook = executed("03_prefix_cache")
    check_end(notebook)
    names = re.findall(r"[0-9a-f]{16}", shown(notebook, "by-hand"))
    assert len(names) == 3 and names == re.findall(r"[0-9a-f]{16}", shown(notebook, "engine"))
    assert "16 to 22 (0 to 15 cached)" in shown(notebook, "hit-peek") and "2 hit in" in shown(notebook, "hit-peek")
    assert shown(notebook, "hit").count("shared") == 2
    assert "16 to 21 (0 to 15 cached)" in shown(notebook, "twins")
    assert shown(notebook, "exact-check") == "2 of 3, and 8 tokens were run\n"
    told = shown(notebook, "why") + shown(notebook, "evict-again")
    for cause in ("unseen", "partial", "differs", "in_flight", "bypassed", "evicted"):
        assert f" {cause} " in told
    assert "token 7 is another than in block 0" in told and "was evicted in step 1" in told
    tail = [shown(notebook, cell_id).count(" had done all day") for cell_id in ("evict-load", "evicted")]
    assert tail == [1, 0] and "The monk kept his bees" in shown(notebook, "evicted")
    mine = next(cell.source for cell in notebook.cells if cell.id == "order")
    assert "class KeepBeginnings" in mine and len(mine.splitlines()) <= 30
    assert shown(notebook, "order") == "{'lru': 0, 'keep_beginnings': 8}"
    assert shown(notebook, "salt") == "[24, 0, 24, 24]"
    assert re.search(r"run in prefill +448 +128\n", shown(notebook, "saved"))
    assert re.search(r"blocks held at most +36 +16\n", shown(notebook, "saved"))
    assert has_figure(notebook, "worth-plot") and "all requests are finished" in shown(notebook, "last-run")


@pytest.mark.slow
def test_hot_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, and with a recording of a toy on this CPU in place of a GPU's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ways = {name: VARIANTS[name] for name in ("eager", "graphs", "graphs + overlap", "compile_layers")}
    asked = Requests(num=3, prompt_len=5, first_end=5, every=2)
    recording = measure(make_toy(tmp_path / "toy"), ways, asked, passes=1, device="cpu")
    (tmp_path / RECORDING).write_bytes(recording.to_json())
    demo_model_path(quiet=True)
    notebook = nbformat.read(CHECKOUT / "notebooks" / "04_hot_path.ipynb", as_version=4)
    execute(notebook, tmp_path)
    check_end(notebook)
    whose = shown(notebook, "whose").splitlines()
    assert whose[0].endswith("(recorded)") and "toy in float32" in whose[0]
    assert whose[1].startswith("here: CPU") and "demo in float32" in whose[1]
    figures = ("eager-plot", "graphs-plot", "graphs-census", "padding-plot", "overlap-plot")
    for cell_id in (*figures, "memory-plot", "floor", "costs"):
        assert has_figure(notebook, cell_id)
    assert shown(notebook, "step-census").startswith("22 operations for 3 rows")
    assert shown(notebook, "air") == "2 steps have been planned, 1 token is known\n"
    assert shown(notebook, "records").count("True") == 7
    ran, kept = (int(number) for number in re.findall(r"\d+", shown(notebook, "dropped")))
    assert ran == kept + 1
    assert "compiled for a GPU only" in shown(notebook, "left-out")
    assert "num_kvcache_blocks=96" in shown(notebook, "memory-here")


@pytest.mark.slow
def test_look_inside(executed: Read) -> None:
    """Each view's answer is asserted in the cell below it; here is that all views are shown, and what is printed."""
    notebook = executed("05_look_inside")
    check_end(notebook)
    for cell_id in ("schedule", "blocks", "slots", "prefix", "why", "memory", "throughput", "own"):
        assert "View of Explorer(" in shown(notebook, cell_id)
    assert "chunked prefill: A prompt that is longer" in shown(notebook, "glossary")
    assert shown(notebook, "slots-check") == "block_table[73 // 8] * 8 + 73 % 8 = 11 * 8 + 1 = 89\n"
    assert "begins like block 2, which differs from position 18" in shown(notebook, "prefix-check")
    waits = (
        "E waits for 2 free blocks: needs 23, 21 are free; D holds 7 blocks alone and ends in 3 tokens at the latest"
    )
    assert shown(notebook, "why-check") == f"{waits}\n"
    assert "E was preempted for A, which needed a block" in shown(notebook, "preempt-check")
    assert "B said nothing in steps 8 to 11" in shown(notebook, "throughput-check")
    assert shown(notebook, "lost") == "187 tokens were lost, 144 found again, 43 computed again\n"
    assert shown(notebook, "time-check") == "step 21: 0 blocks free; step 22: 23\n"
    assert "stopped at step 48: request F took 72 tokens" in shown(notebook, "stop")
    assert "look_inside.nvx: 60 steps" in shown(notebook, "keep") and "WhyView of Explorer(" in shown(notebook, "open")
    assert shown(notebook, "open-check").startswith("F ") and "72" in shown(notebook, "open-check")


def test_a_one_line_error_stops_run_all(tmp_path: Path) -> None:
    make_toy(tmp_path / "toy")
    cells = ["%load_ext nvexplore", "%nvx_load toy", "%nvx_add --max-tokens 0 Hello", "print('not reached')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError):
        execute(notebook, tmp_path)
    assert "UsageError: argument --max-tokens" in str(notebook.cells[2].outputs)
    assert notebook.cells[3].execution_count is None


def test_an_interrupted_kernel_goes_on(tmp_path: Path) -> None:
    """J04 in a real kernel: the stop button ends the cell between two steps; no token is lost or made twice."""
    make_toy(tmp_path / "toy")
    asyncio.run(interrupted(tmp_path))


async def interrupted(folder: Path) -> None:
    manager, client = await start_new_async_kernel(cwd=str(folder))

    async def run(code: str) -> dict[str, Any]:
        reply = await client.execute_interactive(code, timeout=60, output_hook=lambda message: None)
        content: dict[str, Any] = reply["content"]
        return content

    async def interrupt(code: str) -> dict[str, Any]:
        cell = asyncio.create_task(run(code))
        await asyncio.sleep(0.5)
        await manager.interrupt_kernel()
        return await cell

    try:
        assert (await run("%load_ext nvexplore\nloaded = %nvx_load toy"))["status"] == "ok"
        await run("%nvx_add --max-tokens 1500 --ignore-eos Go on.\nengine = loaded.session.llm.engine")
        assert (await interrupt("%nvx_run"))["ename"] == "KeyboardInterrupt"
        assert (await run("made = engine.next_step\nassert 0 < made < 1500, made"))["status"] == "ok"
        assert (await run("%nvx_run --live --hz 100"))["status"] == "ok"
        assert (await interrupt("await loaded.session.runner.done()"))["status"] == "error"
        check = "assert made < engine.next_step < 1500 and loaded.session.runner.status == 'paused'"
        assert (await run(check))["status"] == "ok"
        await run("%nvx_run\n%nvx_add --max-tokens 1500 --ignore-eos Go on.\n%nvx_run")
        compare = "a, b = (r.token_ids for r in loaded.session.requests)\nassert a == b and len(b) == 1500, (a, b)"
        reply = await run(compare)
        assert reply["status"] == "ok", reply["evalue"]
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def test_a_live_run_is_awaited(tmp_path: Path) -> None:
    """The awaitable end of a live run, in a kernel with nobody watching; other cells work meanwhile."""
    make_toy(tmp_path / "toy")
    cells = [
        "%load_ext nvexplore\nloaded = %nvx_load toy",
        "%nvx_add --max-tokens 300 --ignore-eos Hello\n%nvx_watch",
        "run = %nvx_run --live\nrun",
        "import asyncio\nawait asyncio.sleep(0.05)\nprint(0 < loaded.session.llm.engine.next_step)",
        "%nvx_pause",
        "%nvx_run --live --hz 5000",
        "await run.done()\nrun",
        "%nvx_run --live\n%nvx_close",
        "await asyncio.sleep(0.01)\nrun",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    execute(notebook, tmp_path)
    texts = [shown(notebook, cell.id) for cell in notebook.cells]
    assert texts[2] == "TaskRunner(running, 0 steps made)"
    assert texts[3] == "True\n"
    assert re.fullmatch(r"TaskRunner\(paused, \d+ steps made\)", texts[4])
    assert texts[6] == "TaskRunner(idle, 300 steps made)"
    assert texts[8] == "TaskRunner(closed, 300 steps made)"
