"""Ctrl-C anywhere: whatever a call had done by then is undone, to the last attribute, and the next one goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests import faults
from tests.engine_state import deep_state
from tests.fakes import check_invariants, free_run, next_id, run_to_end, toy_engine

STRIDE = 41


class InterruptAt(faults.InterruptAt):
    """As there, but not where Python would swallow it: while a generator is closed."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_name != "<genexpr>":
            super().__call__(frame, event, arg)


def interrupted(call: Callable[[], object], nth: int) -> bool:
    """Whether ``call`` was interrupted at its ``nth`` boundary; False: it has fewer, and came to its end."""
    try:
        with InterruptAt(nth):
            call()
    except KeyboardInterrupt:
        return True
    return False


class Runner:
    """What the toy runner is for the engine, but whether it has begun can be asked."""

    def __init__(self, engine: Engine) -> None:
        self.run_toy = engine.runner.run
        self.dispatch = engine.runner.dispatch
        self.slots = engine.runner.slots  # type: ignore[attr-defined]
        self.has_begun = False

    def run(self, batch: Any) -> Any:
        self.has_begun = True
        return self.run_toy(batch)


def busy(**limits: Any) -> tuple[Engine, list[Sequence], Runner]:
    """A tight pool: chunks, hits, evictions, preemptions, samples, salts, stops and log probabilities."""
    engine = toy_engine(9, 2, max_num_batched_tokens=7, max_num_seqs=4, **limits)
    runner = engine._steps.runner = Runner(engine)
    prompts = [
        ([1, 2, 3, 4, 5, 6, 7, 9], SamplingParams(max_tokens=5, prompt_logprobs=1)),
        ([1, 2, 3, 4, 5, 6, 7, 8, 8], SamplingParams(max_tokens=4)),
        ([5, 5], SamplingParams(max_tokens=9, logprobs=1, n=2)),
        ([1, 2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=6, stop_token_ids=[next_id([1, 2, 3, 4, 5, 6, 7])])),
        ([1, 2, 3], SamplingParams(max_tokens=3, cache_salt="a")),
    ]
    seqs = [seq for prompt, params in prompts for seq in engine.add_request(prompt, params).samples]
    return engine, seqs, runner


def check_outputs(seqs: list[Sequence]) -> None:
    for seq in seqs:
        expected = free_run(seq.prompt_token_ids, seq.sampling_params, sample_index=seq.sample_index)
        assert (seq.completion_token_ids, seq.finish_reason) == expected


@pytest.mark.parametrize(
    "limits", [{}, {"policy": "mixed", "eviction": "lfu"}, {"enable_prefix_caching": False}], ids=["", "lfu", "off"]
)
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_step_that_is_interrupted_has_not_happened(limits: dict[str, Any], is_watched: bool) -> None:
    """Each step again and again, a little later each time, until it comes to its end.

    Once the runner has begun, what it may have overwritten is distrusted: then the state may differ, never the outcome.
    """
    engine, seqs, runner = busy(**limits)
    states: list[State] = []

    def watch(item: Snapshot | StepRecord) -> None:
        if isinstance(item, Snapshot):
            states.append(State(item))
        else:
            states[0].apply(item)

    if is_watched:
        engine.subscribe(watch)
    steps = undone = 0
    while engine.has_unfinished:
        nth = 1 + steps * 7 % STRIDE
        while True:
            before, number = deep_state(engine, *seqs), engine.next_step
            runner.has_begun = False
            if not interrupted(engine.step, nth):
                break
            engine.snapshot()  # any call makes the engine whole
            check_invariants(engine)
            if engine.next_step > number:  # the step stood already, and was being told
                break
            if not runner.has_begun or not engine.blocks.allocated_this_step:
                assert deep_state(engine, *seqs) == before
            undone += 1
            nth += STRIDE
        steps += 1
    assert undone > 20 and sum(seq.num_preemptions for seq in seqs) > 0
    check_outputs(seqs)
    check_invariants(engine)
    assert all(state.snapshot().same_state(engine.snapshot()) for state in states)


def sweep(call: Callable[[], object], look: Callable[[], object], stride: int = 1) -> int:
    """Interrupt ``call`` at its boundaries in turn; ``look`` must see no change until it comes to its end."""
    before, nth = look(), 1
    while interrupted(call, nth):
        if look() != before:
            break  # it stood already
        nth += stride
    return nth


def mid_run() -> tuple[Engine, list[Sequence]]:
    engine, seqs, _ = busy()
    for _ in range(4):
        engine.step()
    return engine, seqs


CALLS: dict[str, Callable[[Engine], object]] = {
    "add": lambda engine: engine.add_request([7, 7], SamplingParams(max_tokens=2), request_id="new", priority=-1),
    "add samples": lambda engine: engine.add_request([7], SamplingParams(max_tokens=2, n=3), request_id="new"),
    "abort samples": lambda engine: engine.abort("2"),
    "abort one that runs": lambda engine: engine.abort("0"),
    "abort one that waits": lambda engine: engine.abort(engine.scheduler.queues.waiting[-1].request_id),
    "reset": lambda engine: engine.reset_prefix_cache(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_between_steps_happens_wholly_or_not_at_all(name: str) -> None:
    engine, seqs = mid_run()

    def look() -> dict[str, Any]:
        engine.snapshot()
        return deep_state(engine, *seqs)

    before = look()
    assert sweep(lambda: CALLS[name](engine), look) > 5
    done = look()
    assert done != before
    check_invariants(engine)
    other, others = mid_run()
    CALLS[name](other)
    expected = deep_state(other, *others)
    for state in (done, expected):
        for fields in state["seqs"]:
            fields.pop("arrival")
        state.pop("events")  # they hold addresses
    assert done == expected
    run_to_end(engine)
    check_invariants(engine)
    check_outputs([seq for seq in seqs if seq.finish_reason != "abort"])


def test_a_plan_changes_nothing_whether_it_is_interrupted_or_not() -> None:
    engine, seqs = mid_run()

    def look() -> dict[str, Any]:
        engine.snapshot()
        return deep_state(engine, *seqs)

    before = look()
    assert sweep(engine.plan, look, 5) > 100
    assert look() == before
    run_to_end(engine)
    check_outputs(seqs)


def test_a_recovery_that_is_interrupted_goes_on_with_the_next_call() -> None:
    """The undo itself is cut short, here or there."""
    for nth in range(1, 1_000, 13):
        engine, seqs = mid_run()
        run, before = engine.runner.run, deep_state(engine, *seqs)

        def fail(batch: Any, nth: int = nth) -> Any:
            sys.setprofile(InterruptAt(nth))
            raise ZeroDivisionError

        engine.runner.run = fail  # type: ignore[method-assign]
        with pytest.raises((ZeroDivisionError, KeyboardInterrupt)) as caught:
            engine.step()
        sys.setprofile(None)
        engine.runner.run = run  # type: ignore[method-assign]
        engine.snapshot()
        check_invariants(engine)
        if not engine.blocks.allocated_this_step:
            assert deep_state(engine, *seqs) == before
        run_to_end(engine)
        check_outputs(seqs)
        if caught.type is ZeroDivisionError:
            break
    assert nth > 40
