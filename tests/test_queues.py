"""The waiting queue and the running list: who stands where, and every move taken back."""

from __future__ import annotations

import itertools

import pytest

from nvexplore.engine.queues import Queues
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.undo import UndoLog
from nvexplore.sampling_params import SamplingParams
from tests.undo_logs import Hasty


def make(number: int, priority: int = 0) -> Sequence:
    return Sequence(number, [1], SamplingParams(), request_id=str(number), priority=priority)


def queues_of(*priorities: int, running: int = 0) -> tuple[Queues, UndoLog, list[Sequence], list[Sequence]]:
    """Queues with waiting sequences 0, 1, ... of these priorities, and some that run."""
    undo = Hasty()
    queues = Queues(undo)
    waiting = [make(i, priority) for i, priority in enumerate(priorities)]
    for seq in waiting:
        queues.enqueue(seq)
    resident = [make(100 + i) for i in range(running)]
    for seq in resident:
        queues.enter_running(seq)
    undo.commit()
    return queues, undo, waiting, resident


def ids(seqs: object) -> list[int]:
    return [seq.seq_id for seq in seqs]  # type: ignore[attr-defined]


def test_new_requests_stand_behind_their_priority() -> None:
    queues, _, _, _ = queues_of(0, 5, -1, 0, 5, -1, 0)
    assert ids(queues.waiting) == [2, 5, 0, 3, 6, 1, 4]


@pytest.mark.parametrize(("priority", "position"), [(-2, 0), (-1, 1), (0, 3), (3, 4), (5, 5), (6, 5)])
def test_the_position_of_a_new_request_is_told(priority: int, position: int) -> None:
    queues, undo, _, _ = queues_of(-1, 0, 0, 3, 4)
    seq = make(9, priority)
    assert queues.enqueue(seq) == position and queues.waiting[position] is seq
    undo.rollback()
    assert ids(queues.waiting) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("priority", "position"), [(-2, 0), (-1, 0), (0, 1), (1, 3), (3, 3), (5, 5)])
def test_a_preempted_one_stands_before_its_priority(priority: int, position: int) -> None:
    queues, undo, _, _ = queues_of(-1, 0, 0, 3, 4)
    seq = make(9, priority)
    assert queues.requeue(seq) == position and queues.waiting[position] is seq
    assert len(queues.waiting) == 6
    undo.rollback()
    assert ids(queues.waiting) == [0, 1, 2, 3, 4]


def preempt(queues: Queues, seq: Sequence) -> int:
    seq.num_preemptions += 1
    return queues.requeue(seq)


def test_preempted_ones_stand_in_the_order_of_arrival() -> None:
    """Whoever was preempted last does not stand before those that came earlier: they would wait for ever."""
    for order in itertools.permutations(range(4)):
        queues, undo, _, _ = queues_of(0, 0)
        for number in order:
            preempt(queues, make(10 + number))
        assert ids(queues.waiting) == [10, 11, 12, 13, 0, 1]
        undo.rollback()
        assert ids(queues.waiting) == [0, 1]


def test_preempted_ones_that_came_later_stand_before_new_ones() -> None:
    queues, _, waiting, _ = queues_of(0, 0, 1, 1)
    assert preempt(queues, make(20)) == 0 and preempt(queues, make(20 + 1, 1)) == 3
    assert preempt(queues, make(9)) == 0 and preempt(queues, make(22)) == 2 and preempt(queues, make(8, 1)) == 5
    assert ids(queues.waiting) == [9, 20, 22, 0, 1, 8, 21, 2, 3]
    queues.leave_waiting(waiting[0])
    assert preempt(queues, waiting[0]) == 0, "it came before all others"
    assert ids(queues.waiting) == [0, 9, 20, 22, 1, 8, 21, 2, 3]


def test_an_empty_queue() -> None:
    queues, undo, _, _ = queues_of()
    assert queues.requeue(make(1)) == 0 and queues.enqueue(make(2)) == 1
    undo.rollback()
    assert not queues.waiting


@pytest.mark.parametrize("number", range(4))
def test_one_leaves_the_waiting_queue_from_anywhere(number: int) -> None:
    queues, undo, waiting, _ = queues_of(0, 0, 0, 0)
    queues.leave_waiting(waiting[number])
    assert ids(queues.waiting) == [i for i in range(4) if i != number]
    undo.rollback()
    assert list(queues.waiting) == waiting


@pytest.mark.parametrize("number", range(4))
def test_one_leaves_the_running_list_in_place(number: int) -> None:
    queues, undo, _, resident = queues_of(running=4)
    walked = queues.running
    queues.leave_running(resident[number])
    assert queues.running is walked and ids(walked) == [100 + i for i in range(4) if i != number]
    undo.rollback()
    assert queues.running is walked and walked == resident


def test_entering_is_undone() -> None:
    queues, undo, _, resident = queues_of(running=2)
    queues.enter_running(make(7))
    assert ids(queues.running) == [100, 101, 7]
    undo.rollback()
    assert queues.running == resident


def test_many_moves_are_undone_together() -> None:
    queues, undo, waiting, resident = queues_of(0, 1, 2, running=3)
    first, middle = waiting[0], resident[1]
    queues.leave_waiting(first)
    queues.enter_running(first)
    queues.leave_running(middle)
    queues.requeue(middle)
    queues.leave_waiting(waiting[2])
    queues.enqueue(make(9, 1))
    assert ids(queues.waiting) == [101, 1, 9] and ids(queues.running) == [100, 102, 0]
    undo.rollback()
    assert list(queues.waiting) == waiting and queues.running == resident
