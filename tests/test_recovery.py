"""What a runner that fails may have overwritten is distrusted: the blocks which the undone step had allocated."""

from __future__ import annotations

from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, free_run, run_to_end, toy_engine


def check_outputs(seqs: list[Sequence]) -> None:
    for seq in seqs:
        assert (seq.completion_token_ids, seq.finish_reason) == free_run(seq.prompt_token_ids, seq.sampling_params)


def fail_once(engine: Engine) -> None:
    """A step whose runner writes nonsense into the newly allocated blocks, and fails."""
    run = engine.runner.run

    def fail(batch: Any) -> Any:
        size = engine.limits.block_size
        for block in engine.blocks.allocated_this_step:
            engine.runner.slots[block * size : (block + 1) * size] = [-5] * size  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    engine.runner.run = fail  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.runner.run = run  # type: ignore[method-assign]


def test_what_they_held_is_no_longer_hit() -> None:
    engine = toy_engine(3)
    engine.add_request(range(9), SamplingParams(max_tokens=1))
    run_to_end(engine)
    kept = engine.blocks.find_prefix(Sequence(9, list(range(9)), SamplingParams(), request_id="x"))
    assert len(kept) == 2
    engine.add_request(range(50, 57), SamplingParams(max_tokens=1))  # takes the third and the tail of the first
    fail_once(engine)
    check_invariants(engine)
    hashes = engine.snapshot().hash
    assert hashes[kept[0]] is not None and hashes[kept[1]] is None
    assert engine.abort("1")
    again = engine.add_request(range(9), SamplingParams(max_tokens=1))
    run_to_end(engine)
    assert again.num_cached_tokens == 4
    check_outputs([again])


def test_those_who_held_them_are_computed_again_oldest_first() -> None:
    """Two need a block each, two give way for them; the undo gives these blocks back that hold something else."""
    engine = toy_engine(4)
    items: list[Snapshot | StepRecord] = []
    engine.subscribe(items.append)
    seqs = [engine.add_request(prompt, SamplingParams(max_tokens=3)) for prompt in ([1] * 4, [2] * 4, [3], [4])]
    engine.step()
    assert [len(seq.block_table) for seq in seqs] == [1, 1, 1, 1]
    assert engine.plan().preempted.seq_id == [3, 2]
    fail_once(engine)
    engine.snapshot()
    check_invariants(engine)
    assert [seq.status for seq in seqs] == ["decode", "decode", "waiting", "waiting"]
    assert [seq.seq_id for seq in engine.scheduler.queues.waiting] == [2, 3]
    assert [seq.num_preemptions for seq in seqs] == [0, 0, 1, 1]
    record = engine.step(want_record=True).record
    assert record is not None and record.before.preempted.seq_id == [3, 2]
    assert record.before.preempted.cause == [-1, -1] and record.before.blocks.kind == ["freed", "freed"]
    first, *records = items
    assert isinstance(first, Snapshot) and len(records) == 2
    state = State(first)
    for item in records:
        assert isinstance(item, StepRecord)
        state.apply(item)
    assert state.snapshot().same_state(engine.snapshot())
    run_to_end(engine)
    check_outputs(seqs)


def test_nobody_is_preempted_without_need() -> None:
    engine = toy_engine(8)
    first = engine.add_request(range(5), SamplingParams(max_tokens=9))
    engine.step()
    second = engine.add_request(range(20, 25), SamplingParams(max_tokens=9))
    fail_once(engine)
    engine.snapshot()
    assert first.num_preemptions == second.num_preemptions == 0 and first.status == "decode"
    run_to_end(engine)
    check_outputs([first, second])
