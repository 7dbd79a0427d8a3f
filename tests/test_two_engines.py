"""Two engines in one process, a step of one or the other: each does what it does alone, to the last record."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.drive import Workload, drive, run_interleaved, run_workload
from tests.fakes import check_invariants, toy_engine, unconstrained
from tests.faults import KINDS, Faults
from tests.workloads import make_workload

LIMITS: tuple[dict[str, Any], ...] = (
    {"num_blocks": 9, "block_size": 2, "policy": "prefill_first", "max_num_batched_tokens": 7},
    {"num_blocks": 6, "block_size": 3, "policy": "mixed", "eviction": "lfu", "prefix_hash": "sha256"},
)


def without_times(items: list[Snapshot | StepRecord]) -> list[Any]:
    """Records as plain data, without what a clock put in them."""
    plain = msgspec.to_builtins(items)
    for item in plain:
        item.pop("time")
        if "committed" in item:
            item["before"]["added"].pop("arrival")
            for name in ("plan_ns", "run_ns", "commit_ns"):
                item["committed"].pop(name)
        else:
            item["sequences"].pop("arrival")
    return plain  # type: ignore[no-any-return]


class Life:
    """An engine that is told what it does by a plan: the same ids in both, other prompts and lengths."""

    def __init__(self, which: int) -> None:
        self.engine: Engine = toy_engine(**LIMITS[which])
        self.items: list[Snapshot | StepRecord] = []
        self.seqs: dict[str, Sequence] = {}
        self.which = which
        self.engine.subscribe(self.items.append)

    def run(self) -> Any:
        """A generator, so that somebody else can be run between two steps."""
        prompts = [[self.which, 1, 2, 3, 4, 5, index % 2] for index in range(6)]
        for step in range(200):
            if prompts and step % 2 == 0:
                name, params = f"r{len(prompts)}", SamplingParams(max_tokens=4 + len(prompts), n=1 + step % 4 // 2)
                for seq in self.engine.add_request(prompts.pop(), params, request_id=name).samples:
                    self.seqs[seq.request_id] = seq
            if step == 9:
                self.engine.abort("r4")
            self.engine.plan()
            self.engine.step()
            check_invariants(self.engine)
            if not prompts and not self.engine.has_unfinished:
                return
            yield

    def check(self) -> None:
        first, *records = self.items
        assert isinstance(first, Snapshot)
        state = State(first)
        for record in records:
            assert isinstance(record, StepRecord)
            state.apply(record)
        assert state.snapshot().same_state(self.engine.snapshot())
        for seq in self.seqs.values():
            if seq.sample_index == 0 and seq.finish_reason != "abort":
                assert seq.completion_token_ids == unconstrained(seq.prompt_token_ids, seq.sampling_params.max_tokens)


@pytest.mark.parametrize("seed", range(8))
def test_each_does_what_it_does_alone(seed: int) -> None:
    alone = [Life(0), Life(1)]
    for life in alone:
        for _ in life.run():
            pass
    together, rng = [Life(0), Life(1)], random.Random(seed)
    runs = [life.run() for life in together]
    while runs:
        one = rng.choice(runs)
        if next(one, "end") == "end":
            runs.remove(one)
    for ours, theirs in zip(together, alone, strict=True):
        ours.check()
        assert list(ours.seqs) == list(theirs.seqs)
        assert [seq.token_ids for seq in ours.seqs.values()] == [seq.token_ids for seq in theirs.seqs.values()]
        assert without_times(ours.items) == without_times(theirs.items)
    assert any(seq.num_preemptions for life in together for seq in life.seqs.values())


def watched(seed: int, faults: bool) -> tuple[Workload, list[Snapshot | StepRecord]]:
    work = make_workload(seed, faults=Faults(seed, KINDS[:2] if faults else ()))
    items: list[Snapshot | StepRecord] = []
    work.engine.subscribe(items.append)
    return work, items


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_workloads_with_the_same_ids(seed: int, faults: bool) -> None:
    """Every policy, eviction order and hash beside every other, and one that fails beside one that goes on."""
    alone = [watched(each, faults) for each in (seed, seed + 500)]
    together = [watched(each, faults) for each in (seed, seed + 500)]
    figures = [run_workload(work) for work, _ in alone]
    assert run_interleaved([work for work, _ in together], random.Random(seed)) == figures
    for (ours, items), (theirs, others) in zip(together, alone, strict=True):
        assert [seq.token_ids for _, seq in ours.started] == [seq.token_ids for _, seq in theirs.started]
        assert without_times(items) == without_times(others)


def test_an_engine_that_stands_still_in_the_middle_of_a_workload_harms_nobody() -> None:
    resting = make_workload(3)
    rest = drive(resting)
    next(rest)
    run_workload(make_workload(4))
    check_invariants(resting.engine)
    for _ in rest:
        pass
