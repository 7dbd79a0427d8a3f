"""The benchmark's requests inside a kernel: by ``generate`` without views, and by a live run with all of them open.

What tests/kernel_views.py runs in its cells. The two ways have an engine each, so that both get the same requests in a
pass and no prefix cache knows them. Each way ends with the texts of all its requests.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from nvexplore.bench.serving import IDS, TEMPERATURE
from nvexplore.bench.serving_workloads import Sizes, workloads
from nvexplore.checkpoint import resolve_checkpoint
from nvexplore.engine.events import StepRecord
from nvexplore.llm import LLM
from nvexplore.model_config import ModelConfig
from nvexplore.notebook.display import MODULES, VIEWS
from nvexplore.notebook.session import Session
from nvexplore.sampling_params import SamplingParams

Figures = dict[str, Any]
ALWAYS = ("schedule_view", "block_view")  # are in every dashboard
NEAR = 4  # so many steps before a step and after it say how long it should have taken


def slowest(records: list[StepRecord], count: int = 5) -> list[tuple[int, float, int]]:
    """(step, milliseconds, tokens) of what held up a run most: from commit to commit, beyond the median nearby."""
    times = [1e3 * (after.time - before.time) for before, after in pairwise(records)]
    usual = [statistics.median(times[max(0, at - NEAR) : at + NEAR + 1]) for at in range(len(times))]
    steps = zip(times, usual, records[1:], strict=True)
    beyond = [(round(took - most, 2), record.step, sum(record.planned.count)) for took, most, record in steps]
    return [(step, milliseconds, tokens) for milliseconds, step, tokens in sorted(beyond, reverse=True)[:count]]


class Asked:
    """A server that only notes what it is asked for."""

    name, load_seconds = "asked", 0.0

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.prompts: list[list[int]] = []
        self.max_tokens: list[int] = []

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        self.prompts, self.max_tokens = prompts, max_tokens
        return sum(max_tokens)

    def close(self) -> None:
        pass


class Turns:
    """Loads ``model`` twice. scale: of nano-vLLM's benchmark. memory: each engine's share of a GPU's."""

    def __init__(self, session: Session, model: str, *, scale: float, memory: float = 0.45) -> None:
        path = resolve_checkpoint(model)
        config = ModelConfig.from_path(path)
        sizes = Sizes(scale, min(IDS, config.vocab_size), config.max_positions)
        (self._serving,) = workloads(["throughput"], sizes)
        options: dict[str, Any] = {"max_model_len": self._serving.longest, "gpu_memory_utilization": memory}
        self.plain = LLM(path, **options)
        self.session = session
        self.watched = session.load(str(path), **options)
        self._told: Figures = {}
        self._first_step = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def device(self) -> str:
        """What computes."""
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"

    def open_views(self, display: Callable[[Any], object]) -> list[str]:
        """Show the dashboard with all its panels, and each view by itself."""
        self.session.explorer.panels = [file for file in MODULES.values() if file not in ALWAYS]
        for name in VIEWS:
            display(self.session.watch(name))
        return list(VIEWS)

    def blocking(self, seed: int) -> Figures:
        """Whole prompts by ``generate`` on the engine that nobody watches."""
        prompts, params = self._requests(seed)
        begin = time.perf_counter()
        outputs = self.plain.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - begin
        return {"tokens": sum(len(output.token_ids) for output in outputs), "seconds": took}

    def start(self, seed: int) -> None:
        """The same as a live run; the cell ends at once, and ``told`` has the figures when the run has ended."""
        prompts, params = self._requests(seed)
        self._told, self._first_step = {}, self.watched.engine.next_step
        begin = time.perf_counter()
        ids = [self.watched.add_request(*each).request_id for each in zip(prompts, params, strict=True)]
        added = time.perf_counter() - begin
        self.session.run_live()
        self._task = asyncio.create_task(self._watch(begin, added, set(ids)))

    def told(self) -> Figures:
        """What the last live run came to; empty while it goes on. Raises what ended it early.

        adding, ending: seconds until all requests were added, and from the last step's commit to the last text.
        """
        if self._task is not None and self._task.done():
            self._task.result()
        return self._told

    async def _watch(self, begin: float, added: float, ids: set[str]) -> None:
        await self.session.runner.done()
        requests = [request for request in self.session.requests if request.request_id in ids]
        for request in requests:
            _ = request.text  # generate() makes it too
        took = time.perf_counter() - begin
        now = self.watched.engine.snapshot().time
        assert len(requests) == len(ids)
        records = [record for record in self.session.recorder.records if record.step >= self._first_step]
        self._told = {
            "tokens": sum(len(request.token_ids) for request in requests),
            "seconds": took,
            "adding": added,
            "ending": now - records[-1].time,
            "slowest": slowest(records),
            "last_step": self.watched.engine.next_step - 1,
        }

    def _requests(self, seed: int) -> tuple[list[list[int]], list[SamplingParams]]:
        asked = Asked()
        self._serving.measure(asked, seed)
        return asked.prompts, [
            SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=count) for count in asked.max_tokens
        ]
