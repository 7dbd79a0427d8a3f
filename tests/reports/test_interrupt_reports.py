"""Public bug reports about requests and steps that end too early: aborts, interrupts. Each as its small input.

The ids are this project's own numbering; each docstring names the public thread it comes from. Interrupts at every
line of a step are in tests/prove, those of a session and of a kernel in test_session.py and test_notebooks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvexplore import LLM
from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained
from tests.reports.common import GREEDY, add, finish, toy_llm


class TestV29Abort:
    """vllm#49118: an abort in some state loses blocks, leaks them, or is ignored."""

    @staticmethod
    def gone(engine: Engine, seq: Sequence) -> None:
        assert engine.abort(seq.request_id) is True
        assert seq.finish_reason == "abort" and not seq.block_table
        assert engine.abort(seq.request_id) is False
        check_invariants(engine)
        assert engine.step().finished.count(seq) == 1
        check_invariants(engine)

    def test_waiting(self) -> None:
        engine = toy_engine(8, 4)
        self.gone(engine, add(engine, [1, 2], 3))

    def test_waiting_after_a_preemption(self) -> None:
        engine = toy_engine(4, 4)
        older, younger = add(engine, [1] * 7, 6), add(engine, [2] * 7, 6)
        while not younger.num_preemptions:
            engine.step()
        self.gone(engine, younger)
        run_to_end(engine)
        assert older.completion_token_ids == unconstrained([1] * 7, 6)

    def test_half_prefilled(self) -> None:
        engine = toy_engine(8, 4, max_num_batched_tokens=3)
        seq = add(engine, list(range(10)), 3)
        engine.step()
        assert 0 < seq.num_computed_tokens < 10
        self.gone(engine, seq)

    def test_decoding(self) -> None:
        engine = toy_engine(8, 4)
        seq = add(engine, [1, 2], 5)
        engine.step()
        engine.step()
        self.gone(engine, seq)

    def test_already_finished(self) -> None:
        engine = toy_engine(8, 4)
        seq = add(engine, [1, 2], 1)
        assert engine.step().finished == [seq]
        assert engine.abort(seq.request_id) is False and seq.finish_reason == "length"

    def test_the_one_who_finishes_in_the_same_step_as_others_go_on(self) -> None:
        engine = toy_engine(8, 4)
        last, other = add(engine, [1, 2], 2), add(engine, [3, 4], 4)
        engine.step()
        self.gone(engine, last)  # its second and last token would have come with this step
        run_to_end(engine)
        assert last.num_completion_tokens == 1
        assert other.completion_token_ids == unconstrained([3, 4], 4)

    def test_unknown(self) -> None:
        engine = toy_engine(8, 4)
        seq = add(engine, [1], 2)
        assert engine.abort("nobody") is False and list(engine.live) == [seq.request_id]

    def test_shared_blocks_stay(self) -> None:
        engine, stem = toy_engine(16, 4), list(range(8))
        finish(engine, [*stem, 1], 1)
        one, other = add(engine, [*stem, 2], 4), add(engine, [*stem, 3], 4)
        engine.step()
        shared = one.block_table[:2]
        assert other.block_table[:2] == shared and [engine.blocks.ref_count[b] for b in shared] == [2, 2]
        self.gone(engine, one)
        assert [engine.blocks.ref_count[b] for b in shared] == [1, 1]
        run_to_end(engine)
        assert other.completion_token_ids == unconstrained([*stem, 3], 4)


class Interrupted:
    """Raises KeyboardInterrupt when its stage comes up while armed."""

    def __init__(self) -> None:
        self.stage = ""

    def __call__(self, stage: str) -> None:
        if stage == self.stage:
            self.stage = ""
            raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["begin", "write", "end"])
@pytest.mark.parametrize("step", [0, 1, 4], ids=["first chunk", "second chunk", "decode"])
def test_j04_an_interrupted_step_leaves_nothing_behind(stage: str, step: int) -> None:
    """vllm#17738: after an interrupt the next call hangs, or gives wrong text, or the old requests' outputs."""
    interrupt = Interrupted()
    engine = toy_engine(16, 4, max_num_batched_tokens=6, interrupt=interrupt)
    old = add(engine, list(range(10)), 6)
    for _ in range(step):
        engine.step()
    before = engine.snapshot()
    interrupt.stage = stage
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.snapshot().same_state(before)
    check_invariants(engine)
    engine.abort(old.request_id)
    new = finish(engine, [70, 71, 72], 5)
    assert new.num_cached_tokens == 0 and len(engine.blocks.free) == 16


def test_j04_what_a_failed_step_overwrote_is_never_served() -> None:
    """The sibling: the undone step had evicted a cached block and written into it."""
    interrupt = Interrupted()
    engine = toy_engine(3, 4, interrupt=interrupt)
    finish(engine, list(range(8)), 1)
    add(engine, [60] * 12, 1)  # needs all three blocks
    interrupt.stage = "end"
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.abort("1")
    again = finish(engine, list(range(8)), 1)
    assert again.num_cached_tokens == 0


OLD, NEW = list(range(40, 50)), [*range(40, 49), 9, 8]  # a prompt that is interrupted; one that shares two blocks


def armed(call: Callable[..., Any], when: int, *, after: bool) -> Callable[..., Any]:
    """``call``, which the when-th time raises KeyboardInterrupt, before or after its work."""
    calls = 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == when and not after:
            raise KeyboardInterrupt
        result = call(*args, **kwargs)
        if calls == when:
            raise KeyboardInterrupt
        return result

    return interrupted


class Bar:
    """Stands for the progress bar of ``generate``; ``closed`` counts."""

    closed = 0

    def update(self, tokens: int) -> None: ...

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def fresh(toy: Path) -> dict[str, list[int]]:
    with toy_llm(toy) as llm:
        return {
            str(prompt): llm.generate([prompt], GREEDY, use_tqdm=False)[0].token_ids for prompt in (OLD, NEW, [7, 7])
        }


@pytest.mark.parametrize("step", [1, 2, 4], ids=["first chunk", "second chunk", "decode"])
@pytest.mark.parametrize("stage", ["planned", "inside", "ran", "committed", "shown"])
def test_j04_an_interrupted_generate_leaves_a_fresh_engine(
    toy: Path, fresh: dict[str, list[int]], stage: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm#17738: between planning and running, inside the run, after it, while the bar is drawn; then another call."""
    bar = Bar()
    with toy_llm(toy, num_kvcache_blocks=16, max_num_batched_tokens=6) as llm:
        arm(llm, bar, stage, step, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([OLD, [7, 7]], GREEDY)
        assert bar.closed == 1
        assert not llm.has_unfinished and llm.step().is_empty
        assert len(llm.engine.blocks.free) == 16
        outputs = llm.generate([NEW, OLD], GREEDY, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == [NEW, OLD]
        assert [output.token_ids for output in outputs] == [fresh[str(NEW)], fresh[str(OLD)]]
        assert len(llm.engine.blocks.free) == 16


def arm(llm: LLM, bar: Bar, stage: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner = llm.engine, llm.runner
    assert runner is not None
    layers = llm.model_config.num_hidden_layers
    place: dict[str, tuple[object, str, int, bool]] = {
        "planned": (engine.scheduler, "schedule", step, True),
        "inside": (runner.backend, "attention", layers * step, False),  # the last layer has stored its keys too
        "ran": (engine._committer, "commit", step, False),
        "committed": (engine._committer, "commit", step, True),
        "shown": (bar, "update", step, False),
    }
    owner, name, when, after = place[stage]
    monkeypatch.setattr("nvexplore.generation.progress_bar", lambda total, enabled: bar)
    monkeypatch.setattr(owner, name, armed(getattr(owner, name), when, after=after))


def test_j04_a_request_of_ones_own_outlives_the_interrupt_of_a_call(
    toy: Path, fresh: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sibling: what was queued by hand was not part of the call, and goes on to the same tokens."""
    with toy_llm(toy, max_num_batched_tokens=6) as llm:
        mine = llm.add_request(NEW, GREEDY)
        arm(llm, Bar(), "ran", 3, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([OLD], GREEDY)
        assert list(llm.engine.live) == [mine.request_id]
        list(llm.steps())
        assert mine.completion_token_ids == fresh[str(NEW)]
