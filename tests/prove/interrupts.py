"""Ctrl-C or an error anywhere: the step is undone, the next goes on, no token is lost or repeated, records fold."""

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from math import gcd
from typing import NamedTuple

from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.drive import quiet, run_workload
from tests.fakes import ToyRunner, check_invariants, check_logprobs, free_run, toy_engine, unconstrained
from tests.faults import KINDS, Faults, Injected, InterruptAt
from tests.follow import Follower
from tests.prove import Figures, Proof, combine
from tests.toy_device import ToyDevice
from tests.workloads import make_workload, overlaps

SCENARIO = [
    ([1, 2, 3, 4, 5, 6, 7, 9], SamplingParams(max_tokens=5, prompt_logprobs=1)),
    ([1, 2, 3, 4, 5, 6, 7, 8, 8], SamplingParams(max_tokens=4, n=2)),
    ([5, 5], SamplingParams(max_tokens=9, logprobs=1)),
    ([1, 2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=3, cache_salt="a")),
    ([1, 2, 3, 4, 5, 6, 7, 7], SamplingParams(max_tokens=2, cache_salt="a")),
]
# Where steps overlap: one ends while it has a row in the next step, and only the last one needs the host.
OVERLAPPED = [
    ([1, 2, 3, 4, 5, 6, 7, 9], SamplingParams(max_tokens=5)),
    SCENARIO[1],
    ([5, 5], SamplingParams(max_tokens=9, stop_token_ids=unconstrained([5, 5], 3)[2:])),
    SCENARIO[3],
    ([1, 2, 3, 4, 5, 6, 7, 7], SamplingParams(max_tokens=2, cache_salt="a", logprobs=1)),
]
# What ends the call, by whether steps overlap: an interrupt, an error, or an interrupt while it recovers from an error
# of the runner, which fails at the end of what is named. A landing that fails gives up all that is in the air.
WAYS: dict[bool, dict[str, tuple[type[BaseException], str]]] = {
    False: {"interrupt": (KeyboardInterrupt, ""), "error": (Injected, ""), "recovery": (KeyboardInterrupt, "run")},
    True: {
        "overlapped_interrupt": (KeyboardInterrupt, ""),
        "overlapped_error": (Injected, ""),
        "overlapped_recovery": (KeyboardInterrupt, "launch"),
        "overlapped_giving_up": (KeyboardInterrupt, "wait"),
    },
}
LONGEST = 1_700  # calls and returns in the longest call of the scenarios, and some for other Pythons
STRIDE = 617  # has no factor in common with LONGEST: the first few seeds are spread over the whole step
assert gcd(LONGEST, STRIDE) == 1


class Case(NamedTuple):
    """A policy, whether steps overlap, and how a call is ended."""

    policy: str
    overlap: bool
    way: str


POLICIES = ("prefill_first", "mixed")
CASES = [Case(policy, overlap, way) for policy in POLICIES for overlap, ways in WAYS.items() for way in ways]


class Run:
    """The scenario: chunks, prefix hits with and without a salt, evictions and preemptions in a few steps."""

    def __init__(self, case: Case, num_before: int = 0) -> None:
        self._error, self._fails_in = WAYS[case.overlap][case.way]
        self._fail: Callable[[], None] | None = None
        self.engine: Engine = toy_engine(
            9,
            2,
            max_num_batched_tokens=7,
            max_num_seqs=4,
            policy=case.policy,
            interrupt=self._runner,
            make_runner=ToyDevice if case.overlap else ToyRunner,
            overlap=case.overlap,
        )
        self.follower = Follower()
        self.subscription = self.engine.subscribe(self.follower)
        self.seqs: list[Sequence] = []
        for prompt, params in OVERLAPPED if case.overlap else SCENARIO:
            self.seqs += self.engine.add_request(prompt, params).samples
        for _ in range(num_before):
            self.engine.advance()

    def _runner(self, stage: str) -> None:
        doing = getattr(self.engine.runner, "doing", "run")
        if stage == "end" and self._fail is not None and doing == self._fails_in:
            self._fail()

    def call(self, nth: int) -> InterruptAt:
        """A step that ends at its ``nth`` boundary, or (0) does not; returns what has counted the boundaries."""
        injector = InterruptAt(nth, self._error)

        def fail() -> None:
            self._fail = None
            sys.setprofile(injector)
            raise Injected("the runner")

        try:
            with injector:
                if self._fails_in:
                    sys.setprofile(None)
                    self._fail = fail
                self.engine.advance()
        except (KeyboardInterrupt, Injected):
            pass
        self._fail = None
        return injector

    def check(self, place: str, *, settles: bool) -> None:
        """Run to the end; every output is the toy model's, and the records fold as far as they were told.

        settles: look at the engine at once, and wait for what is in the air; if not, the next step finds it as it is.
        """
        engine, overlap = self.engine, isinstance(self.engine.runner, ToyDevice)
        if settles:
            engine.settle()  # any call makes the engine whole again
            check_invariants(engine)
        while engine.has_unfinished or engine._undo:
            engine.advance()
            if not overlap:
                check_invariants(engine)
        engine.step()  # which tells what no step has told yet
        check_invariants(engine)
        # An error on the way to a watcher is taken for the watcher's own.
        assert self.subscription.is_active or isinstance(self.subscription.error, Injected), place
        if self.subscription.is_active:
            self.follower.compare(engine)
        for seq in self.seqs:
            expected, _ = free_run(seq.prompt_token_ids, seq.sampling_params, sample_index=seq.sample_index)
            assert seq.completion_token_ids == expected, place
            assert not self.subscription.is_active or self.follower.told[seq.seq_id] == expected, place
            check_logprobs(seq)


@cache
def boundaries(case: Case) -> list[int]:
    """How many each step of the scenario has."""
    run, counts = Run(case), list[int]()
    while run.engine.has_unfinished:
        run.engine.advance()
        counts.append(Run(case, len(counts)).call(0).seen)
    late = sum(sum(record.planned.samples) - len(record.committed.token_id) for record in run.follower.records)
    assert bool(late) == case.overlap, "rows that came too late"
    assert max(counts) <= LONGEST, f"a step with {max(counts)} boundaries: LONGEST must be raised"
    return counts


def interrupt_once(case: Case, step: int, nth: int) -> bool:
    """Whether step ``step`` was ended at its ``nth`` boundary (Python swallows an error in a generator it closes)."""
    run = Run(case, step)
    place = run.call(nth).place
    run.check(f"{case}, step {step}: {place}", settles=nth % 2 == 0 or not case.overlap)
    return bool(place)


def run_chunk(seeds: range) -> Figures:
    """Seed s ends every step of the scenarios at its own boundary, and runs workload s with all kinds of faults."""
    parts: list[Figures] = []
    for seed in seeds:
        nth, tried = seed * STRIDE % LONGEST + 1, Counter[str]()
        with quiet():
            for case in CASES:
                for step, count in enumerate(boundaries(case)):
                    if nth <= count:
                        tried[f"{case.way}_boundaries"] += interrupt_once(case, step, nth)
                tried[f"max_{case.way}_boundaries_of_a_step"] = max(boundaries(case))
        work = make_workload(seed, faults=Faults(seed, KINDS), overlap=overlaps(seed))
        parts.append({**tried, "workloads": 1, **run_workload(work)})
    return combine(parts)


def check(figures: Figures) -> None:
    """Every boundary has been tried; Python may swallow a few errors (see ``interrupt_once``)."""
    there = Counter[str]()
    for case in CASES:
        there[case.way] += sum(boundaries(case))
    for way, count in there.items():
        tried = figures[f"{way}_boundaries"]
        assert tried > 0.95 * count, f"{way}: {tried} of {count} boundaries"  # type: ignore[operator]


PROOF = Proof(
    "interrupts",
    "Ctrl-C or an error at any call boundary of a step",
    LONGEST,
    8,
    run_chunk,
    chunk=25,
    check=check,
    is_parallel=True,
)
