"""Records, column by column: what a small run tells of itself, worked out by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nvexplore.engine.batch import Dispatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Added, Admitted, BlockEvents, Preempted, SlotSpans, StepRecord, Waiting
from nvexplore.sampling_params import SamplingParams
from tests.fakes import next_id, toy_engine


def step(engine: Engine) -> StepRecord:
    record = engine.step(want_record=True).record
    assert record is not None
    return record


def test_a_snapshot_says_which_events_no_record_has_told() -> None:
    """Requests came and one went since the last step: its record knows nothing of that, the next one tells it."""
    engine = toy_engine(5)
    engine.add_request([1, 2], SamplingParams(max_tokens=2), request_id="a")
    record = step(engine)
    assert engine.snapshot().told == engine.snapshot().event == record.event
    engine.add_request([3], SamplingParams(max_tokens=2), request_id="b")
    engine.abort("a")
    between = engine.snapshot()
    assert between.told == record.event < between.event
    step(engine)
    assert engine.snapshot().num_untold == 0


def story() -> list[StepRecord]:
    """Five blocks of 4, 6 tokens a step, 2 sequences: a (7 + 6 tokens), b (5 + 3) behind it, c (1 + 1) behind both.

    After five steps d (1 + 2) comes, in a hurry, and the cache is reset.
    """
    engine = toy_engine(5, max_num_batched_tokens=6, max_num_seqs=2)
    for name, prompt, max_tokens, priority in (
        ("a", range(7), 6, 0),
        ("b", [0, 1, 2, 3, 50], 3, 1),
        ("c", [9], 1, 2),
    ):
        engine.add_request(prompt, SamplingParams(max_tokens=max_tokens), request_id=name, priority=priority)
    records = [step(engine) for _ in range(5)]
    engine.reset_prefix_cache()
    engine.add_request([1], SamplingParams(max_tokens=2, seed=8), request_id="d", priority=-1)
    while engine.has_unfinished:
        records.append(step(engine))
    return records


@pytest.fixture(scope="module")
def records() -> list[StepRecord]:
    return story()


def rows(columns: msgspec.Struct, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(columns, name) for name in names), strict=True))


def test_the_rows_of_each_step(records: list[StepRecord]) -> None:
    names = ("seq_id", "start", "count", "num_cached_tokens", "is_prefill", "samples", "context_len")
    assert [rows(record.planned, *names) for record in records] == [
        [(0, 0, 6, 0, True, False, 6)],
        [(0, 6, 1, 0, True, True, 7), (1, 4, 1, 4, True, True, 5)],
        [(0, 7, 1, 0, False, True, 8), (1, 5, 1, 4, False, True, 6)],
        [(0, 8, 1, 0, False, True, 9), (1, 6, 1, 4, False, True, 7)],
        [(2, 0, 1, 0, True, True, 1)],
        [(3, 0, 1, 0, True, True, 1)],
        [(0, 9, 1, 0, False, True, 10), (3, 1, 1, 0, False, True, 2)],
        [(0, 10, 1, 0, False, True, 11)],
        [(0, 11, 1, 0, False, True, 12)],
    ]


def test_where_each_step_writes(records: list[StepRecord]) -> None:
    """(row, block, offset, length)."""
    assert [rows(record.planned.spans, "row", "block_id", "offset", "length") for record in records] == [
        [(0, 0, 0, 4), (0, 1, 0, 2)],
        [(0, 1, 2, 1), (1, 2, 0, 1)],
        [(0, 1, 3, 1), (1, 2, 1, 1)],
        [(0, 3, 0, 1), (1, 2, 2, 1)],
        [(0, 4, 0, 1)],
        [(0, 2, 0, 1)],
        [(0, 3, 1, 1), (1, 2, 1, 1)],
        [(0, 3, 2, 1)],
        [(0, 3, 3, 1)],
    ]


def test_what_happened_to_blocks_while_planning(records: list[StepRecord]) -> None:
    """(number, kind, block, sequence)."""
    assert [rows(record.planned.blocks, "number", "kind", "block_id", "seq_id") for record in records] == [
        [(4, "allocated", 0, 0), (5, "allocated", 1, 0), (6, "hashed", 0, 0)],
        [(10, "hit", 0, 1), (11, "allocated", 2, 1)],
        [(14, "hashed", 1, 0)],
        [(17, "allocated", 3, 0)],
        [(24, "allocated", 4, 2)],
        [(32, "allocated", 2, 3)],
        [],
        [],
        [(41, "hashed", 3, 0)],
    ]
    hashes = [record.planned.blocks.hash for record in records]
    assert [len([value for value in column if value is not None]) for column in hashes] == [1, 0, 1, 0, 0, 0, 0, 0, 1]


def test_who_was_admitted_and_who_waits(records: list[StepRecord]) -> None:
    assert [rows(record.planned.admitted, "number", "seq_id", "num_cached_tokens", "miss_cause") for record in records][
        :6
    ] == [[(3, 0, 0, "unseen")], [(9, 1, 4, "partial")], [], [], [(23, 2, 0, "partial")], [(31, 3, 0, "partial")]]
    own = {"reserve": [0], "num_passed": [0], "is_queue_order": True, "decodes_first": False}
    no_tokens = {"reason": ["token_budget"], "search_end": "token_budget", "num_admitted_before": [1]}
    no_place = {"reason": ["max_num_seqs"], "search_end": "max_num_seqs"}
    assert [record.planned.waiting for record in records] == [
        Waiting(seq_id=[1], needed=[1], available=[0], num_not_examined=1, **no_tokens, **own),
        Waiting(seq_id=[2], needed=[1], available=[0], num_admitted_before=[1], **no_place, **own),
        *[Waiting(seq_id=[2], needed=[1], available=[0], num_admitted_before=[0], **no_place, **own)] * 2,
        *[Waiting()] * 5,
    ]
    counts = [(p.num_waiting, p.num_running, p.num_free_blocks) for p in (record.planned for record in records)]
    assert counts == [(2, 1, 3), (1, 2, 2), (1, 2, 2), (1, 2, 1), (0, 2, 1), (0, 2, 1), (0, 2, 1), (0, 1, 2), (0, 1, 2)]
    assert {record.planned.max_num_batched_tokens for record in records} == {6}


def test_what_came_of_it(records: list[StepRecord]) -> None:
    """Tokens, blocks that came back, requests that ended."""
    names = ("number", "kind", "block_id", "seq_id")
    assert [rows(record.committed.blocks, *names) for record in records if record.committed.blocks.number] == [
        [(20, "freed", 2, 1), (21, "freed", 0, 1)],
        [(27, "freed", 4, 2)],
        [(37, "freed", 2, 3)],
        [(44, "freed", 3, 0), (45, "freed", 1, 0), (46, "freed", 0, 0)],
    ]
    names = ("finished_number", "finished_seq_id", "finish_reason")
    assert [rows(record.committed, *names) for record in records] == [
        *[[]] * 3,
        [(22, 1, "length")],
        [(28, 2, "length")],
        [],
        [(38, 3, "length")],
        [],
        [(47, 0, "length")],
    ]
    assert [record.committed.seq_id for record in records] == [[], [0, 1], [0, 1], [0, 1], [2], [3], [0, 3], [0], [0]]
    a = next_id(list(range(7)))
    assert records[1].committed.token_id == [a, next_id([0, 1, 2, 3, 50])]
    assert records[2].committed.token_id[0] == next_id([*range(7), a])


def test_numbers_of_steps_and_events(records: list[StepRecord]) -> None:
    assert [(r.step, r.planned.number, r.committed.number, r.event) for r in records] == [
        (0, 7, 8, 9),
        (1, 12, 13, 14),
        (2, 15, 16, 17),
        (3, 18, 19, 23),
        (4, 25, 26, 29),
        (5, 33, 34, 35),
        (6, 35, 36, 39),
        (7, 39, 40, 41),
        (8, 42, 43, 48),
    ]
    assert {record.version for record in records} == {1}
    assert not any(record.is_empty for record in records)


def test_what_happened_between_steps(records: list[StepRecord]) -> None:
    added = records[0].before.added
    assert rows(added, "number", "seq_id", "request_id", "priority", "position") == [
        (0, 0, "a", 0, 0),
        (1, 1, "b", 1, 1),
        (2, 2, "c", 2, 2),
    ]
    assert added.token_ids == [list(range(7)), [0, 1, 2, 3, 50], [9]]
    assert [params["max_tokens"] for params in added.sampling_params] == [6, 3, 1]
    assert 0 <= added.arrival[0] <= added.arrival[1] <= added.arrival[2] <= records[0].time
    before = records[5].before
    assert before.cache_reset_number == [29] and before.aborted_number == []
    assert rows(before.added, "number", "seq_id", "request_id", "position") == [(30, 3, "d", 0)]
    assert before.added.sampling_params == [SamplingParams(max_tokens=2, seed=8).to_dict()]
    for number in (1, 2, 3, 4, 6, 7, 8):
        quiet = records[number].before
        assert quiet.added == Added() and quiet.blocks == BlockEvents() and quiet.preempted == Preempted()
        assert quiet.aborted_number == quiet.aborted_seq_id == quiet.cache_reset_number == []


def test_an_abort_frees_blocks_between_steps() -> None:
    engine = toy_engine(5)
    engine.add_request(range(5), SamplingParams(max_tokens=9))
    engine.add_request(range(20, 23), SamplingParams(max_tokens=9))
    step(engine)
    engine.abort("0")
    record = step(engine)
    assert (record.before.aborted_number, record.before.aborted_seq_id) == ([12], [0])
    assert rows(record.before.blocks, "number", "kind", "block_id", "seq_id") == [
        (10, "freed", 1, 0),
        (11, "freed", 0, 0),
    ]
    assert record.planned.seq_id == [1] and record.planned.num_free_blocks == 4


def test_a_preemption_is_told_with_its_cause_and_what_it_lost() -> None:
    engine = toy_engine(4)
    for first in (0, 10):
        engine.add_request(range(first, first + 7), SamplingParams(max_tokens=6))
    record = step(engine)
    while not record.planned.preempted.number:
        assert record.planned.admitted.seq_id in ([], [0, 1])
        record = step(engine)
    preempted, blocks = record.planned.preempted, record.planned.blocks
    assert rows(preempted, "seq_id", "cause", "num_lost", "position") == [(1, 0, 8, 0)]
    assert blocks.kind == ["freed", "freed", "evicted", "allocated"] and blocks.seq_id == [1, 1, -1, 0]
    assert preempted.number[0] == blocks.number[1] + 1 == blocks.number[2] - 1
    assert (record.planned.num_running, record.planned.num_waiting) == (1, 1)
    assert record.planned.seq_id == [0] and record.committed.seq_id == [0]
    again = step(engine)
    while not again.planned.admitted.number:
        again = step(engine)
    assert again.planned.admitted.seq_id == [1] and again.planned.is_prefill == [True]


def test_a_step_that_has_nothing_to_do() -> None:
    engine = toy_engine(4)
    record = step(engine)
    assert record.is_empty and record.step == 0 and engine.next_step == 0
    planned, committed = record.planned, record.committed
    assert planned.number is None and committed.number is None and record.event == 0
    assert planned.spans == SlotSpans() and planned.waiting == Waiting() and planned.admitted == Admitted()
    assert planned.eager_reason is None, "no runner was asked how it would run nothing"
    engine.add_request([1], SamplingParams(max_tokens=1))
    engine.abort("0")
    told = step(engine)
    assert told.is_empty and told.before.aborted_seq_id == [0] and engine.next_step == 1
    assert told.before.added.seq_id == [0] and told.event == 2 and told.committed.number is None


def test_how_the_runner_runs_it_is_told() -> None:
    engine = toy_engine(4)
    wanted = Dispatch(graph_size=8, padding=7, eager_reason=None, prefill_backend="p", decode_backend="d")
    engine.runner.dispatch = lambda batch: wanted  # type: ignore[method-assign]
    engine.add_request([1], SamplingParams(max_tokens=1))
    planned = step(engine).planned
    assert (planned.graph_size, planned.padding, planned.eager_reason) == (8, 7, None)
    assert (planned.prefill_backend, planned.decode_backend) == ("p", "d")
