"""Policies and evictions that go wrong: what the engine says of them, and that it stays whole."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.eviction import Eviction, FreeBlocks
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.policy import MOST_PASSED, Policy, make_policy
from nvexplore.engine.queues import QueueView
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.engine_state import deep_state
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained


def add(engine: Engine, *lengths: int, max_tokens: int = 3) -> list[Sequence]:
    params = SamplingParams(max_tokens=max_tokens)
    return [engine.add_request(range(10 * i, 10 * i + n), params) for i, n in enumerate(lengths, 1)]


def recovers(engine: Engine, seqs: list[Sequence], message: str, error: type[Exception] = RuntimeError) -> None:
    """Steps and plans fail with ``message`` and change nothing; with a policy that does what it should, all is well."""
    before = deep_state(engine, *seqs)
    for call in (engine.step, engine.plan, engine.step):
        with pytest.raises(error, match=message):
            call()
        assert deep_state(engine, *seqs) == before
    check_invariants(engine)
    engine.scheduler.policy = Policy()
    run_to_end(engine)
    check_invariants(engine)
    for seq in seqs:
        assert seq.completion_token_ids == unconstrained(seq.prompt_token_ids, seq.sampling_params.max_tokens)


class Own(Policy):
    """Gives ``answer(waiting)`` as its order."""

    name = "own"

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer

    def admission_order(self, waiting: SequenceOf[Sequence]) -> Any:
        return self.answer(waiting)


def spoil(waiting: Any, *names: str) -> Any:
    """What a policy may try that takes its argument for its own."""
    for name in names:
        getattr(waiting, name)()
    return waiting


class TestTheWaitingQueue:
    @pytest.mark.parametrize("name", ["pop", "popleft", "reverse", "clear", "sort"])
    def test_a_policy_cannot_change_it(self, name: str) -> None:
        engine = toy_engine(16, policy=Own(lambda waiting: spoil(waiting, name)))
        recovers(engine, add(engine, 3, 4, 5), name, AttributeError)

    def test_nor_by_its_items(self) -> None:
        def assign(waiting: Any) -> None:
            waiting[0] = waiting[1]

        def delete(waiting: Any) -> None:
            del waiting[0]

        for change in (assign, delete):
            engine = toy_engine(16, policy=Own(change))
            recovers(engine, add(engine, 3, 4, 5), "support item", TypeError)

    @pytest.mark.parametrize(
        "order",
        [sorted, list, tuple, iter, reversed, lambda waiting: waiting[:], lambda waiting: [waiting[-1], *waiting[:-1]]],
        ids=["sorted", "list", "tuple", "iter", "reversed", "slice", "index"],
    )
    def test_it_can_be_looked_at_like_a_list(self, order: Callable[[Any], Any]) -> None:
        def choose(waiting: Any) -> Any:
            return order(waiting) if order is not sorted else sorted(waiting, key=lambda seq: -seq.num_tokens)

        engine = toy_engine(16, policy=Own(choose))
        seqs = add(engine, 3, 4, 5)
        run_to_end(engine)
        assert [seq.completion_token_ids for seq in seqs] == [unconstrained(seq.prompt_token_ids, 3) for seq in seqs]

    def test_the_view_follows_the_queue(self) -> None:
        seqs = [Sequence(i, [1], SamplingParams(), request_id=str(i)) for i in range(4)]
        queue = deque(seqs[:3])
        view = QueueView(queue)
        assert (len(view), list(view), list(reversed(view))) == (3, seqs[:3], seqs[2::-1])
        assert view[0] is seqs[0] and view[-1] is seqs[2] and view[1:] == seqs[1:3] and view[::-2] == [seqs[2], seqs[0]]
        assert seqs[2] in view and seqs[3] not in view
        assert view.index(seqs[1]) == 1 and view.count(seqs[3]) == 0
        queue.append(seqs[3])
        assert len(view) == 4 and seqs[3] in view
        with pytest.raises(IndexError):
            view[4]

    def test_its_walk_is_the_queues_own(self) -> None:
        """Only the first few requests are looked at in a step: nothing is copied for all of them."""
        view = QueueView(deque(add(toy_engine(16), 3, 4)))
        assert type(iter(view)) is type(iter(deque())) and type(reversed(view)) is type(reversed(deque()))

    def test_a_policy_may_take_a_victim_out_of_what_it_is_given(self) -> None:
        """The candidates are its own: what it does with them changes no choice."""

        class Taking(Policy):
            def victim(self, candidates: Any, needing: Sequence) -> Sequence:
                return candidates.pop()  # type: ignore[no-any-return]

        engine = toy_engine(4, policy=Taking())
        seqs = add(engine, 7, 7, max_tokens=6)
        run_to_end(engine)
        assert sum(seq.num_preemptions for seq in seqs) > 0
        assert all(seq.completion_token_ids == unconstrained(seq.prompt_token_ids, 6) for seq in seqs)

    def test_a_policy_that_makes_itself_a_candidate_is_refused(self) -> None:
        class Smuggling(Policy):
            def victim(self, candidates: Any, needing: Sequence) -> Sequence:
                candidates.append(stranger)
                return stranger

        stranger = Sequence(99, [1], SamplingParams(), request_id="stranger")
        engine = toy_engine(4, policy=Smuggling())
        seqs = add(engine, 7, 7, max_tokens=6)
        while not (len(engine.blocks.free) == 0 and seqs[0].num_tokens % 4 == 1):
            engine.step()
        recovers(engine, seqs, "'prefill_first' named Sequence.99, .* as victim, which is no candidate")


class TestOrders:
    @pytest.mark.parametrize("answer", [None, 3, True])
    def test_what_is_no_order(self, answer: Any) -> None:
        engine = toy_engine(16, policy=Own(lambda waiting: answer))
        message = f"policy 'own' returned {answer!r} as admission_order, which is no iterable"
        recovers(engine, add(engine, 3, 4), message)

    @pytest.mark.parametrize("answer", [[None], ["text"], [0]])
    def test_what_does_not_wait(self, answer: Any) -> None:
        engine = toy_engine(16, policy=Own(lambda waiting: answer))
        recovers(engine, add(engine, 3, 4), r"policy 'own' named .* for admission, which does not wait")

    def test_one_that_is_named_twice(self) -> None:
        """Also where it was not admitted, since blocks are short."""
        engine = toy_engine(4)
        seqs = add(engine, 12, 9)
        engine.step()
        engine.scheduler.policy = Own(lambda waiting: [waiting[0], waiting[0]])
        recovers(engine, seqs, r"policy 'own' named Sequence.1, .* for admission twice")

    def test_one_without_end(self) -> None:
        def cycle(waiting: Any) -> Iterator[Any]:
            while True:
                yield from waiting

        engine = toy_engine(16, policy=Own(cycle))
        recovers(engine, add(engine, 3), r"policy 'own' named .* for admission, which does not wait")

    def test_an_error_of_its_own(self) -> None:
        def fail(waiting: Any) -> Iterable[Any]:
            yield waiting[0]
            raise KeyError("mine")

        engine = toy_engine(16, policy=Own(fail))
        recovers(engine, add(engine, 3), "mine", KeyError)


NO_COUNTS = [
    (math.inf, TypeError, "inf: must be an integer, not float"),
    (None, TypeError, "None: must be an integer, not NoneType"),
    ("8", TypeError, "'8': must be an integer, not str"),
    (True, TypeError, "True: must be an integer, not bool"),
    (-1, ValueError, "-1: must be at least 0"),
    (sys.maxsize, ValueError, f"{sys.maxsize}: must be at most {MOST_PASSED}"),
    (2**31, ValueError, f"{2**31}: must be at most {MOST_PASSED}"),
]


@pytest.mark.parametrize("attribute", ["lookahead", "max_passed"])
class TestCounts:
    @pytest.mark.parametrize(("value", "error", "message"), NO_COUNTS)
    def test_what_is_none_is_refused_where_the_policy_is_made_known(
        self, attribute: str, value: Any, error: type[Exception], message: str
    ) -> None:
        policy = type("Mine", (Policy,), {"name": "mine", attribute: value})()
        expected = f"policy 'mine': {attribute}={message}"
        for make in (make_policy, lambda it: EngineLimits(num_blocks=4, policy=it)):
            with pytest.raises(error, match=expected):
                make(policy)

    @pytest.mark.parametrize(("value", "error", "message"), NO_COUNTS)
    def test_and_where_it_becomes_so_later(
        self, attribute: str, value: Any, error: type[Exception], message: str
    ) -> None:
        policy = Policy()
        engine = toy_engine(16, policy=policy)
        seqs = add(engine, 3, 4)
        setattr(policy, attribute, value)
        recovers(engine, seqs, f"policy 'prefill_first': {attribute}={message}", error)

    @pytest.mark.parametrize("value", [0, MOST_PASSED, np.int64(3)])
    def test_the_bounds_themselves_are_well(self, attribute: str, value: Any) -> None:
        assert MOST_PASSED == 2147483647
        policy = Policy()
        setattr(policy, attribute, value)
        engine = toy_engine(4, policy=policy)
        seqs = add(engine, 9, 9, 2)
        run_to_end(engine)
        assert all(seq.completion_token_ids == unconstrained(seq.prompt_token_ids, 3) for seq in seqs)


class TestEvictions:
    @pytest.mark.parametrize("kind", [np.int64, np.uint8, type("Index", (), {"__index__": lambda self: 0})])
    def test_any_integer_names_a_block(self, kind: Any) -> None:
        class Own(Eviction):
            def choose(self, free: FreeBlocks) -> Any:
                return kind() if 0 in free else np.int64(free.oldest)

        engine = toy_engine(4, eviction=Own())
        (seq,) = add(engine, 7)
        record = engine.step(want_record=True).record
        assert record is not None and seq.block_table == [0, 1]
        assert all(type(block) is int for block in [*seq.block_table, *record.planned.blocks.block_id])
        run_to_end(engine)
        check_invariants(engine)

    @pytest.mark.parametrize("choice", [None, "0", True, 1.0, -1, 4, np.int64(4), np.float32(0), [0], 2**80])
    def test_what_names_none(self, choice: Any) -> None:
        class Own(Eviction):
            name = "own"

            def choose(self, free: FreeBlocks) -> Any:
                return choice

        engine = toy_engine(4, eviction=Own())
        add(engine, 3)
        before = deep_state(engine)
        with pytest.raises(RuntimeError, match=r"eviction 'own' chose .*, which is not a free block"):
            engine.step()
        assert deep_state(engine) == before
