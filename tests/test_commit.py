"""What ends a completion, several samples of one request, rows that fail, log probabilities: engine and toy model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, free_run, next_id, run_to_end, toy_engine, unconstrained

PROMPT = [3, 1, 4, 1, 5]
SAID = unconstrained(PROMPT, 12)


def finish(engine: Engine, **params: Any) -> Sequence:
    seq = engine.add_request(PROMPT, SamplingParams(max_tokens=12, **params))
    run_to_end(engine)
    check_invariants(engine)
    return seq


def test_a_stop_token_ends_it_and_stays_in_the_tokens() -> None:
    seq = finish(toy_engine(16), stop_token_ids=[SAID[9], SAID[4]])
    assert seq.completion_token_ids == SAID[:5]
    assert (seq.finish_reason, seq.stop_reason) == ("stop", SAID[4])


def test_end_of_sequence_and_stop_tokens_are_one_set() -> None:
    engine = toy_engine(16, eos=frozenset({SAID[6]}))
    assert finish(engine).stop_reason == SAID[6]
    assert finish(engine, stop_token_ids=[SAID[2]]).stop_reason == SAID[2]
    ignoring = finish(engine, stop_token_ids=[SAID[8]], ignore_eos=True)
    assert ignoring.completion_token_ids == SAID[:9] and ignoring.stop_reason == SAID[8]
    assert finish(engine, ignore_eos=True).finish_reason == "length"


@pytest.mark.parametrize(("min_tokens", "length"), [(0, 3), (2, 3), (3, 8), (7, 8), (8, 12), (12, 12)])
def test_the_first_min_tokens_tokens_end_nothing(min_tokens: int, length: int) -> None:
    """A runner masks these ids; the toy one does not, and the engine goes on all the same."""
    seq = finish(toy_engine(16), stop_token_ids=[SAID[2], SAID[7]], min_tokens=min_tokens)
    assert seq.completion_token_ids == SAID[:length]
    assert seq.finish_reason == ("length" if length == 12 else "stop")


def test_the_last_token_that_is_also_a_stop_token_stops() -> None:
    seq = finish(toy_engine(16), stop_token_ids=[SAID[11]])
    assert (seq.finish_reason, seq.stop_reason) == ("stop", SAID[11])


class TestStopMatcher:
    """The hook by which someone who knows text ends a completion."""

    def engine(self, match: Callable[[Sequence], str | None], **options: Any) -> Engine:
        return toy_engine(16, stop_matcher=match, **options)

    def test_it_is_asked_after_each_token(self) -> None:
        asked: list[list[int]] = []

        def match(seq: Sequence) -> str | None:
            asked.append(seq.completion_token_ids)
            return "found" if len(asked[-1]) == 4 else None

        engine = self.engine(match)
        seq = finish(engine, stop=["found"])
        assert asked == [SAID[:n] for n in (1, 2, 3, 4)]
        assert seq.completion_token_ids == SAID[:4]
        assert (seq.finish_reason, seq.stop_reason) == ("stop", "found")
        finish(engine)
        assert len(asked) == 4  # not for those without stop strings

    def test_from_min_tokens_on(self) -> None:
        seq = finish(self.engine(lambda seq: "any"), stop="any", min_tokens=5)
        assert seq.completion_token_ids == SAID[:6]

    def test_a_stop_token_comes_before_a_string_and_a_string_before_the_length(self) -> None:
        engine = self.engine(lambda seq: "any" if seq.num_completion_tokens == 12 else None)
        assert finish(engine, stop="any").stop_reason == "any"
        assert finish(engine, stop="any", stop_token_ids=[SAID[11]]).stop_reason == SAID[11]

    def test_an_error_in_it_undoes_the_step(self) -> None:
        fails = [True]

        def match(seq: Sequence) -> str | None:
            if fails[0]:
                raise ZeroDivisionError
            return None

        engine = self.engine(match)
        seq = engine.add_request(PROMPT, SamplingParams(max_tokens=12, stop="x", logprobs=1, prompt_logprobs=1))
        with pytest.raises(ZeroDivisionError):
            engine.step()
        engine.snapshot()
        assert not seq.num_completion_tokens and seq.logprobs == [] and seq.prompt_logprobs == [None]
        check_invariants(engine)
        fails[0] = False
        run_to_end(engine)
        assert seq.completion_token_ids == SAID and len(seq.logprobs or ()) == 12


class TestSamples:
    """n > 1: sequences of their own with one prompt, whose full blocks they share."""

    def test_ids_and_outputs(self) -> None:
        engine = toy_engine(32)
        first = engine.add_request(PROMPT, SamplingParams(max_tokens=6, n=3, seed=1), request_id="a")
        assert [seq.request_id for seq in first.samples] == ["a", "a#1", "a#2"]
        assert [seq.sample_index for seq in first.samples] == [0, 1, 2]
        run_to_end(engine)
        for seq in first.samples:
            assert seq.completion_token_ids == free_run(PROMPT, seq.sampling_params, sample_index=seq.sample_index)[0]
        assert len({tuple(seq.completion_token_ids) for seq in first.samples}) == 3
        check_invariants(engine)

    def test_full_blocks_of_the_prompt_are_shared(self) -> None:
        engine = toy_engine(32, 4)
        first = engine.add_request(range(10), SamplingParams(max_tokens=6, n=3))
        engine.step()
        tables = [seq.block_table for seq in first.samples]
        assert tables[0][:2] == tables[1][:2] == tables[2][:2]
        assert len({table[2] for table in tables}) == 3  # the rest of the prompt is computed by each
        assert [seq.num_cached_tokens for seq in first.samples] == [0, 8, 8]

    def test_aborting_the_request_aborts_all_that_live(self) -> None:
        engine = toy_engine(32)
        params = SamplingParams(max_tokens=9, n=3, stop_token_ids=[next_id(PROMPT)])
        first = engine.add_request(PROMPT, params, request_id="a")
        engine.step()
        assert first.finish_reason == "stop"  # its samples live on, and the id still means them
        with pytest.raises(ValueError, match="'a': a live request has this id"):
            engine.add_request(PROMPT, request_id="a")
        assert engine.abort("a")
        assert [seq.finish_reason for seq in first.samples] == ["stop", "abort", "abort"]
        assert not engine.abort("a") and not engine.live
        assert [seq.request_id for seq in engine.step().finished] == ["a#1", "a#2"]
        engine.add_request(PROMPT, SamplingParams(max_tokens=2, n=2), request_id="a")
        run_to_end(engine)
        check_invariants(engine)

    def test_aborting_one_sample_leaves_the_others(self) -> None:
        engine = toy_engine(32)
        first = engine.add_request(PROMPT, SamplingParams(max_tokens=5, n=3), request_id="a")
        assert engine.abort("a#1") and not engine.abort("a#1")
        run_to_end(engine)
        assert [seq.finish_reason for seq in first.samples] == ["length", "abort", "length"]
        check_invariants(engine)

    def test_ids_that_are_taken(self) -> None:
        engine = toy_engine(32)
        params = SamplingParams(max_tokens=2, n=3)
        engine.add_request(PROMPT, SamplingParams(max_tokens=2), request_id="a#2")
        with pytest.raises(ValueError, match="'a#2': a live request has this id"):
            engine.add_request(PROMPT, params, request_id="a")
        assert list(engine.live) == ["a#2"]
        engine.add_request(PROMPT, SamplingParams(max_tokens=2), request_id="1#1")
        assert engine.add_request(PROMPT, params).request_id == "2"
        engine.add_request(PROMPT, SamplingParams(max_tokens=2), request_id="6#1")
        assert [seq.request_id for seq in engine.add_request(PROMPT, params).samples] == ["6'", "6'#1", "6'#2"]

    def test_more_samples_than_places(self) -> None:
        engine = toy_engine(6, 4, max_num_seqs=2, max_num_batched_tokens=3)
        first = engine.add_request(PROMPT, SamplingParams(max_tokens=9, n=5))
        run_to_end(engine)
        assert all(seq.finish_reason == "length" for seq in first.samples)
        check_invariants(engine)


class TestBrokenRow:
    """The runner says -1: that request ends, the others do not notice."""

    def run(self, monkeypatch: pytest.MonkeyPatch, seqs: int = 3, at: int = 2) -> tuple[Engine, list[Sequence], Any]:
        engine = toy_engine(32)
        run = engine.runner.run

        def broken(batch: ScheduledBatch) -> list[int]:
            ids = run(batch)
            assert isinstance(ids, list)
            sampled = [seq for seq, samples in zip(batch.seqs, batch.samples, strict=True) if samples]
            return [
                -1 if seq.seq_id == 1 and seq.num_completion_tokens == at else token_id
                for seq, token_id in zip(sampled, ids, strict=True)
            ]

        monkeypatch.setattr(engine.runner, "run", broken)
        records: list[Any] = []
        engine.subscribe(records.append)
        added = [engine.add_request([i, *PROMPT, i], SamplingParams(max_tokens=5)) for i in range(seqs)]
        run_to_end(engine)
        check_invariants(engine)
        return engine, added, records[1:]

    @pytest.mark.parametrize("at", [0, 2, 4])
    def test_only_that_request_ends(self, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        _, seqs, _ = self.run(monkeypatch, at=at)
        for i in (0, 2):
            assert seqs[i].completion_token_ids == unconstrained([i, *PROMPT, i], 5)
            assert seqs[i].finish_reason == "length" and seqs[i].error is None
        broken = seqs[1]
        assert broken.completion_token_ids == unconstrained([1, *PROMPT, 1], 5)[:at]
        assert broken.finish_reason == "error" and broken.stop_reason is None
        assert broken.error is not None and f"request '1': no token can be chosen for position {7 + at}" in broken.error

    def test_the_record_says_so_and_tells_no_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, _, records = self.run(monkeypatch, at=0)
        committed = records[0].committed
        assert committed.seq_id == [0, 2] and len(committed.token_id) == 2
        assert (committed.finished_seq_id, committed.finish_reason) == ([1], ["error"])

    def test_what_it_computed_is_served_to_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Or a second try, and all that begin alike, would read what broke the first."""
        engine, _, _ = self.run(monkeypatch)
        again = engine.add_request([1, *PROMPT, 1], SamplingParams(max_tokens=5))
        run_to_end(engine)
        assert again.num_cached_tokens == 0
        assert again.completion_token_ids == unconstrained([1, *PROMPT, 1], 5)
        other = engine.add_request([0, *PROMPT, 0], SamplingParams(max_tokens=5))
        run_to_end(engine)
        assert other.num_cached_tokens == 4  # a healthy one's blocks are still there


class TestLogprobs:
    def test_prompt_logprobs_pass_the_cache_by_once(self) -> None:
        """check_invariants looks at the numbers after each step; here: what comes from the cache, and why not."""
        engine = toy_engine(32, 4, max_num_batched_tokens=4)
        causes: list[str] = []
        params = SamplingParams(max_tokens=3, prompt_logprobs=1, n=2)
        for _ in range(2):
            first = engine.add_request(range(9), params)
            while engine.has_unfinished:
                record = engine.step(want_record=True).record
                assert record is not None
                causes += record.planned.admitted.miss_cause
                check_invariants(engine)
            assert len(first.prompt_logprobs or ()) == 9 and first.num_cached_tokens == 0
            (sibling,) = first.siblings
            assert sibling.prompt_logprobs is None and sibling.num_cached_tokens == 8
        assert causes == ["bypassed", "partial"] * 2

    def test_once_they_are_known_a_recompute_may_hit(self) -> None:
        engine = toy_engine(4, 4)
        params = SamplingParams(max_tokens=8, prompt_logprobs=0, logprobs=0)
        seqs = [engine.add_request([1, 2, 3, 4, 5, 6, i], params) for i in range(2)]
        while engine.has_unfinished:
            engine.step()
            check_invariants(engine)
        assert sum(seq.num_preemptions for seq in seqs) == 1
        assert max(seq.num_cached_tokens for seq in seqs) > 0
        assert [len(seq.prompt_logprobs or ()) for seq in seqs] == [7, 7]
