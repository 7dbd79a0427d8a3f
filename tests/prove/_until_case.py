"""A run that somebody wants to stop: a workload in a session, and what a scan of its finished records names."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.frames import prefix_hits, steps
from nvexplore.notebook.session import Session
from tests.drive import Workload
from tests.notebook_fakes import FakeLLM
from tests.workloads import make_workload

MISSES = ("unseen", "differs", "evicted", "orphaned", "in_flight")


class Case:
    """One workload over an engine of its own, whose requests arrive at steps that the seed names.

    then: what happens, once, when the records reach step ``at`` and the session has seen that record.
    """

    def __init__(self, seed: int, *, overlap: bool = False) -> None:
        self.work: Workload = make_workload(seed, overlap=overlap)
        rng, engine = random.Random(f"until {seed}"), self.work.engine
        self.arrivals = sorted((rng.choice([0, 0, rng.randint(1, 30)]), i) for i in range(len(self.work.requests)))
        graphs: list[str | int] = ["cpu", "enforce_eager", 1, 1, 1, 2]
        engine.runner.dispatch = partial(dispatch, rng.choice(graphs))  # type: ignore[method-assign]
        self.started: dict[int, Sequence] = {}
        self.at, self.then = 0, nothing
        self.evicting: set[int] = set()
        take, schedule, links = engine.blocks._take, engine.scheduler.schedule, engine.blocks.cache.links

        def noted(seq: Sequence, blocks: list[int]) -> None:
            if any(links[block] is not None for block in blocks):
                self.evicting.add(engine.next_step)
            take(seq, blocks)

        def anew(step: int, **how: bool) -> ScheduledBatch:
            self.evicting.discard(step)  # of a plan ahead that was given up
            return schedule(step, **how)

        engine.blocks._take, engine.scheduler.schedule = noted, anew  # type: ignore[method-assign]
        engine.subscribe(self.push)
        self.session = Session()
        llm: Any = FakeLLM()
        llm._engine = engine
        FakeLLM.made.clear()
        self.session.attach(llm)
        engine.subscribe(self.act)

    def push(self, item: Snapshot | StepRecord) -> None:
        """Between two steps: add whoever arrives now, and somebody in any case when there is nothing to do."""
        engine = self.work.engine
        while self.arrivals and (self.arrivals[0][0] <= item.step or not engine.has_unfinished):
            _, index = self.arrivals.pop(0)
            prompt, params = self.work.requests[index]
            self.started[index] = engine.add_request(prompt, params, priority=index % 3 - 1)

    def act(self, item: Snapshot | StepRecord) -> None:
        if item.step >= self.at:
            then, self.then = self.then, nothing
            then()

    @property
    def outputs(self) -> dict[int, list[list[int]]]:
        return {index: [seq.completion_token_ids for seq in first.samples] for index, first in self.started.items()}

    @property
    def planned(self) -> list[tuple[list[int], list[int]]]:
        return [(record.planned.seq_id, record.planned.context_len) for record in self.session.recorder]


def nothing() -> None:
    pass


def dispatch(graphs: str | int, batch: ScheduledBatch) -> Dispatch:
    """No graphs for a reason that holds for all steps, or graphs for so many rows."""
    if any(batch.is_prefill):
        return Dispatch(eager_reason="prefill")
    if isinstance(graphs, str):
        return Dispatch(eager_reason=graphs)
    if any(seq.logprobs is not None for seq in batch.seqs):
        return Dispatch(eager_reason="log probabilities")
    if len(batch.seqs) > graphs:
        return Dispatch(eager_reason=f"more than {graphs} rows")
    return Dispatch(graph_size=graphs, padding=graphs - len(batch.seqs))


def scan(case: Case, what: str) -> list[int]:
    """The steps that a finished run names, by other ways than the records' reader that is to be proved."""
    if what == "evict":
        return sorted(case.evicting)
    recorder = case.session.recorder
    if what in ("hit", "miss"):
        admissions = prefix_hits(recorder)
        rows = admissions["num_hit_tokens"] > 0 if what == "hit" else admissions["miss_cause"].isin(MISSES)
        return sorted(set(admissions["step"][rows]))
    query = {
        "preempt": "num_preempted > 0",
        "finish": "num_finished > 0",
        "graph-miss": "num_decode_tokens > 0 and num_prefill_tokens == 0 and "
        "eager_reason in ('log probabilities', 'more than 1 rows', 'more than 2 rows')",
    }.get(what, what)
    return list(steps(recorder).query(query, engine="python")["step"])
