"""Prefix caching as a request sees it: salts share nothing and are explained right; sha256 finds what xxhash finds."""

from __future__ import annotations

from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.hashing import sha256_hash
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained

Admission = tuple[int, str, int | None, int | None, int | None]


def admit(engine: Engine, prompt: Any, salt: str | None, max_tokens: int = 1) -> tuple[Sequence, Admission]:
    """Add a request and step once: the request, and (cached tokens, cause, position, block, step) of its admission."""
    seq = engine.add_request(prompt, SamplingParams(max_tokens=max_tokens, cache_salt=salt))
    record = engine.step(want_record=True).record
    assert record is not None
    a = record.planned.admitted
    return seq, (a.num_cached_tokens[-1], a.miss_cause[-1], a.miss_position[-1], a.miss_block_id[-1], a.miss_step[-1])


class TestSalts:
    def test_only_the_same_salt_shares(self) -> None:
        engine = toy_engine(32)
        salts = [None, "a", "b", "a", None, "b", "c"]
        cached = [admit(engine, range(9), salt)[1][0] for salt in salts]
        assert cached == [0, 0, 0, 8, 8, 8, 0]
        check_invariants(engine)

    def test_outputs_do_not_depend_on_it(self) -> None:
        engine = toy_engine(9, 2)
        params = [SamplingParams(max_tokens=6, cache_salt=salt) for salt in (None, "a", "b", "a")]
        seqs = [engine.add_request(range(7), each) for each in params]
        while engine.has_unfinished:
            engine.step()
            check_invariants(engine)
        assert all(seq.completion_token_ids == unconstrained(list(range(7)), 6) for seq in seqs)

    def test_tokens_a_request_generated_are_found_under_its_salt_only(self) -> None:
        engine = toy_engine(32)
        seq, _ = admit(engine, range(6), "a", max_tokens=8)
        run_to_end(engine)
        said = [*seq.token_ids[:13], 77]
        assert admit(engine, said, "b")[1][:2] == (0, "unseen")
        assert admit(engine, said, "a")[1][:2] == (12, "partial")

    def test_samples_of_one_request_share(self) -> None:
        engine = toy_engine(32)
        first = engine.add_request(range(9), SamplingParams(max_tokens=2, n=3, cache_salt="a"))
        engine.step()
        assert [seq.num_cached_tokens for seq in first.samples] == [0, 8, 8]

    def test_a_near_miss_is_named_within_the_salt_only(self) -> None:
        engine = toy_engine(32)
        near, _ = admit(engine, range(9), "a", max_tokens=3)
        block = near.block_table[0]
        run_to_end(engine)
        almost = [0, 1, 2, 77, 4, 5, 6, 7, 8]
        assert admit(engine, almost, "a")[1] == (0, "differs", 3, block, None)
        assert admit(engine, almost, "b")[1] == (0, "unseen", None, None, None)
        assert admit(engine, almost, None)[1] == (0, "unseen", None, None, None)

    def test_a_request_in_flight_counts_within_the_salt_only(self) -> None:
        engine = toy_engine(32, max_num_batched_tokens=8)
        first, _ = admit(engine, range(8), "a", max_tokens=9)
        while first.num_tokens < 12:
            engine.step()
        wanted = [*first.token_ids[:12], 5, 6]
        assert admit(engine, wanted, "a")[1][:2] == (8, "in_flight")
        other = toy_engine(32, max_num_batched_tokens=8)
        first, _ = admit(other, range(8), "a", max_tokens=9)
        while first.num_tokens < 12:
            other.step()
        assert admit(other, wanted, None)[1][:2] == (0, "unseen")

    def test_an_eviction_is_told_within_the_salt_only(self) -> None:
        engine = toy_engine(3)
        admit(engine, range(9), "a")
        evicting = engine.next_step
        admit(engine, range(50, 62), None)
        assert admit(engine, range(9), "b")[1] == (0, "unseen", None, None, None)
        assert admit(engine, range(9), "a")[1] == (0, "evicted", None, None, evicting)

    def test_hashes_in_snapshots_tell_salts_apart(self) -> None:
        engine = toy_engine(8)
        for salt in (None, "a"):
            admit(engine, range(5), salt)
        hashes = [value for value in engine.snapshot().hash if value is not None]
        assert len(set(hashes)) == 2

    def test_one_that_is_preempted_finds_its_own_blocks_again(self) -> None:
        engine = toy_engine(5)
        seqs = [engine.add_request(range(7), SamplingParams(max_tokens=8, cache_salt=salt)) for salt in ("a", "b", "a")]
        run_to_end(engine)
        check_invariants(engine)
        assert sum(seq.num_preemptions for seq in seqs) > 0
        assert all(seq.completion_token_ids == unconstrained(list(range(7)), 8) for seq in seqs)


class TestHashes:
    def run(self, prefix_hash: str) -> tuple[list[Any], Engine]:
        engine = toy_engine(9, 2, max_num_batched_tokens=6, prefix_hash=prefix_hash)
        told: list[Any] = []
        prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7], [1, 2, 9], [1, 2, 3, 4, 5, 6], [8, 8, 8], [1, 2, 3, 4, 5]]
        for number, prompt in enumerate(prompts):
            engine.add_request(prompt, SamplingParams(max_tokens=4, cache_salt="s" if number % 3 == 2 else None))
        while engine.has_unfinished:
            record = engine.step(want_record=True).record
            assert record is not None
            planned, admitted = record.planned, record.planned.admitted
            told.append((planned.seq_id, planned.start, planned.count, planned.blocks.kind, planned.blocks.block_id))
            told.append(
                (admitted.num_cached_tokens, admitted.miss_cause, admitted.miss_block_id, record.committed.token_id)
            )
        check_invariants(engine)
        return told, engine

    def test_sha256_gives_the_same_hits(self) -> None:
        (fast, first), (safe, second) = self.run("xxhash"), self.run("sha256")
        assert fast == safe and any("hit" in row[3] for row in fast[::2])
        hashes = [{h for h in engine.snapshot().hash if h is not None} for engine in (first, second)]
        assert hashes[0] and hashes[1] and not hashes[0] & hashes[1]

    def test_the_hash_is_that_of_the_option(self) -> None:
        engine = toy_engine(8, prefix_hash="sha256")
        admit(engine, range(9), None)
        first = sha256_hash(0, [0, 1, 2, 3])
        found = {h for h in engine.snapshot().hash if h is not None}
        assert found == {first, sha256_hash(first, [4, 5, 6, 7])}

    def test_a_function_of_the_callers_comes_before_the_option(self) -> None:
        plain = toy_engine(8)
        engine = Engine(plain.limits, plain.runner, hash_function=lambda parent, ids: parent + sum(ids))
        admit(engine, range(5), None)
        assert [h for h in engine.snapshot().hash if h is not None] == [6]

    def test_another_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"prefix_hash='md5': must be one of 'xxhash', 'sha256'"):
            EngineLimits(num_blocks=4, prefix_hash="md5")
