"""A run stops at exactly the steps that a scan of the finished records names: blocking, live, and overlapped.

Where every step is single, the records are those of a run that nothing stops. Where steps overlap, a run that stops
makes other steps (it knows that a request has ended before it plans the next), so the records are its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from nvexplore.notebook.session import Session
from tests.prove import Figures, Proof, combine
from tests.prove._until_case import Case, nothing, scan

EXPRESSIONS = (
    "num_waiting > 1 and num_free_blocks < 4",
    "num_prefill_tokens > 0 and num_running == 2",
    "num_sampled_tokens < num_seqs",
    "num_added + num_finished > 1",
)
EVENTS = ("preempt", "miss", "hit", "finish", "evict", "graph-miss")
WHATS = (*EVENTS, "step", "expression")
RUNS = 640  # of each, in every other of which steps overlap; where it does not come up, nothing must stop
LEAST = 100  # of either kind, in which it must come up for the claim to mean something
MOST_STOPS = 40  # of a run; the rest is run to the end, which is much quicker


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


class Asked(NamedTuple):
    """Somebody wanted a stop: the first step to look at, and what was found; whether a step was in the air then."""

    first: int
    found: str | None
    in_the_air: bool

    @property
    def last(self) -> int | None:
        return None if self.found is None else int(self.found.removeprefix("step ").partition(":")[0])


def paused(case: Case, what: str) -> Asked:
    """A run is paused, and the next one has a condition."""
    case.then = case.session.pause
    blocking(case.session, None)
    first = case.work.engine.next_step
    return Asked(first, (blocking, live)[first % 2](case.session, what), False)


def ticked_meanwhile(case: Case, what: str) -> Asked:
    """Boxes are ticked, on whatever thread, while a run goes on: they hold for the step in the air already."""
    session, seen = case.session, [case.work.engine.next_step + case.at + 1, 0]

    def tick() -> None:
        session.stops.breakpoints = what.split(",")
        seen[:] = len(session.recorder), len(case.work.engine._steps.flights)

    case.then = tick
    found = (blocking, live)[case.at % 2](session, None)
    return Asked(seen[0], found, bool(seen[1]))


def taken_over(case: Case, what: str) -> Asked:
    """A cell begins a run while a live one goes on: what that had begun is no step of this one."""
    return asyncio.run(meanwhile(case, lambda: case.work.engine.next_step, lambda: case.session.run(until=what)))


def turned_picky(case: Case, what: str) -> Asked:
    """A live run gets a condition while it goes on: what it has begun is looked at."""
    return asyncio.run(meanwhile(case, lambda: len(case.session.recorder), lambda: case.session.run_live(until=what)))


async def meanwhile(case: Case, first: Callable[[], int], ask: Callable[[], object]) -> Asked:
    """Ask when a live run has come as far as ``case.at``."""
    runner, reached = case.session.run_live(), asyncio.Event()
    runner.slice_s = 0  # one step a slice: the same happens however fast this machine is
    case.then = reached.set
    while runner.is_running and not reached.is_set():
        await asyncio.sleep(0)
    begun, in_the_air = first(), bool(case.work.engine._steps.flights)
    ask()
    await runner.done()
    return Asked(begun, runner.found, in_the_air)


def run_one(seed: int) -> Figures:
    kind, number = WHATS[seed % len(WHATS)], seed // len(WHATS)
    if number % 2:
        return run_overlapped(kind, number // 2)
    return run_single(kind, number // 2)


def events(kind: str, rng: random.Random) -> list[str]:
    """The event, and sometimes another beside it."""
    return [kind, rng.choice(EVENTS)] if rng.random() < 0.2 else [kind]


def run_single(kind: str, number: int) -> Figures:
    """Two runs of one workload: one that nothing stops, and one that goes from stop to stop."""
    free, stopped = Case(number), Case(number)
    free.session.run()
    rng = random.Random(f"{kind} {number}")
    ways = [blocking, live]
    whats = [kind]
    if kind == "step":
        whats = [f"step == {rng.randrange(len(free.session.recorder))}"]
    elif kind == "expression":
        whats = [rng.choice(EXPRESSIONS)]
    else:
        ways.append(ticked)
        whats = events(kind, rng)
    way = ways[number % len(ways)]
    expected = sorted({step for what in whats for step in scan(free, what)})
    num_stops = run_case(stopped, ",".join(whats), expected, way)
    assert stopped.planned == free.planned, "the stops changed what was run"
    return {"runs": 1, f"with_{kind}": int(num_stops > 0), "stops": num_stops, way.__name__: 1}


def run_overlapped(kind: str, number: int) -> Figures:
    """A run whose steps overlap until, somewhere in it, somebody wants it to stop; and so again and again."""
    case, rng = Case(number, overlap=True), random.Random(f"overlapped {kind} {number}")
    engine, recorder = case.work.engine, case.session.recorder
    ways = [paused, taken_over, turned_picky]
    whats = [kind]
    if kind == "expression":
        whats = [rng.choice(EXPRESSIONS)]
    elif kind != "step":
        ways.append(ticked_meanwhile)
        whats = events(kind, rng)
    figures: Counter[str] = Counter(overlapped_runs=1)
    asked: list[tuple[list[str], Asked]] = []
    while engine.has_unfinished and len(asked) < MOST_STOPS:
        case.at, way = engine.next_step + rng.randint(0, 6), rng.choice(ways)
        if kind == "step":
            whats = [f"step == {case.at + rng.randint(2, 9)}"]  # not one that is past by then
        begun = way(case, ",".join(whats))
        case.then, case.session.stops.breakpoints = nothing, []
        asked.append((whats, begun))
        figures[way.__name__] += 1
        figures["asked_in_the_air"] += begun.in_the_air
        if begun.found is not None:
            assert engine.next_step == len(recorder) and not engine._steps.flights, "steps were made after the stop"
            assert begun.found.startswith(f"step {recorder.last_step}: "), f"{begun.found} at {recorder.last_step}"
            figures["stops"] += 1
    assert blocking(case.session, None) is None
    for whats, begun in asked:
        marks = {step for what in whats for step in scan(case, what)}
        expected = min((step for step in marks if step >= begun.first), default=None)
        assert begun.last == expected, f"{whats} from step {begun.first} on: stopped at {begun.last}, not {expected}"
    free = Case(number, overlap=True)
    free.session.run()
    assert case.outputs == free.outputs, "the stops changed what was said"
    figures[f"overlapped_with_{kind}"] = int(figures["stops"] > 0)
    figures["steps_ahead"] = sum(record.planned.is_ahead for record in recorder)
    return dict(figures)


def run_chunk(seeds: range) -> Figures:
    """Seed s looks for event s modulo their number."""
    return combine(run_one(seed) for seed in seeds)


def check(figures: Figures) -> None:
    """Everything came up often enough."""
    rare = {name: figures.get(name, 0) for kind in WHATS for name in (f"with_{kind}", f"overlapped_with_{kind}")}
    rare = {name: count for name, count in rare.items() if count < LEAST}  # type: ignore[operator]
    assert not rare, f"too rare to prove anything: {rare}"


PROOF = Proof(
    "until",
    "Runs stop at exactly the steps that the records of the same run name when nothing stops it",
    RUNS * len(WHATS),
    4 * len(WHATS),
    run_chunk,
    chunk=5 * len(WHATS),
    check=check,
    is_parallel=True,
)
