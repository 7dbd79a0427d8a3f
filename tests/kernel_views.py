"""What open views cost: the benchmark's requests in a real kernel, by ``generate()`` and by a live run, in turns.

    python -m tests.kernel_views --model random:qwen3-0.6b --scale 1

starts a kernel under nbclient with a stand-in for the page (page_stand_in.py), and prints what came of it as JSON. Both
ways get the same requests in a pass; ``generate()`` runs on an engine that nobody watches, without views. Of a live run
it tells which steps were held up (``slowest``) and how long its end took (``ending``): where the next loss is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from typing import Any

from tests.kernel_notebook import Notebook, notebook
from tests.page_stand_in import PageStandIn, counted

LEAST_RATIO = 0.95  # of generate()'s tokens a second
MOST_MESSAGES = 30  # in any second
SETUP = """
import json
from nvexplore.notebook.extension import active_session
from tests.serving_turns import Turns

get_ipython().run_line_magic("load_ext", "nvexplore")
turns = Turns(active_session(get_ipython()), {model!r}, scale={scale!r})
print(json.dumps({{"blocks": turns.watched.engine.limits.num_blocks, "device": turns.device}}))
"""


async def watched_run(cells: Notebook, page: PageStandIn, seed: int) -> dict[str, Any]:
    """One live run under all views, and what the page got of it."""
    before = len(page.messages)
    await cells.run(f"turns.start({seed})")
    told: dict[str, Any] = {}
    while not told:
        await cells.rest(0.1)
        if page.status != "running":
            told = await cells.run("print(json.dumps(turns.told()))")
    await cells.rest(1.0)  # what comes late belongs to it
    return counted(page.messages[before:]) | told | {"last_step_shown": page.step - 1}


async def measure(model: str, scale: float, passes: int) -> dict[str, Any]:
    """``passes`` of each way, after one of each that is not counted."""
    async with notebook() as cells:
        page = PageStandIn(cells.connection_file)
        page.start()
        try:
            setup: dict[str, Any] = await cells.run(SETUP.format(model=model, scale=scale))
            blocking = [await cells.run("print(json.dumps(turns.blocking(0)))")]
            views = await cells.run("print(json.dumps(turns.open_views(display)))")
            watched = [await watched_run(cells, page, 0)]
            for seed in range(1, passes + 1):
                blocking.append(await cells.run(f"print(json.dumps(turns.blocking({seed})))"))
                watched.append(await watched_run(cells, page, seed))
        finally:
            page.close()
    told = {"views": views, "gaps": page.num_gaps, "errors": page.errors}
    return report(blocking[1:], watched[1:]) | setup | told


def report(blocking: list[dict[str, Any]], watched: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of both ways' passes, and how they compare."""
    rates = [[run["tokens"] / run["seconds"] for run in runs] for runs in (blocking, watched)]
    plain, shown = map(statistics.median, rates)
    return {
        "tokens": [run["tokens"] for run in watched],
        "generate_tokens_a_second": [round(rate, 1) for rate in rates[0]],
        "views_tokens_a_second": [round(rate, 1) for rate in rates[1]],
        "ratio": round(shown / plain, 4),
        "most_in_a_second": max(run["most_in_a_second"] for run in watched),
        "runs": watched,
    }


def problems(told: dict[str, Any]) -> list[str]:
    """What does not hold of a report, speed aside."""
    found = list(told["errors"])
    if told["gaps"]:
        found.append(f"{told['gaps']} messages did not arrive")
    if told["most_in_a_second"] > MOST_MESSAGES:
        found.append(f"{told['most_in_a_second']} messages in a second, at most {MOST_MESSAGES} should be")
    shown = [(run["last_step_shown"], run["last_step"]) for run in told["runs"]]
    found += [f"step {last} is shown last, step {newest} was" for last, newest in shown if last != newest]
    return found


def main(argv: list[str]) -> int:
    """Measure and print; 1 if the views cost too much, or something else is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernel_views", description=__doc__)
    parser.add_argument("--model", default="random:qwen3-tiny")
    parser.add_argument("--scale", type=float, default=1 / 32, help="of nano-vLLM's benchmark (default: 1/32)")
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args(argv)
    told = asyncio.run(measure(args.model, args.scale, args.passes))
    found = problems(told)
    if told["ratio"] < LEAST_RATIO:
        found.append(f"{told['ratio']:.1%} of generate()'s speed, at least {LEAST_RATIO:.0%} should be")
    print(json.dumps(told | {"problems": found}, indent=1))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
