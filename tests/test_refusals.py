"""What could never run is refused, by name, value and limit; what just fits runs; ids are given and taken."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.policy import Mixed, Policy
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained


class TestLimits:
    def test_defaults(self) -> None:
        limits = EngineLimits(num_blocks=7)
        assert (limits.num_blocks, limits.block_size, limits.max_num_seqs) == (7, 16, 32)
        assert (limits.max_num_batched_tokens, limits.max_model_len) == (512, 4096)
        assert limits.enable_prefix_caching is True
        assert (limits.policy, limits.prefix_hash, limits.eviction) == ("prefill_first", "xxhash", "lru")

    @pytest.mark.parametrize(
        "field", ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"]
    )
    def test_one_is_the_least(self, field: str) -> None:
        assert getattr(EngineLimits(**{"num_blocks": 4, field: 1}), field) == 1
        with pytest.raises(ValueError, match=f"{field}=0: must be at least 1"):
            EngineLimits(**{"num_blocks": 4, field: 0})

    def test_choices_are_checked_and_kept(self) -> None:
        mine = Mixed()
        limits = EngineLimits(num_blocks=4, policy=mine, enable_prefix_caching=False, prefix_hash="sha256")
        assert limits.policy is mine and limits.enable_prefix_caching is False and limits.prefix_hash == "sha256"
        with pytest.raises(TypeError, match="enable_prefix_caching=None: must be True or False"):
            EngineLimits(num_blocks=4, enable_prefix_caching=None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not type"):
            EngineLimits(num_blocks=4, policy=Policy)  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            limits.num_blocks = 5  # type: ignore[misc]

    @pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
    def test_blocks_for(self, num_tokens: int, num_blocks: int) -> None:
        assert EngineLimits(num_blocks=1, block_size=4).blocks_for(num_tokens) == num_blocks


def refuse(engine: Engine, error: type[Exception], message: str, prompt: Any = (1, 2), params: Any = None) -> None:
    """``add_request`` raises, and afterwards the engine is what it was."""
    before = engine.snapshot()
    with pytest.raises(error, match=message):
        engine.add_request(prompt, params)
    assert engine.snapshot().same_state(before) and not engine.has_unfinished
    assert engine.add_request([1], SamplingParams(max_tokens=1)).request_id == "0", "and no number is lost"
    run_to_end(engine)


class TestRequests:
    def test_what_are_no_sampling_params(self) -> None:
        refuse(
            toy_engine(4), TypeError, "sampling_params={'n': 2}: must be a SamplingParams, not dict", params={"n": 2}
        )

    def test_stop_strings_that_nobody_looks_for(self) -> None:
        params = SamplingParams(stop="end", max_tokens=2)
        refuse(toy_engine(4), ValueError, r"stop=\('end',\): this engine has no stop_matcher", params=params)
        engine = toy_engine(4, stop_matcher=lambda seq: None)
        assert engine.check_request([1], params) == [1]

    def test_ids_outside_the_vocabulary(self) -> None:
        for prompt, name in (([0, 10], r"token_ids\[1\]=10"), ([-1], r"token_ids\[0\]=-1")):
            engine = toy_engine(4)
            engine.vocab_size = 10
            refuse(engine, ValueError, name, prompt, SamplingParams(max_tokens=1))
        engine = toy_engine(4)
        engine.vocab_size = 10
        stopping = SamplingParams(max_tokens=1, stop_token_ids=[9, 10])
        refuse(engine, ValueError, r"stop_token_ids\[1\]=10: must be at most 9", [0, 9], stopping)
        assert engine.check_request([0, 9], SamplingParams(max_tokens=1, stop_token_ids=[9])) == [0, 9]
        engine.vocab_size = None
        assert engine.check_request([10**9], SamplingParams(max_tokens=1, stop_token_ids=[10**9])) == [10**9]

    @pytest.mark.parametrize("prompt", [b"abc", "abc", 7, None])
    def test_what_are_no_token_ids(self, prompt: Any) -> None:
        refuse(toy_engine(4), TypeError, "must be integers; text is for LLM.add_request", prompt)

    def test_more_than_the_model_can_see(self) -> None:
        engine = toy_engine(8, max_model_len=9)
        message = "prompt of 4 tokens [+] max_tokens=6 is 10: must be at most max_model_len=9"
        refuse(engine, ValueError, message, range(4), SamplingParams(max_tokens=6))
        seq = engine.add_request(range(4), SamplingParams(max_tokens=5))
        run_to_end(engine)
        assert seq.completion_token_ids == unconstrained(list(range(4)), 5)

    def test_more_than_the_pool_holds(self) -> None:
        """9 tokens in two blocks of 4 would be one too many, but the last one is never stored."""
        engine = toy_engine(2)
        message = "prompt of 4 tokens [+] max_tokens=6 needs 3 KV blocks of 4 tokens: the pool has num_blocks=2"
        refuse(engine, ValueError, message, range(4), SamplingParams(max_tokens=6))
        seq = engine.add_request(range(4), SamplingParams(max_tokens=5))
        run_to_end(engine)
        assert seq.completion_token_ids == unconstrained(list(range(4)), 5)

    def test_defaults_of_a_request(self) -> None:
        engine = toy_engine(32)
        seq = engine.add_request([1])
        assert seq.sampling_params == SamplingParams() and seq.priority == 0 and seq.request_id == "0"


class TestIds:
    def test_they_are_counted_and_never_used_twice(self) -> None:
        engine = toy_engine(32)
        two = SamplingParams(max_tokens=1, n=2)
        one = SamplingParams(max_tokens=1)
        seqs = [engine.add_request([1], params) for params in (one, two, one)]
        assert [seq.seq_id for seq in seqs] == [0, 1, 3] and [seq.request_id for seq in seqs] == ["0", "1", "3"]
        assert [seq.seq_id for seq in seqs[1].samples] == [1, 2] and seqs[0].siblings == ()
        run_to_end(engine)
        assert engine.add_request([1], one).seq_id == 4

    def test_an_abort_of_nobody(self) -> None:
        engine = toy_engine(4)
        assert engine.abort("nobody") is False
        output = engine.step()
        assert (output.step, output.seq_ids, output.token_ids, output.finished) == (0, [], [], [])
        assert engine.next_step == 0

    def test_an_abort_in_each_state(self) -> None:
        engine = toy_engine(8, max_num_seqs=2, max_num_batched_tokens=6)
        decoding = engine.add_request([1], SamplingParams(max_tokens=9))
        prefilling = engine.add_request(range(10, 19), SamplingParams(max_tokens=9))
        waiting = engine.add_request([3], SamplingParams(max_tokens=9))
        engine.step()
        assert [seq.status for seq in (decoding, prefilling, waiting)] == ["decode", "prefill", "waiting"]
        for seq in (waiting, prefilling, decoding):
            assert engine.abort(seq.request_id) is True
            check_invariants(engine)
            assert seq.finish_reason == "abort" and seq.status == "finished" and seq.block_table == []
            assert seq.is_finished and seq.request_id not in engine.live
        output = engine.step()
        assert output.finished == [waiting, prefilling, decoding] and output.step == 0 + 1
        assert engine.step().finished == [] and not engine.has_unfinished

    def test_the_outputs_of_a_step(self) -> None:
        engine = toy_engine(8)
        first = engine.add_request([1], SamplingParams(max_tokens=1))
        second = engine.add_request([2], SamplingParams(max_tokens=2))
        output = engine.step()
        assert output.seq_ids == [0, 1] and output.token_ids == [first.token_ids[-1], second.token_ids[-1]]
        assert output.finished == [first] and output.record is None and output.step == 0
        assert engine.step().finished == [second] and engine.next_step == 2
