"""Microseconds that open views cost a step in a real kernel, with a page attached, by the pool's size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits
from nvexplore.notebook.display import MODULES
from nvexplore.notebook.explorer import Explorer
from nvexplore.sampling_params import SamplingParams
from tests.kernel_notebook import notebook
from tests.page_stand_in import PageStandIn, counted
from tests.prove.record_cost import InstantRunner

SETUP = """
import json
from tests.kernel_cost import Steps
"""
MEASURE = """
steps = Steps({blocks}, {running})
steps.show(display)
"""


class Steps:
    """Inside the kernel: an engine whose runner computes nothing, so that what is left is the host's work."""

    def __init__(self, num_blocks: int, running: int) -> None:
        limits = EngineLimits(
            num_blocks=num_blocks, max_num_seqs=running, max_num_batched_tokens=16_384, max_model_len=100_000
        )
        self.engine = Engine(limits, InstantRunner())
        for i in range(running):
            self.engine.add_request([i] * 40, SamplingParams(max_tokens=50_000, ignore_eos=True))
        for _ in range(4):
            self.engine.step()
        self.explorer = Explorer(decode=lambda ids: " ".join(map(str, ids)))

    def show(self, display: Callable[[Any], object]) -> None:
        """The dashboard with all panels."""
        self.explorer.panels = list(MODULES.values())
        display(self.explorer)

    def costs(self, seconds: float, pairs: int) -> dict[str, float]:
        """The step by itself, and what the views add: medians over stretches with and without them, in turns."""
        plain, added = [], []
        for _ in range(pairs):
            without = self._step_us(seconds / 20)
            with self.engine.subscribe(self.explorer.push):
                added.append(self._step_us(seconds) - without)
            plain.append(without)
        self.explorer.keyframe()
        assert len(self.engine.live) == self.engine.limits.max_num_seqs, "some have ended: the steps are not alike"
        return {
            "us_a_step": statistics.median(plain),
            "us_of_the_views": statistics.median(added),
            "next_step": self.engine.next_step,
        }

    def _step_us(self, seconds: float) -> float:
        for _ in range(32):  # subscribing copies the pool, which leaves the processor's caches cold
            self.engine.step()
        steps, begin = 0, time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds:
            self.engine.step()
            steps += 1
        return (now - begin) / steps * 1e6


async def kernel_cost(num_blocks: int, *, running: int = 8, seconds: float = 0.5, pairs: int = 3) -> dict[str, Any]:
    """``Steps.costs`` in a kernel of its own, and what its page got."""
    async with notebook() as cells:
        page = PageStandIn(cells.connection_file)
        page.start()
        try:
            await cells.run(SETUP)
            await cells.run(MEASURE.format(blocks=num_blocks, running=running))
            before = len(page.messages)
            told: dict[str, Any] = await cells.run(f"print(json.dumps(steps.costs({seconds}, {pairs})))")
            await cells.rest(3.0)
        finally:
            page.close()
    frames = [message.size for message in page.messages if message.kind == "frame"]
    return told | counted(page.messages[before:]) | {"shown": page.step, "frame_bytes": max(frames)}
