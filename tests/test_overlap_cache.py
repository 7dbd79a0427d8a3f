"""Overlapped steps and the prefix cache: what is shared ahead, and when a block can be hit."""

from __future__ import annotations

from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits
from tests.fakes import unconstrained
from tests.follow import Follower, add, finish, overlapped
from tests.toy_device import ToyDevice


def test_a_request_that_is_admitted_ahead_shares_what_the_step_in_the_air_writes() -> None:
    engine, follower = overlapped(max_num_batched_tokens=9)
    seqs = [add(engine, [*range(8), last], 3) for last in (8, 9)]
    finish(engine, follower, *seqs)
    planned = follower.records[1].planned
    assert planned.is_ahead and planned.admitted.num_cached_tokens == [8] and planned.blocks.kind[:2] == ["hit", "hit"]


def test_a_block_is_registered_by_the_commit_that_learns_its_last_token() -> None:
    engine, follower = overlapped(8, 4)
    seq = add(engine, [1, 2, 3], 7)
    finish(engine, follower, seq)
    hashed = [
        (record.step, phase) for record in follower.records for phase in ("planned", "committed")
        for kind in getattr(record, phase).blocks.kind if kind == "hashed"
    ]  # fmt: skip
    assert hashed == [(1, "committed"), (5, "committed")]
    again = add(engine, seq.token_ids[:9], 1)
    finish(engine, follower, again)
    assert again.num_cached_tokens == 8


class TestCollisions:
    """An entry of the prefix cache that stands in the way of a landing stays: a plan may have made it since."""

    def test_a_block_whose_hash_is_taken_is_left_out_until_a_plan_knows_its_tokens(self) -> None:
        follower = Follower()
        engine = Engine(
            EngineLimits(num_blocks=8, block_size=2), ToyDevice(8, 2), hash_function=lambda *_: 7, overlap=True
        )
        engine.subscribe(follower)
        seq = add(engine, [1, 2, 3], 6)
        for _ in range(3):
            engine.advance()
        assert engine.snapshot().hash[:3] == [7, None, None] and len(seq.chain) == 1 and len(seq.block_table) == 3
        engine.step()
        assert engine.snapshot().hash[:3] == [None, None, 7] and len(seq.chain) == 3
        finish(engine, follower, seq)

    def test_so_is_one_that_an_orphan_has(self) -> None:
        engine, follower = overlapped(8, 2)
        finish(engine, follower, add(engine, [1, 2, 3], 4))
        assert [block for block, hash_ in enumerate(engine.snapshot().hash) if hash_ is not None] == [0, 1, 2]
        engine.blocks.evict(0)
        engine._undo.commit()
        seq = add(engine, [1, 2, 3], 5)
        for _ in range(3):
            engine.advance()
        table, hashes = seq.block_table, engine.snapshot().hash
        assert seq.num_cached_tokens == 0 and len(seq.chain) == 1 and len(table) == 3 and 1 not in table
        assert [hashes[block] is None for block in (1, *table)] == [False, False, True, True]
        finish(engine, follower, seq)

    def test_what_another_request_has_registered_meanwhile_is_shared(self) -> None:
        said = unconstrained([1, 2, 3], 1)
        engine, follower = overlapped(8, 2, policy="mixed", max_num_batched_tokens=3)
        seqs = [add(engine, [1, 2, 3], 4), add(engine, [1, 2, 3, *said, 9], 2)]
        engine.advance()
        engine.advance()
        assert follower.records[1].planned.is_ahead and follower.records[1].planned.count == [1, 2]
        assert follower.records[1].planned.blocks.kind == ["hit", "allocated", "allocated", "hashed"]
        assert follower.records[1].committed.blocks.kind == [] and len(seqs[0].chain) == 2
        assert seqs[0].chain == seqs[1].chain[:2]
        finish(engine, follower, *seqs)
