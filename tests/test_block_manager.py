"""The block manager by itself: what is shared and allocated, in which order it comes back, and all of it undone."""

from __future__ import annotations

from typing import Any

import pytest

from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.event_log import EventLog
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.undo import UndoLog
from nvexplore.sampling_params import SamplingParams
from tests.undo_logs import Hasty, Stopping, stop_at_each_entry


def make(num_blocks: int = 8, undo: UndoLog | None = None, **limits: Any) -> BlockManager:
    made = EngineLimits(num_blocks=num_blocks, block_size=4, **limits)
    return BlockManager(made, UndoLog() if undo is None else undo, EventLog())


def seq_of(tokens: Any, seq_id: int = 0, **params: Any) -> Sequence:
    return Sequence(seq_id, list(tokens), SamplingParams(**params), request_id=str(seq_id))


def start(blocks: BlockManager, seq: Sequence, num_written: int | None = None) -> Sequence:
    """Admit ``seq``, and write its tokens or so many of them."""
    blocks.admit(seq, blocks.find_prefix(seq))
    blocks.register_written(seq, seq.num_tokens if num_written is None else num_written)
    return seq


def state(blocks: BlockManager, *seqs: Sequence) -> tuple[Any, ...]:
    cache = blocks.cache
    mine = [(list(s.block_table), list(s.chain), s.num_cached_tokens, s.num_computed_tokens) for s in seqs]
    children = {parent: set(children) for parent, children in cache._children.items()}
    known = (list(cache.content), dict(cache._block_of), children, cache._next_registration)
    return (list(blocks.free), len(blocks.free), list(blocks.ref_count), list(blocks.num_hits), known, mine)


def told(blocks: BlockManager) -> list[tuple[Any, ...]]:
    """The events since the last call."""
    events, blocks._log.events = blocks._log.events, []
    return events


class TestFindPrefix:
    @pytest.mark.parametrize(("length", "num_hits"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (20, 3)])
    def test_whole_blocks_and_never_all_tokens(self, length: int, num_hits: int) -> None:
        blocks = make()
        first = start(blocks, seq_of(range(12)))
        assert blocks.find_prefix(seq_of(range(length), 1)) == first.block_table[:num_hits]

    def test_what_is_not_written_is_not_found(self) -> None:
        blocks = make()
        first = start(blocks, seq_of(range(12)), num_written=7)
        assert blocks.find_prefix(seq_of(range(12), 1)) == first.block_table[:1]
        blocks.register_written(first, 8)
        assert blocks.find_prefix(seq_of(range(12), 1)) == first.block_table[:2]

    def test_hits_end_at_the_first_miss(self) -> None:
        blocks = make()
        first = start(blocks, seq_of(range(12)))
        blocks.evict(first.block_table[1])
        assert blocks.find_prefix(seq_of(range(13), 1)) == first.block_table[:1]

    def test_nothing_for_those_who_may_not_share(self) -> None:
        blocks = make()
        start(blocks, seq_of(range(12)))
        assert blocks.find_prefix(seq_of(range(12), 1, prompt_logprobs=0)) == []
        known = seq_of(range(12), 1, prompt_logprobs=0)
        known.prompt_logprobs = [None, *({} for _ in range(11))]
        assert len(blocks.find_prefix(known)) == 2
        off = make(enable_prefix_caching=False)
        first = start(off, seq_of(range(12)))
        assert off.find_prefix(seq_of(range(12), 1)) == [] and first.chain == []
        assert [off.hash_of(block) for block in range(8)] == [None] * 8


class TestShortage:
    @pytest.mark.parametrize(("length", "needed"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
    def test_without_hits_every_begun_block(self, length: int, needed: int) -> None:
        assert make().shortage(seq_of(range(length)), []) == (needed, 8)

    def test_a_hit_that_somebody_holds_is_free_of_charge(self) -> None:
        blocks = make()
        first, second = start(blocks, seq_of(range(8))), seq_of(range(9), 1)
        assert blocks.shortage(second, blocks.find_prefix(second)) == (1, 6)
        blocks.release(first)
        assert blocks.shortage(second, blocks.find_prefix(second)) == (3, 8)


class TestLife:
    def test_admission_shares_and_allocates(self) -> None:
        blocks = make()
        first = start(blocks, seq_of(range(9)))
        assert first.block_table == [0, 1, 2] and first.num_cached_tokens == first.num_computed_tokens == 0
        assert blocks.allocated_this_step == [0, 1, 2]
        assert [event[:3] for event in told(blocks)] == [
            *(("allocated", block, 0) for block in range(3)),
            *(("hashed", block, 0) for block in range(2)),
        ]
        blocks.start_step(1)
        second = start(blocks, seq_of(range(10), 1))
        assert second.block_table == [0, 1, 3] and second.num_cached_tokens == second.num_computed_tokens == 8
        assert second.chain == first.chain and len(second.chain) == 2
        assert blocks.ref_count == [2, 2, 1, 1, 0, 0, 0, 0] and blocks.num_hits == [1, 1, 0, 0, 0, 0, 0, 0]
        assert blocks.allocated_this_step == [3] and blocks.num_allocated == 4
        assert told(blocks) == [("hit", 0, 1, None), ("hit", 1, 1, None), ("allocated", 3, 1, None)]

    def test_hits_on_free_blocks_leave_the_free_list(self) -> None:
        blocks = make(4)
        blocks.release(start(blocks, seq_of(range(9))))
        assert list(blocks.free) == [3, 2, 1, 0]
        second = start(blocks, seq_of(range(9), 1))
        assert second.block_table == [0, 1, 3] and list(blocks.free) == [2]

    def test_blocks_come_back_tail_first_when_nobody_holds_them(self) -> None:
        blocks = make()
        first, second = start(blocks, seq_of(range(9))), start(blocks, seq_of(range(9), 1))
        told(blocks)
        blocks.release(first)
        assert list(blocks.free) == [4, 5, 6, 7, 2] and blocks.ref_count[:4] == [1, 1, 0, 1]
        assert told(blocks) == [("freed", 2, 0, None), ("freed", 1, 0, None), ("freed", 0, 0, None)]
        assert first.block_table == [] and first.chain == []
        blocks.release(second)
        assert list(blocks.free) == [4, 5, 6, 7, 2, 3, 1, 0] and blocks.ref_count == [0] * 8

    def test_growing_allocates_what_is_lacking(self) -> None:
        blocks = make()
        seq = start(blocks, seq_of(range(5)))
        for num_tokens, length in ((8, 2), (4, 2), (9, 3), (20, 5)):
            blocks.grow(seq, num_tokens)
            assert len(seq.block_table) == length
        assert blocks.ref_count == [1] * 5 + [0] * 3 and list(blocks.free) == [5, 6, 7]

    @pytest.mark.parametrize("eviction", ["lru", "lfu"])
    def test_an_allocated_block_forgets_what_it_held(self, eviction: str) -> None:
        blocks = make(3, eviction=eviction)
        blocks.release(start(blocks, seq_of(range(9))))
        blocks.release(start(blocks, seq_of(range(9), 1)))
        hashes = [blocks.hash_of(block) for block in (0, 1)]
        assert None not in hashes and blocks.num_hits == [1, 1, 0]
        told(blocks)
        blocks.start_step(7)
        other = seq_of(range(50, 62), 2)
        blocks.admit(other, [])
        assert [blocks.hash_of(block) for block in range(3)] == [None] * 3 and blocks.num_hits == [0] * 3
        events = [event[:2] for event in told(blocks)]
        assert [events.index(("evicted", block)) < events.index(("allocated", block)) for block in (0, 1)] == [True] * 2
        assert blocks.cache.evicted_at((0, 0), [0, 1, 2, 3]) == 7
        assert sorted(blocks.allocated_this_step) == [0, 1, 2]


class TestRegistering:
    def test_only_blocks_that_are_full(self) -> None:
        blocks = make()
        seq = seq_of(range(11))
        blocks.admit(seq, [])
        for written, registered in ((3, 0), (4, 1), (7, 1), (8, 2), (11, 2)):
            blocks.register_written(seq, written)
            assert len(seq.chain) == registered == sum(blocks.hash_of(block) is not None for block in range(8))
        contents = [blocks.cache.content[block] for block in seq.block_table[:2]]
        assert [content and (content.token_ids, content.depth) for content in contents] == [
            ((0, 1, 2, 3), 0),
            ((4, 5, 6, 7), 1),
        ]
        assert [link[0] for link in seq.chain] == [blocks.hash_of(block) for block in seq.block_table[:2]]

    def test_a_copy_is_not_told_as_hashed_and_chains_to_the_first(self) -> None:
        blocks = make()
        first, second = seq_of(range(9)), seq_of(range(9), 1)
        blocks.admit(first, [])
        blocks.admit(second, [])
        blocks.register_written(first, 9)
        told(blocks)
        blocks.register_written(second, 9)
        assert told(blocks) == [] and second.chain == first.chain
        assert [blocks.hash_of(block) for block in second.block_table] == [None] * 3

    def test_one_that_gives_way_is_told_as_evicted(self) -> None:
        limits = EngineLimits(num_blocks=8, block_size=4)
        blocks = BlockManager(limits, UndoLog(), EventLog(), lambda parent, ids: 5)
        blocks.admit(first := seq_of(range(4)), [])
        blocks.admit(second := seq_of(range(10, 14), 1), [])
        blocks.register_written(first, 4)
        told(blocks)
        blocks.register_written(second, 4)
        assert told(blocks) == [("evicted", 0, -1, None), ("hashed", 1, 1, 5)]

    def test_forgetting(self) -> None:
        blocks = make()
        seq = start(blocks, seq_of(range(9)))
        told(blocks)
        blocks.evict(2)
        assert told(blocks) == [], "it held nothing that could be hit"
        blocks.evict(0)
        assert told(blocks) == [("evicted", 0, -1, None)] and blocks.hash_of(0) is None
        blocks.forget_all()
        assert told(blocks) == [] and len(blocks.cache) == 0 and seq.block_table == [0, 1, 2]


class TestUndo:
    @pytest.mark.parametrize("eviction", ["lru", "lfu"])
    def test_whatever_stops_half_way_is_undone(self, eviction: str) -> None:
        undo = Stopping()
        blocks = make(5, undo, eviction=eviction)
        gone = start(blocks, seq_of(range(9)))
        start(blocks, seq_of([*range(8), 70], 1))
        stays = start(blocks, seq_of(range(60, 63), 2), num_written=0)
        blocks.release(gone)
        undo.commit()
        new, other, held = seq_of(range(7), 3), seq_of(range(80, 84), 4), stays
        assert list(blocks.free) == [2]

        def look() -> tuple[Any, ...]:
            return state(blocks, gone, stays, new, other)

        for change in (
            lambda: blocks.admit(new, blocks.find_prefix(new)),
            lambda: (blocks.admit(other, []), blocks.register_written(other, 4)),
            lambda: blocks.release(held),
            lambda: (blocks.release(held), blocks.admit(other, [])),
            lambda: blocks.grow(held, 8),
            lambda: blocks.evict(0),
            blocks.forget_all,
        ):
            assert stop_at_each_entry(undo, change, look) > 0

    @pytest.mark.parametrize("eviction", ["lru", "lfu"])
    def test_entries_do_no_harm_before_their_change_or_twice(self, eviction: str) -> None:
        undo = Hasty()
        blocks = make(4, undo, eviction=eviction)
        first = start(blocks, seq_of(range(9)))
        blocks.release(start(blocks, seq_of(range(9), 1)))
        blocks.release(first)
        undo.commit()
        second, third = seq_of(range(9), 2), seq_of(range(40, 44), 3)
        before = state(blocks, second, third)
        start(blocks, second)
        assert blocks.num_hits.count(2) == 2
        start(blocks, third)
        blocks.release(second)
        blocks.grow(third, 16)
        assert len(third.block_table) == 4 and blocks.ref_count == [1] * 4
        undo.rollback()
        assert state(blocks, second, third) == before
