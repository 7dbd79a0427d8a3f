"""The request log and a run's tally tell the truth even if Ctrl-C hits them in the middle of a record."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from nvexplore.engine.events import Preempted, Snapshot, StepRecord
from nvexplore.notebook.requests import RequestLog
from nvexplore.notebook.tally import Tally
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine

WATCHED = ("requests.py", "finished.py", "tally.py", "lifecycle.py")


def stream() -> list[Snapshot | StepRecord]:
    """A run with prefix hits, preemptions, aborts and late requests."""
    engine = toy_engine(8, 4, max_num_batched_tokens=8)
    items: list[Snapshot | StepRecord] = []
    engine.subscribe(items.append)
    for number in range(6):
        engine.add_request([1, 2, 3, 4, number], SamplingParams(max_tokens=14), request_id=f"r{number}")
    steps = 0
    while engine.has_unfinished:
        engine.step()
        steps += 1
        if steps == 9:
            engine.abort("r5")
            engine.add_request([1, 2, 3, 4, 5], SamplingParams(max_tokens=3), request_id="late")
    return items


def facts(log: RequestLog, tally: Tally) -> tuple[Any, ...]:
    known = [
        (r.request_id, r.status, r.token_ids, r.num_cached_tokens, r.num_preemptions, r.prompt_token_ids)
        for r in log.table
    ]
    sums = {name: value for name, value in vars(tally).items() if name != "last"}
    return known, sums, tally.last_step


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line that runs in the watched files."""

    def __init__(self, lines: int, watched: tuple[str, ...] = WATCHED) -> None:
        self.left, self.watched = lines, watched

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self.watched):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("seed", range(30))
def test_an_interrupted_record_that_comes_again_counts_once(seed: int) -> None:
    items = stream()
    log, tally = RequestLog(), Tally()
    for item in items:
        log.push(item)
        tally.push(item)
    expected = facts(log, tally)
    assert any(preemptions for *_, preemptions, _ in expected[0])
    assert {status for _, status, *_ in expected[0]} == {"length", "abort"}

    rng = random.Random(seed)
    log, tally = RequestLog(), Tally()
    interrupts = 0
    for item in items:
        for push in (log.push, tally.push):
            for _ in range(3 if isinstance(item, StepRecord) else 0):
                sys.settrace(InterruptAt(rng.randrange(1, 60)))
                try:
                    push(item)
                except KeyboardInterrupt:
                    interrupts += 1
                finally:
                    sys.settrace(None)
            push(item)
    assert facts(log, tally) == expected
    assert interrupts > 20


def test_preemptions_of_a_step_that_failed_are_counted() -> None:
    """They stand: the next record tells of them, as of what came before its step."""
    snapshot, *records = stream()
    counted = Tally()
    for item in (snapshot, *records):
        counted.push(item)
    moved = Tally()
    moved.push(snapshot)
    for record in records:
        assert isinstance(record, StepRecord)
        told = record.planned.preempted
        moved.push(
            replace(
                record,
                before=replace(record.before, preempted=told),
                planned=replace(record.planned, preempted=Preempted()),
            )
        )
    assert moved.num_preemptions == counted.num_preemptions > 0
