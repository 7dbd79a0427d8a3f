"""Runs the chunks of one proof, here or on several processes. Keeps nothing and prints nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

from tests.prove import Figures, Proof

PROCESSES = min(os.cpu_count() or 1, 8)


class Outcome(NamedTuple):
    """What came of a chunk: its figures, or the traceback of what it raised."""

    seeds: range
    seconds: float
    figures: Figures
    trace: str


def run_chunks(proof: Proof, todo: list[range]) -> Iterator[Outcome]:
    """Run ``todo`` and yield each outcome as it comes. Who stops asking loses the chunks that run, and no other."""
    if not proof.is_parallel or PROCESSES == 1 or len(todo) == 1:
        for seeds in todo:
            yield _run(proof.run_chunk, seeds)
        return
    # spawn: a fork of a process in which torch has started threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, context, _leave_ctrl_c_to_the_parent) as pool:
        futures = [pool.submit(_run, proof.run_chunk, seeds) for seeds in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(run_chunk: Callable[[range], Figures], seeds: range) -> Outcome:
    started, trace = time.monotonic(), ""
    figures: Figures = {}
    try:
        figures = run_chunk(seeds)
    except Exception:
        trace = traceback.format_exc()
    return Outcome(seeds, time.monotonic() - started, figures, trace)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
