"""Ctrl-C or an error anywhere: the step is undone, the next goes on, no token is lost or repeated, records fold."""

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from math import gcd

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.drive import quiet, run_workload
from tests.fakes import check_invariants, check_logprobs, free_run, run_to_end, toy_engine
from tests.faults import KINDS, Faults, Injected, InterruptAt
from tests.prove import Figures, Proof, combine
from tests.workloads import make_workload

SCENARIO = [
    ([1, 2, 3, 4, 5, 6, 7, 9], SamplingParams(max_tokens=5, prompt_logprobs=1)),
    ([1, 2, 3, 4, 5, 6, 7, 8, 8], SamplingParams(max_tokens=4, n=2)),
    ([5, 5], SamplingParams(max_tokens=9, logprobs=1)),
    ([1, 2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=3, cache_salt="a")),
    ([1, 2, 3, 4, 5, 6, 7, 7], SamplingParams(max_tokens=2, cache_salt="a")),
]
POLICIES = ("prefill_first", "mixed")
# What ends the step: an interrupt, an error, or an interrupt while it recovers from an error of the runner.
WAYS: dict[str, type[BaseException]] = {
    "interrupt": KeyboardInterrupt,
    "error": Injected,
    "recovery": KeyboardInterrupt,
}
LONGEST = 1_200  # calls and returns in the longest step of the scenario (about 1,090), and some for other Pythons
STRIDE = 37  # has no factor in common with LONGEST: the first few seeds are spread over the whole step
assert gcd(LONGEST, STRIDE) == 1


class Run:
    """The scenario: chunks, prefix hits with and without a salt, evictions and preemptions in a few steps."""

    def __init__(self, policy: str) -> None:
        self.at_end: Callable[[], None] | None = None
        self.items: list[Snapshot | StepRecord] = []
        self.engine: Engine = toy_engine(
            9, 2, max_num_batched_tokens=7, max_num_seqs=4, policy=policy, interrupt=self._runner
        )
        self.subscription = self.engine.subscribe(self.items.append)
        self.seqs: list[Sequence] = []
        for prompt, params in SCENARIO:
            self.seqs += self.engine.add_request(prompt, params).samples

    def _runner(self, stage: str) -> None:
        if stage == "end" and self.at_end is not None:
            at_end, self.at_end = self.at_end, None
            at_end()

    def step(self, way: str, nth: int) -> InterruptAt:
        """A step that ends at its ``nth`` boundary, or (0) does not; returns what has counted the boundaries."""
        injector = InterruptAt(nth, WAYS[way])

        def fail() -> None:
            sys.setprofile(injector)
            raise Injected("the runner")

        try:
            with injector:
                if way == "recovery":
                    sys.setprofile(None)
                    self.at_end = fail
                self.engine.step()
        except (KeyboardInterrupt, Injected):
            pass
        return injector

    def check(self, place: str) -> None:
        """Run to the end; every output is the toy model's, and the records fold as far as they were told."""
        engine = self.engine
        engine.snapshot()  # any call makes the engine whole again
        check_invariants(engine)
        while engine.has_unfinished:
            engine.step()
            check_invariants(engine)
        first, *records = self.items
        assert isinstance(first, Snapshot)
        state = State(first)
        for record in records:
            assert isinstance(record, StepRecord)
            state.apply(record)
        # An error on the way to a watcher is taken for the watcher's own.
        assert self.subscription.is_active or isinstance(self.subscription.error, Injected), place
        assert not self.subscription.is_active or state.snapshot().same_state(engine.snapshot()), place
        for seq in self.seqs:
            expected, _ = free_run(seq.prompt_token_ids, seq.sampling_params, sample_index=seq.sample_index)
            assert seq.completion_token_ids == expected, place
            check_logprobs(seq)


@cache
def boundaries(policy: str, way: str) -> list[int]:
    """How many each step of the scenario has."""
    counts = []
    for step in range(run_to_end(Run(policy).engine)):
        run = Run(policy)
        for _ in range(step):
            run.engine.step()
        counts.append(run.step(way, 0).seen)
    assert max(counts) <= LONGEST, f"a step with {max(counts)} boundaries: LONGEST must be raised"
    return counts


def interrupt_once(policy: str, way: str, step: int, nth: int) -> bool:
    """Whether step ``step`` was ended at its ``nth`` boundary (Python swallows an error in a generator it closes)."""
    run = Run(policy)
    for _ in range(step):
        run.engine.step()
    place = run.step(way, nth).place
    run.check(f"{policy}, {way} in step {step}: {place}")
    return bool(place)


def run_chunk(seeds: range) -> Figures:
    """Seed s ends every step of the scenario at its own boundary, and runs workload s with all kinds of faults."""
    parts: list[Figures] = []
    for seed in seeds:
        nth, tried = seed * STRIDE % LONGEST + 1, Counter[str]()
        with quiet():
            for policy in POLICIES:
                for way in WAYS:
                    for step, count in enumerate(boundaries(policy, way)):
                        if nth <= count:
                            tried[f"{way}_boundaries"] += interrupt_once(policy, way, step, nth)
                    tried[f"max_{way}_boundaries_of_a_step"] = max(boundaries(policy, way))
        parts.append({**tried, "workloads": 1, **run_workload(make_workload(seed, faults=Faults(seed, KINDS)))})
    return combine(parts)


def check(figures: Figures) -> None:
    """Every boundary has been tried; Python may swallow a few errors (see ``interrupt_once``)."""
    for way in WAYS:
        tried, there = figures[f"{way}_boundaries"], sum(sum(boundaries(policy, way)) for policy in POLICIES)
        assert tried > 0.95 * there, f"{way}: {tried} of {there} boundaries"  # type: ignore[operator]


PROOF = Proof(
    "interrupts",
    "Ctrl-C or an error at any call boundary of a step",
    LONGEST,
    10,
    run_chunk,
    chunk=25,
    check=check,
    is_parallel=True,
)
