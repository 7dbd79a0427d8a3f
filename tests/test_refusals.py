"""What could never run is refused, by name, value and limit; what just fits runs; ids are given and taken."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import msgspec
import numpy as np
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.limits import LARGEST_INT, EngineLimits
from nvexplore.engine.policy import Mixed, Policy
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.engine_state import deep_state
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

    @pytest.mark.parametrize("value", [np.int64(5), np.uint8(5)])
    def test_numbers_and_names_are_kept_as_pythons_own(self, value: Any) -> None:
        fields = ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
        limits = EngineLimits(**dict.fromkeys(fields, value), prefix_hash=np.str_("sha256"))
        assert [type(getattr(limits, field)) for field in fields] == [int] * 5 and type(limits.prefix_hash) is str
        assert limits == EngineLimits(**dict.fromkeys(fields, 5), prefix_hash="sha256")

    @pytest.mark.parametrize(
        "field", ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"]
    )
    def test_more_than_a_recording_can_hold(self, field: str) -> None:
        assert getattr(EngineLimits(**{"num_blocks": 4, field: LARGEST_INT}), field) == LARGEST_INT == 2**63 - 1
        with pytest.raises(ValueError, match=f"{field}={2**63}: must be at most {LARGEST_INT}"):
            EngineLimits(**{"num_blocks": 4, field: 2**63})

    def test_a_hash_that_is_no_name(self) -> None:
        for wrong in (None, ["xxhash"], 3):
            with pytest.raises(TypeError, match=r"prefix_hash=.*: must be a str, not"):
                EngineLimits(num_blocks=4, prefix_hash=wrong)  # type: ignore[arg-type]

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
        with pytest.raises(ValueError, match=rf"token_ids\[0\]={2**63}: must be at most {LARGEST_INT}"):
            engine.add_request([2**63])
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


class Text(str):
    """Says something else of itself than it is, as the members of an enumeration do."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class TestWhatIsRecorded:
    """All that a caller gives is told in records, and records can be saved."""

    @pytest.mark.parametrize("request_id", ["x", np.str_("x"), Text("x"), "\U0001f44d\0 \u05d0"])
    @pytest.mark.parametrize("priority", [np.int64(1), np.uint8(2), 2**63 - 1, -(2**63)])
    def test_it_is_of_pythons_own_kinds(self, request_id: str, priority: int) -> None:
        engine = toy_engine(8)
        items: list[Snapshot | StepRecord] = []
        engine.subscribe(items.append)
        params = SamplingParams(max_tokens=2, n=2, cache_salt=request_id, stop_token_ids=np.arange(3, 5))
        first = engine.add_request(np.arange(5), params, request_id=request_id, priority=priority)
        items.append(engine.snapshot())
        run_to_end(engine)
        items.append(engine.snapshot())
        for item in items:
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=type(item)) == item
            assert msgspec.json.decode(msgspec.json.encode(item), type=type(item)) == item
        for seq in first.samples:
            assert type(seq.request_id) is str and type(seq.priority) is int and set(map(type, seq.token_ids)) == {int}
        assert first.request_id == str.__str__(request_id) and first.priority == priority
        assert type(first.sampling_params.cache_salt) is str
        assert type(first.sampling_params.to_dict()["cache_salt"]) is str

    @pytest.mark.parametrize("priority", [2**63, -(2**63) - 1, 2**70])
    def test_a_priority_beyond_64_bits(self, priority: int) -> None:
        limit = f"most {2**63 - 1}" if priority > 0 else f"least {-(2**63)}"
        self.refuse(ValueError, f"priority={priority}: must be at {limit}", priority=priority)

    @pytest.mark.parametrize(
        ("request_id", "at"), [("\ud800", 0), ("ab\udfff", 2), (Text("a\ud83d"), 1), ("a\ud83d\udc4d", 1)]
    )
    def test_text_that_cannot_be_encoded(self, request_id: str, at: int) -> None:
        says = f"character {at} is {request_id[at]!r}, half of a surrogate pair".replace("\\", "\\\\")
        self.refuse(ValueError, f"request_id: {says}", request_id=request_id)
        with pytest.raises(ValueError, match=f"cache_salt: {says}"):
            SamplingParams(cache_salt=request_id)

    @pytest.mark.parametrize("wrong", [b"x", 5, ("x",)])
    def test_what_is_no_text(self, wrong: Any) -> None:
        self.refuse(TypeError, "request_id=.*: must be a str, not", request_id=wrong)
        with pytest.raises(TypeError, match=r"cache_salt=.*: must be a str or None, not"):
            SamplingParams(cache_salt=wrong)

    def refuse(self, error: type[Exception], message: str, **wrong: Any) -> None:
        engine = toy_engine(4)
        seq = engine.add_request([1], SamplingParams(max_tokens=2))
        engine.step()
        before = deep_state(engine)
        with pytest.raises(error, match=message):
            engine.add_request([2], SamplingParams(max_tokens=2), **wrong)
        assert deep_state(engine) == before
        late = engine.add_request([3], SamplingParams(max_tokens=2))
        run_to_end(engine)
        assert late.seq_id == 1 and seq.is_finished and late.is_finished


class TestSamples:
    """The ids of all samples of a request are taken for as long as one of them lives."""

    def family(self, name: str, n: int, *ended: int) -> tuple[Engine, Sequence]:
        """An engine with a request of n samples, of which some have ended."""
        engine = toy_engine(32)
        first = engine.add_request(range(5), SamplingParams(max_tokens=9, n=n), request_id=name)
        engine.step()
        for index in ended:
            self.end(engine, first.samples[index])
        check_invariants(engine)
        return engine, first

    def end(self, engine: Engine, seq: Sequence) -> None:
        with engine._change():
            engine._requests.leave(seq)
            engine.scheduler.finish(seq, "stop")

    @pytest.mark.parametrize("n", [2, 3])
    @pytest.mark.parametrize("ended", [0, 1])
    @pytest.mark.parametrize("name", ["a", "a#1", "a#1#1", "#1", ""])
    def test_one_that_has_ended_still_has_its_id(self, name: str, ended: int, n: int) -> None:
        engine, first = self.family(name, n, ended)
        taken = first.samples[ended].request_id
        before = deep_state(engine)
        for samples in (1, 2):
            with pytest.raises(ValueError, match=f"request_id={taken!r}: a live request has this id"):
                engine.add_request([1], SamplingParams(max_tokens=2, n=samples), request_id=taken)
        assert deep_state(engine) == before
        assert engine.abort(taken) is (ended == 0), "the id of the first names them all"
        assert engine.abort(name) is (ended == 1)
        check_invariants(engine)
        assert not engine.live and not engine._requests._families
        again = engine.add_request([1], SamplingParams(max_tokens=2, n=n), request_id=name)
        other = engine.add_request([1], SamplingParams(max_tokens=2), request_id=f"{name}#{n}")
        run_to_end(engine)
        assert [len(seq.completion_token_ids) for seq in (*again.samples, other)] == [2] * (n + 1)

    def test_a_sample_of_a_new_request_may_not_have_it_either(self) -> None:
        engine, _ = self.family("a#1", 3, 1)
        with pytest.raises(ValueError, match="request_id='a#1': a live request has this id"):
            engine.add_request([1], SamplingParams(n=2), request_id="a")
        with pytest.raises(ValueError, match="request_id='a#1#1': a live request has this id"):
            engine.add_request([1], SamplingParams(n=2), request_id="a#1#1")
        assert engine.add_request([1], request_id="a").request_id == "a"
        assert engine.add_request([1], request_id="a#1#3").request_id == "a#1#3", "no sample ever had that"
        assert engine.add_request([1], request_id="a#1#01").request_id == "a#1#01"

    def test_nor_does_the_engine_give_it(self) -> None:
        engine = toy_engine(32)
        two = SamplingParams(max_tokens=5, n=2)
        engine.add_request([1], request_id="0")
        first = engine.add_request([1], two, request_id="3")
        assert engine.add_request([1], two).request_id == "3'" and first.samples[1].request_id == "3#1"

    def test_those_of_a_request_that_has_ended_are_free(self) -> None:
        engine, first = self.family("a", 2, 0, 1)
        assert engine.abort("a") is False and engine.abort("a#1") is False and first.is_finished
        for name in ("a#1", "a"):
            engine.add_request([1], SamplingParams(max_tokens=1), request_id=name)
        run_to_end(engine)


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
