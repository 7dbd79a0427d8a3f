"""Overlapped steps that are interrupted anywhere: one has taken off or has landed, or it has not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot
from nvexplore.engine.flight import put_back
from nvexplore.engine.scheduler import NO_BLOCKS_AHEAD
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.undo import UndoLog
from tests.engine_state import deep_state
from tests.fakes import check_invariants, unconstrained
from tests.faults import Injected, InterruptAt
from tests.follow import Cut, Follower, add, fallible, finish, in_the_air

STRIDE = 29


class Scenario:
    """Chunks, hits, samples, a late row: in a pool so large that no block is used twice, nothing is distrusted."""

    def __init__(self) -> None:
        self.engine, self.follower, self.cut = fallible(40, 2, max_num_batched_tokens=5)
        prompt, stop = [1, 2, 3, 4, 5, 6, 7], unconstrained([5, 5], 3)[-1]
        self.seqs = [
            add(self.engine, prompt, 4),
            *add(self.engine, [*prompt, 8], 3, n=2).samples,
            add(self.engine, [5, 5], 9, stop_token_ids=[stop]),
        ]

    def look(self) -> dict[str, Any]:
        state = deep_state(self.engine, *self.seqs)
        for fields in state["seqs"]:
            fields.pop("arrival")
        for name in ("events", "outbox"):  # addresses; and what has not been told yet
            state.pop(name)
        return state | {"reason": self.engine._steps._sync_reason}

    def whole(self, num_before: int) -> list[dict[str, Any]]:
        """The states that call ``num_before`` goes through."""
        for _ in range(num_before):
            self.engine.advance()
        states, steps = [self.look()], self.engine._steps
        while len(steps.flights) < 2 and steps._take_off():
            states.append(self.look())
        states.append(self.look())  # with the reason why another did not take off
        steps.land()
        return [*states, self.look()]


def num_calls() -> int:
    """How many the scenario takes."""
    run = Scenario()
    finish(run.engine, run.follower, *run.seqs)
    assert any(len(r.committed.token_id) < sum(r.planned.samples) for r in run.follower.records), "no late row"
    return len(run.follower.records)


@pytest.mark.parametrize("num_before", range(num_calls()))
def test_wherever_it_comes_a_step_has_taken_off_or_landed_or_not(num_before: int) -> None:
    expected = Scenario().whole(num_before)
    nth, is_over = 1 + num_before, False
    while not is_over:
        run = Scenario()
        for _ in range(num_before):
            run.engine.advance()
        try:
            with InterruptAt(nth):
                run.engine.advance()
            is_over = True
        except KeyboardInterrupt:
            nth += STRIDE
        if not run.engine._undo and not run.engine._steps.dirty:  # or the next call has to mend it
            assert run.look() in expected
        if nth % 2:
            run.engine.snapshot()
            check_invariants(run.engine)
        finish(run.engine, run.follower, *run.seqs)
    assert nth > 200


def test_giving_up_goes_on_with_the_next_call() -> None:
    """A landing fails, with a late row in it, and undoing this is interrupted."""
    nth, states, is_over = 0, list[dict[str, Any]](), False
    while not is_over:
        run = Scenario()
        while run.seqs[-1].stop_reason is None:
            run.engine.advance()
        assert not run.seqs[-1].is_finished

        def fail(nth: int = nth) -> Any:
            sys.setprofile(InterruptAt(nth))
            raise ZeroDivisionError

        (number,) = in_the_air(run.engine)
        run.engine._steps.flights[0].launched.wait = fail  # type: ignore[method-assign]
        with pytest.raises((ZeroDivisionError, KeyboardInterrupt)) as caught:
            run.engine.advance()
        sys.setprofile(None)
        is_over = nth > 0 and caught.type is ZeroDivisionError
        run.engine.snapshot()
        check_invariants(run.engine)
        states.append(run.look())
        told = run.follower.items[-1]
        assert isinstance(told, Snapshot) and told.step == run.engine.next_step == number
        assert run.seqs[-1].finish_reason == "stop"
        finish(run.engine, run.follower, *run.seqs)
        nth += STRIDE
    assert nth > 200 and all(state == states[0] for state in states)


class TestTheLastMoment:
    """All is done, and only the call that makes it stand does not come to its end."""

    @pytest.fixture
    def at_last(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        """Interrupt the n-th transaction from now on as it is about to stand."""
        commit, num_left = UndoLog.commit, [0]

        def interrupted(undo: UndoLog) -> None:
            num_left[0] -= 1
            if num_left[0] == 0:
                raise KeyboardInterrupt
            commit(undo)

        monkeypatch.setattr(UndoLog, "commit", interrupted)

        def set_num_left(nth: int) -> None:
            num_left[0] = nth

        return set_num_left

    @pytest.mark.parametrize("nth", [1, 2])
    def test_of_a_landing(self, at_last: Callable[[int], None], nth: int) -> None:
        """The first transaction is the take-off of the next step. Nobody is told of a step twice."""
        run = Scenario()
        run.engine.advance()
        before = run.look()
        at_last(nth)
        with pytest.raises(KeyboardInterrupt):
            run.engine.advance()
        assert in_the_air(run.engine) == [1, 2][:nth] and (run.look() == before) == (nth == 1)
        assert not run.engine._hub.outbox
        finish(run.engine, run.follower, *run.seqs)
        assert [record.step for record in run.follower.records] == list(range(run.engine.next_step))

    def test_of_a_take_off(self, at_last: Callable[[int], None]) -> None:
        """What the device may have overwritten is distrusted all the same."""
        engine, follower, _ = fallible(4, 2)
        finish(engine, follower, add(engine, [1, 2, 3], 1))
        (block,) = [block for block in range(4) if engine.blocks.hash_of(block) is not None]
        seq = add(engine, range(10, 18), 1)
        at_last(1)
        with pytest.raises(KeyboardInterrupt):
            engine.advance()
        assert engine.blocks.hash_of(block) is None and engine.abort(seq.request_id)
        again = add(engine, [1, 2, 3], 1)
        finish(engine, follower, again)
        assert again.num_cached_tokens == 0


def test_what_undoes_a_landing_may_come_too_early_and_twice() -> None:
    run = Scenario()
    run.cut.during(run.engine.advance, "wait", "end", KeyboardInterrupt)
    flights = run.engine._steps.flights
    first, second = flights
    put_back(flights, first)
    assert list(flights) == [first, second]
    for _ in range(2):
        assert flights.popleft() is first
        put_back(flights, first)
        put_back(flights, first)
        assert list(flights) == [first, second]
    flights.clear()
    put_back(flights, first)
    assert list(flights) == [first]


class TestReasons:
    """Why a step was not planned ahead is not forgotten when it is interrupted, and not told of another."""

    def refused(self) -> tuple[Engine, Follower, Cut, list[Sequence]]:
        engine, follower, cut = fallible(3, 2)
        return engine, follower, cut, [add(engine, [1, 2], 4), add(engine, [3, 4], 4)]

    def test_after_an_interrupt(self) -> None:
        engine, follower, cut, seqs = self.refused()
        engine.advance()
        cut.during(engine.advance, "launch", "end", KeyboardInterrupt)
        finish(engine, follower, *seqs)
        assert [record.planned.sync_reason for record in follower.records[:2]] == [None, NO_BLOCKS_AHEAD]

    def test_after_an_error(self) -> None:
        engine, follower, cut, seqs = self.refused()
        cut.during(engine.advance, "wait", "end", Injected)
        finish(engine, follower, *seqs)
        assert follower.records[0].planned.sync_reason is None
