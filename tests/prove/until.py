"""A run stops at exactly the steps that the records of the same run, when nothing stops it, name: blocking and live."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.frames import prefix_hits, steps
from nvexplore.notebook.session import Session
from tests.drive import Workload
from tests.notebook_fakes import FakeLLM
from tests.prove import Figures, Proof, combine
from tests.workloads import make_workload

EXPRESSIONS = (
    "num_waiting > 1 and num_free_blocks < 4",
    "num_prefill_tokens > 0 and num_running == 2",
    "num_sampled_tokens < num_seqs",
    "num_added + num_finished > 1",
)
MISSES = ("unseen", "differs", "evicted", "in_flight")
EVENTS = ("preempt", "miss", "hit", "finish", "evict", "graph-miss")
WHATS = (*EVENTS, "step", "expression")
RUNS = 280  # of each; in some of them it does not come up, and then nothing must stop
LEAST = 100  # in which it must come up for the claim to mean something
MOST_STOPS = 40  # of a run; the rest is run to the end, which is much quicker


class Case:
    """One workload over an engine of its own, whose requests arrive at steps that the seed names."""

    def __init__(self, seed: int) -> None:
        self.work: Workload = make_workload(seed)
        rng, engine = random.Random(f"until {seed}"), self.work.engine
        self.arrivals = sorted((rng.choice([0, 0, rng.randint(1, 30)]), i) for i in range(len(self.work.requests)))
        graphs: list[str | int] = ["cpu", "enforce_eager", 1, 1, 1, 2]
        engine.runner.dispatch = partial(dispatch, rng.choice(graphs))  # type: ignore[method-assign]
        self.evicting: list[int] = []
        take, links = engine.blocks._take, engine.blocks.cache.links

        def noted(seq: Sequence, blocks: list[int]) -> None:
            if any(links[block] is not None for block in blocks):
                self.evicting.append(engine.next_step)
            take(seq, blocks)

        engine.blocks._take = noted  # type: ignore[method-assign]
        engine.subscribe(self.push)
        self.session = Session()
        llm: Any = FakeLLM()
        llm._engine = engine
        FakeLLM.made.clear()
        self.session.attach(llm)

    def push(self, item: Snapshot | StepRecord) -> None:
        """Between two steps: add whoever arrives now, and somebody in any case when there is nothing to do."""
        engine = self.work.engine
        while self.arrivals and (self.arrivals[0][0] <= item.step or not engine.has_unfinished):
            _, index = self.arrivals.pop(0)
            prompt, params = self.work.requests[index]
            engine.add_request(prompt, params, priority=index % 3 - 1)

    @property
    def planned(self) -> list[tuple[list[int], list[int]]]:
        return [(record.planned.seq_id, record.planned.context_len) for record in self.session.recorder]


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
        return sorted(set(case.evicting))
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


def run_case(case: Case, what: str, expected: list[int], way: Callable[[Session, str | None], str | None]) -> int:
    """Run from stop to stop; returns how many stops there were."""
    engine, session = case.work.engine, case.session
    for step in expected[:MOST_STOPS]:
        found = way(session, what)
        assert found is not None and found.startswith(f"step {step}: "), f"{what}: stopped at {found}, not {step}"
        assert engine.next_step == step + 1 == len(session.recorder), f"{what}: {engine.next_step} steps were made"
    if len(expected) <= MOST_STOPS and "step ==" not in what:
        assert way(session, what) is None, f"{what}: more stops than {expected}"
    session.stops.breakpoints = []
    assert way(session, None) is None
    return len(expected[:MOST_STOPS])


def blocking(session: Session, what: str | None) -> str | None:
    return session.run(until=what).found


def live(session: Session, what: str | None) -> str | None:
    async def run() -> str | None:
        runner = session.run_live(until=what)
        await runner.done()
        return runner.found

    return asyncio.run(run())


def ticked(session: Session, what: str | None) -> str | None:
    session.stops.breakpoints = [] if what is None else what.split(",")
    return session.run().found


def run_one(seed: int) -> Figures:
    """Two runs of one workload: one that nothing stops, and one that goes from stop to stop."""
    kind, number = WHATS[seed % len(WHATS)], seed // len(WHATS)
    free, stopped = Case(number), Case(number)
    free.session.run()
    rng = random.Random(f"what {seed}")
    ways = [blocking, live]
    what = kind
    if kind == "step":
        what = f"step == {rng.randrange(len(free.session.recorder))}"
    elif kind == "expression":
        what = rng.choice(EXPRESSIONS)
    else:
        ways.append(ticked)
    expected = scan(free, what)
    if rng.random() < 0.2 and kind in EVENTS:  # two at once
        other = rng.choice(EVENTS)
        expected = sorted({*expected, *scan(free, other)})
        what = f"{kind},{other}"
    num_stops = run_case(stopped, what, expected, ways[number % len(ways)])
    assert stopped.planned == free.planned, "the stops changed what was run"
    return {"runs": 1, f"with_{kind}": int(num_stops > 0), "stops": num_stops, ways[number % len(ways)].__name__: 1}


def run_chunk(seeds: range) -> Figures:
    """Seed s looks for event s modulo their number."""
    return combine(run_one(seed) for seed in seeds)


def check(figures: Figures) -> None:
    """Everything came up often enough."""
    rare = {f"with_{kind}": figures.get(f"with_{kind}", 0) for kind in WHATS}
    rare = {name: count for name, count in rare.items() if count < LEAST}  # type: ignore[operator]
    assert not rare, f"too rare to prove anything: {rare}"


PROOF = Proof(
    "until",
    "Runs stop at exactly the steps that the records of the same run name when nothing stops it",
    RUNS * len(WHATS),
    2 * len(WHATS),
    run_chunk,
    chunk=5 * len(WHATS),
    check=check,
    is_parallel=True,
)
