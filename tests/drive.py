"""Runs a workload to its end, whatever goes wrong, and compares every output with the toy model alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from unittest import mock

from nvexplore.engine import subscription
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.output import StepOutput
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import FoldError, State
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, check_logprobs, free_run
from tests.faults import Faults, Injected

T = TypeVar("T")
MOST_STEPS = 20_000


@dataclass
class Workload:
    """An engine with a small pool, requests to add while it runs, and what has come of them so far.

    started: each sequence and its prompt. told: the tokens that the steps' outputs told of, by seq_id.
    finished: how often an output told that a sequence ended. num_lost: outputs that an interrupt took, after the step.
    """

    seed: int
    rng: random.Random
    engine: Engine
    requests: list[tuple[list[int], SamplingParams]]
    eos: frozenset[int]
    broken_every: int
    faults: Faults
    started: list[tuple[list[int], Sequence]] = field(default_factory=list)
    told: dict[int, list[int]] = field(default_factory=dict)
    finished: Counter[int] = field(default_factory=Counter)
    num_lost: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def attempt(self, do: Callable[[], T]) -> T | None:
        """What ``do`` returns, or None after a fault of ours, which must leave the engine whole."""
        result = self.faults.call(do)
        if result is None:
            self.engine.snapshot()  # any call makes it whole again
            check_invariants(self.engine)
        return result

    def add(self) -> None:
        """Add the next request; after an interrupt it is there wholly or not at all, and then stays to be added."""
        prompt, params = self.requests[-1]
        name = f"r{len(self.started)}" if self.faults.kinds else None
        priority = self.rng.choice([0, 0, 0, -1, 2])
        first = self.attempt(partial(self.engine.add_request, prompt, params, request_id=name, priority=priority))
        if first is None and name is not None:
            first = self.engine.live.get(name)
        if first is not None:
            self.requests.pop()
            assert len(first.samples) == params.n
            self.started += [(prompt, seq) for seq in first.samples]
            self.told.update({seq.seq_id: [] for seq in first.samples})

    def plan(self) -> None:
        before = self.engine.snapshot()
        self.attempt(self.engine.plan)
        assert self.engine.snapshot().same_state(before), "plan() changed the engine"

    def refuse(self) -> None:
        """A request that can never run leaves no trace."""
        before = self.engine.snapshot()
        try:
            self.engine.add_request([1, 2, -3])
        except ValueError:
            self.counts["refused"] += 1
        assert self.engine.snapshot().same_state(before), "a refused request changed the engine"

    def step(self) -> bool:
        """Whether a step ran to its end. One that did not may stand all the same, but never by half."""
        number, lengths = self.engine.next_step, [seq.num_tokens for _, seq in self.started]
        output = self.attempt(self.engine.step)
        self.counts["steps"] += 1
        if output is not None:
            self._keep(output)
            return True
        self.counts["failed_steps"] += 1
        if self.engine.next_step == number:
            assert lengths == [seq.num_tokens for _, seq in self.started], "a step that was undone left tokens"
        else:
            self.num_lost += 1
            self.told = {seq.seq_id: seq.completion_token_ids for _, seq in self.started}
        return False

    def settles(self) -> bool:
        """Whether the engine may be looked at now, with nothing in the air."""
        return True

    def _keep(self, output: StepOutput) -> None:
        for seq_id, token_id in zip(output.seq_ids, output.token_ids, strict=True):
            self.told[seq_id].append(token_id)
        self.finished.update(seq.seq_id for seq in output.finished)


class Watcher:
    """Folds what the engine tells, and fails where the faults say so; then it is detached, and attached anew."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._state: State | None = None
        self._subscription: subscription.Subscription | None = None

    def __call__(self, item: Snapshot | StepRecord) -> None:
        self._work.faults.watcher(is_record=isinstance(item, StepRecord))
        if isinstance(item, Snapshot):
            self._state = State(item)
            return
        assert self._state is not None, "a record before the snapshot"
        try:
            self._state.apply(item)
        except FoldError as error:  # the engine would answer it with a snapshot
            raise AssertionError("the records have a gap") from error

    def attach(self) -> None:
        if self._subscription is not None and not self._subscription.is_active:
            assert isinstance(self._subscription.error, Injected), self._subscription.error
            self._subscription = None
        if self._subscription is None:
            self._work.engine._hub.subscriptions.clear()  # one that an interrupt left attached has no handle
            self._subscription = self._work.attempt(partial(self._work.engine.subscribe, self))

    def compare(self) -> None:
        """After a step that ran to its end."""
        if self._subscription is not None and self._subscription.is_active:
            assert self._state is not None
            assert self._state.snapshot().same_state(self._work.engine.snapshot()), "folded records differ"
            self._work.counts["folded_steps"] += 1


def drive(work: Workload, after_step: Callable[[Engine], None] = check_invariants) -> Iterator[None]:
    """Adds, aborts, cache resets and refusals between steps, to the end; yields after each step."""
    rng, engine, counts = work.rng, work.engine, work.counts
    watcher = Watcher(work) if "watcher" in work.faults.kinds else None
    while work.requests or engine.live or engine._undo:  # what is half undone says nothing
        while work.requests and rng.random() < 0.5:
            work.add()
        if rng.random() < 0.05 and engine.live:
            work.attempt(partial(engine.abort, rng.choice(list(engine.live))))
        if rng.random() < 0.02:
            work.attempt(engine.reset_prefix_cache)
            counts["cache_resets"] += 1
        if rng.random() < 0.1:
            work.plan()
        if rng.random() < 0.02:
            work.refuse()
        if watcher is not None:
            watcher.attach()
        is_done = work.step()
        if work.settles():
            after_step(engine)
            # What a launch spoilt that was undone while another step was in the air is told with the next step.
            if watcher is not None and is_done and not engine._log.events:
                watcher.compare()
        hits = [seq for seq in engine.live.values() if seq.num_cached_tokens]
        counts["rows_with_cache_hits"] += len(hits)
        counts["salted_rows_with_hits"] += sum(seq.sampling_params.cache_salt is not None for seq in hits)
        assert counts["steps"] < MOST_STEPS, "no end"
        yield
    compare(work)


def compare(work: Workload) -> None:
    """Every output of a workload that has ended with what the toy model says alone."""
    for prompt, seq in work.started:
        params, index = seq.sampling_params, seq.sample_index
        expected, reason = free_run(prompt, params, work.eos, sample_index=index, broken_every=work.broken_every)
        got = seq.completion_token_ids
        if seq.finish_reason == "abort":
            assert got == expected[: len(got)], f"request {seq.request_id} before its abort"
        else:
            assert got == expected, f"request {seq.request_id}"
            assert seq.finish_reason == reason
            assert seq.stop_reason == (got[-1] if reason == "stop" else None)
            assert (seq.error is not None) == (reason == "error")
        assert got == work.told[seq.seq_id], f"what the steps told of request {seq.request_id}"
        check_logprobs(seq)
    assert not work.engine.live
    check_invariants(work.engine)


def figures(work: Workload) -> dict[str, int]:
    """What a workload that has ended exercised."""
    seqs, limits, blocks = [seq for _, seq in work.started], work.engine.limits, work.engine.blocks
    return {
        "steps": work.counts["steps"],
        "preemptions": sum(seq.num_preemptions for seq in seqs),
        "aborted": sum(seq.finish_reason == "abort" for seq in seqs),
        "further_samples": sum(seq.sample_index > 0 for seq in seqs),
        "broken_rows": sum(seq.error is not None for seq in seqs),
        "prioritised": sum(seq.priority != 0 for seq in seqs),
        "salted": sum(seq.sampling_params.cache_salt is not None for seq in seqs),
        "evicted_prefixes": len(blocks.cache._evicted),
        f"policy_{work.engine.policy.name}": 1,
        f"eviction_{blocks.eviction.name}": 1,
        f"hash_{limits.prefix_hash}": 1,
        **work.counts,
        **work.faults.counts,
    }


@contextmanager
def quiet() -> Iterator[None]:
    """The engine logs a watcher that fails, with its traceback; here most of them are meant to."""
    with mock.patch.object(subscription.logger, "disabled", True):
        yield


def run_workload(work: Workload, after_step: Callable[[Engine], None] = check_invariants) -> dict[str, int]:
    """Run to the end, compare, return figures; ``after_step`` runs after every step."""
    with quiet():
        for _ in drive(work, after_step):
            pass
    return figures(work)


def run_interleaved(works: list[Workload], rng: random.Random) -> list[dict[str, int]]:
    """The same for several at once, a step of one or the other at random."""
    with quiet():
        drives = [drive(work) for work in works]
        while drives:
            one = rng.choice(drives)
            if next(one, "end") == "end":
                drives.remove(one)
    return [figures(work) for work in works]
