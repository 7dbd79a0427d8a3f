"""Events and times: what is noted when, how it is sorted into columns, and which clock the seconds come from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nvexplore.engine import engine as engine_module
from nvexplore.engine import steps as steps_module
from nvexplore.engine.engine import Engine
from nvexplore.engine.event_log import Columns, EventLog
from nvexplore.engine.events import RECORD_VERSION, Admitted, Committed, Preempted, StepRecord, Waiting
from nvexplore.sampling_params import SamplingParams
from tests.fakes import run_to_end, toy_engine


def step(engine: Engine) -> StepRecord:
    record = engine.step(want_record=True).record
    assert record is not None
    return record


def rows(columns: msgspec.Struct, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(columns, name) for name in names), strict=True))


def test_the_times_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([100, 103, 110, 150])
    engine = toy_engine(4)
    engine.add_request([1], SamplingParams(max_tokens=1))
    monkeypatch.setattr(steps_module, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks), perf_counter=float))
    committed = step(engine).committed
    assert (committed.plan_ns, committed.run_ns, committed.commit_ns) == (3, 7, 40)


def test_snapshots_count_seconds_from_the_start_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([50.0, 52.0, 55.0])
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    engine = toy_engine(4)
    assert engine.add_request([1], SamplingParams(max_tokens=1)).arrival == 2.0
    snapshot = engine.snapshot()
    assert snapshot.time == 5.0 and snapshot.sequences.arrival == [2.0]
    later = msgspec.structs.replace(snapshot, time=9.0)
    assert snapshot.same_state(later) and later.same_state(snapshot)
    assert not snapshot.same_state(msgspec.structs.replace(snapshot, step=1))


def test_what_a_record_leaves_out_has_a_default() -> None:
    """As in one that was written before there was such a column."""
    committed = msgspec.json.decode(b'{"number":null,"seq_id":[],"token_id":[],"blocks":{}}', type=Committed)
    assert (committed.plan_ns, committed.run_ns, committed.commit_ns) == (0, 0, 0)
    assert committed.finished_number == committed.finished_seq_id == committed.finish_reason == []
    assert msgspec.json.decode(b"{}", type=Waiting) == Waiting(num_not_examined=0)
    assert RECORD_VERSION == 1 and toy_engine(2).snapshot().version == 1


class TestEventLog:
    def test_what_a_step_does_is_noted_while_somebody_asks(self) -> None:
        log = EventLog()
        log.note("added", 1, 2)
        log.active = False
        log.note("allocated", 1, 2, None)
        assert log.events == [("added", 1, 2)] and log.next_number == 1
        log.base = 10
        assert log.next_number == 11

    def test_an_unwatched_step_notes_nothing_and_its_numbers_are_not_used(self) -> None:
        engine = toy_engine(4)
        engine.add_request([1, 2], SamplingParams(max_tokens=3))
        engine.step()
        assert engine.snapshot().event == 1
        assert step(engine).planned.number == 1
        run_to_end(engine)
        assert engine.step().record is None

    def test_columns(self) -> None:
        events = [("added", 7, 0), ("allocated", 3, 7, None), ("scheduled",), ("added", 8, 1), ("hashed", 3, 7, 99)]
        columns = Columns(events, 40)
        assert columns.of("added", 3) == [[40, 43], [7, 8], [0, 1]]
        assert columns.of("aborted", 3) == [[], [], []] and columns.of("scheduled", 1) == [[]]
        blocks = columns.blocks()
        assert rows(blocks, "number", "kind", "block_id", "seq_id", "hash") == [
            (41, "allocated", 3, 7, None),
            (44, "hashed", 3, 7, 99),
        ]
        assert columns.preempted() == Preempted() and columns.admitted() == Admitted()
        admitted = Columns([("admitted", 1, 4, "differs", 5, 6, None)], 2).admitted()
        assert (admitted.number, admitted.miss_position, admitted.miss_block_id) == ([2], [5], [6])
        preempted = Columns([("preempted", 1, 0, 8, 2)], 3).preempted()
        assert (preempted.number, preempted.cause, preempted.num_lost, preempted.position) == ([3], [0], [8], [2])
