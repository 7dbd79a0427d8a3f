"""The prefix cache by itself: hashes, hits only on equal content, collisions, what is remembered, what is undone."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from nvexplore.engine import prefix_cache
from nvexplore.engine.hashing import HASH_FUNCTIONS, HashFunction, chain_hash, sha256_hash
from nvexplore.engine.prefix_cache import MAX_CHILDREN_COMPARED, ROOT, PrefixCache
from nvexplore.engine.undo import UndoLog
from tests.undo_logs import Hasty, Stopping, stop_at_each_entry


def make(num_blocks: int = 8, hash_function: HashFunction = chain_hash) -> tuple[PrefixCache, UndoLog]:
    undo = UndoLog()
    return PrefixCache(num_blocks, undo, hash_function), undo


def state(cache: PrefixCache) -> dict[str, Any]:
    """All that an undo must bring back. (Not the order of the children: of equally near ones another may be named.)"""
    return {
        "content": list(cache.content),
        "block_of": dict(cache._block_of),
        "children": {parent: set(blocks) for parent, blocks in cache._children.items()},
        "next": cache._next_registration,
    }


def test_hashes_are_the_same_in_every_process() -> None:
    assert chain_hash(0, [1, 2, 3]) == 15419903723500502158
    assert chain_hash(2**64 - 1, [5]) == 17490191737837270989
    ids = struct.pack("<Q3q", 77, 1, 2, 3)
    assert sha256_hash(77, [1, 2, 3]) == int.from_bytes(hashlib.sha256(ids).digest()[:8], "little")


@pytest.mark.parametrize("name", HASH_FUNCTIONS)
def test_a_hash_depends_on_the_parent_and_on_every_id(name: str) -> None:
    hash_function = HASH_FUNCTIONS[name]
    values = {hash_function(parent, ids) for parent in (0, 1) for ids in ([1, 2], [2, 1], [1, 3], [1, 2, 0])}
    assert len(values) == 8 and all(0 <= value < 2**64 for value in values)


def test_a_chain_of_blocks_is_found_link_by_link() -> None:
    cache, _ = make()
    first, is_new, replaced = cache.register(3, ROOT, [1, 2], 0)
    assert (first[1], is_new, replaced) == (1, True, -1)
    second, is_new, replaced = cache.register(5, first, [3, 4], 1)
    assert (second[1], is_new, replaced) == (2, True, -1)
    assert cache.find(ROOT, [1, 2]) == 3 and cache.find(first, [3, 4]) == 5
    assert cache.link(3) == first and cache.link(5) == second
    assert cache.find(ROOT, [3, 4]) is None and cache.find(second, [3, 4]) is None and cache.find(ROOT, [1, 3]) is None
    content = cache.content[5]
    assert content is not None and (content.token_ids, content.depth, content.parent) == ((3, 4), 1, first[1])
    assert cache.content[3] is not None and cache.content[3].depth == 0
    assert len(cache) == 2


def test_a_second_copy_is_not_registered() -> None:
    cache, undo = make()
    link, _, _ = cache.register(3, ROOT, [1, 2], 0)
    undo.commit()
    before = state(cache)
    assert cache.register(4, ROOT, [1, 2], 0) == (link, False, -1)
    assert state(cache) == before and not undo


def test_a_block_whose_parent_was_registered_anew_is_an_orphan() -> None:
    """Its hash is right, its parent's registration is not: it gives way to the next one with this content."""
    cache, _ = make()
    old, _, _ = cache.register(0, ROOT, [1], 0)
    cache.register(1, old, [2], 1)
    cache.forget(0)
    new, _, _ = cache.register(2, ROOT, [1], 0)
    assert new[0] == old[0] and new[1] != old[1]
    assert cache.find(new, [2]) is None
    link, is_new, replaced = cache.register(3, new, [2], 1)
    assert (is_new, replaced) == (True, 1) and cache.content[1] is None
    assert cache.find(new, [2]) == 3 and cache.link(3) == link
    assert len(cache) == 2


def collide(parent_hash: int, token_ids: list[int]) -> int:
    return 7


def test_colliding_prompts_are_never_mixed_up() -> None:
    cache, _ = make(hash_function=collide)
    cache.register(0, ROOT, [1], 0)
    assert cache.find(ROOT, [2]) is None
    link, is_new, replaced = cache.register(1, ROOT, [2], 0)
    assert (is_new, replaced) == (True, 0)
    assert cache.find(ROOT, [1]) is None and cache.find(ROOT, [2]) == 1
    assert cache.find(link, [2]) is None, "the same ids after another parent"
    assert len(cache) == 1 and cache.content[0] is None


class TestSalts:
    def test_each_salt_has_a_root_of_its_own(self) -> None:
        cache, _ = make()
        roots = [cache.root(salt) for salt in (None, "a", "b", "ä", "\ud800")]
        assert roots[0] == ROOT == (0, 0)
        assert len({root[0] for root in roots}) == len({root[1] for root in roots}) == 5
        assert roots[1] == (chain_hash(0, [ord("a")]), "a")

    def test_what_one_salt_registers_another_does_not_find(self) -> None:
        cache, _ = make()
        a, b = cache.root("a"), cache.root("b")
        link, _, _ = cache.register(0, a, [1, 2], 0)
        cache.register(1, link, [3, 4], 1)
        assert cache.find(a, [1, 2]) == 0 and cache.find(b, [1, 2]) is None and cache.find(ROOT, [1, 2]) is None
        other, is_new, replaced = cache.register(2, b, [1, 2], 0)
        assert (is_new, replaced) == (True, -1) and cache.find(b, [1, 2]) == 2
        assert cache.find(other, [3, 4]) is None
        assert cache.children(a) == [0] and cache.children(b) == [2] and cache.children(ROOT) == []

    def test_even_when_their_hashes_collide(self) -> None:
        cache, _ = make(hash_function=collide)
        a, b = cache.root("a"), cache.root("b")
        cache.register(0, a, [1], 0)
        assert a[0] == b[0] and cache.find(b, [1]) is None


class TestChildren:
    def test_the_newest_comes_first(self) -> None:
        cache, _ = make()
        for block, token_id in ((4, 1), (2, 2), (6, 3)):
            cache.register(block, ROOT, [token_id], 0)
        assert cache.children(ROOT) == [6, 2, 4]
        cache.forget(2)
        assert cache.children(ROOT) == [6, 4]

    def test_no_more_than_are_compared(self) -> None:
        assert MAX_CHILDREN_COMPARED == 256
        cache, _ = make(300)
        for block in range(300):
            cache.register(block, ROOT, [block], 0)
        assert cache.children(ROOT) == list(range(299, 43, -1))

    def test_of_one_that_has_none(self) -> None:
        cache, _ = make()
        link, _, _ = cache.register(0, ROOT, [1], 0)
        assert cache.children(link) == []
        cache.forget(0)
        assert cache.children(ROOT) == [] and cache._children == {}, "nothing is kept for parents without children"


class TestEvictions:
    def test_the_step_is_remembered(self) -> None:
        cache, _ = make()
        link, _, _ = cache.register(0, ROOT, [1], 0)
        cache.register(1, link, [2], 1)
        assert cache.evicted_at(link, [2]) is None
        cache.register(2, ROOT, [7], 0)
        cache.forget(2)
        assert cache.evicted_at(ROOT, [7]) == 0
        cache.step = 5
        cache.forget(1)
        assert cache.evicted_at(link, [2]) == 5 and cache.evicted_at(ROOT, [1]) is None
        cache.register(1, link, [2], 1)
        cache.step = 9
        cache.forget(1)
        assert cache.evicted_at(link, [2]) == 9

    def test_the_oldest_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert prefix_cache.MAX_EVICTIONS_KEPT == 16_384
        monkeypatch.setattr(prefix_cache, "MAX_EVICTIONS_KEPT", 5)
        cache, _ = make(1)
        for token_id in range(8):
            cache.step = token_id
            cache.register(0, ROOT, [token_id], 0)
            cache.forget(0)
        known = [cache.evicted_at(ROOT, [token_id]) for token_id in range(8)]
        assert known == [None, None, None, 3, 4, 5, 6, 7]

    def test_one_that_comes_again_is_the_last_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prefix_cache, "MAX_EVICTIONS_KEPT", 2)
        cache, _ = make(1)
        for cache.step, token_id in enumerate([7, 8, 7, 9]):
            cache.register(0, ROOT, [token_id], 0)
            cache.forget(0)
        assert [cache.evicted_at(ROOT, [token_id]) for token_id in (7, 8, 9)] == [2, None, 3]


@pytest.mark.parametrize("make_undo", [UndoLog, Hasty])
@pytest.mark.parametrize("hash_function", [chain_hash, collide])
def test_every_change_can_be_undone(hash_function: HashFunction, make_undo: type[UndoLog]) -> None:
    undo = make_undo()
    cache = PrefixCache(8, undo, hash_function)
    link, _, _ = cache.register(0, ROOT, [1], 0)
    if hash_function is chain_hash:
        cache.register(1, link, [2], 1)
        cache.register(2, ROOT, [3], 0)
    undo.commit()
    before = state(cache)
    for change in (
        lambda: cache.register(5, ROOT, [9], 0),
        lambda: cache.register(5, link, [9], 1),
        lambda: cache.register(5, (4, 4), [9], 1),
        lambda: cache.forget(0),
        lambda: (cache.forget(0), cache.register(0, ROOT, [1], 0)),
    ):
        change()
        assert state(cache) != before
        undo.rollback()
        assert state(cache) == before


def test_a_change_that_stops_half_way_is_undone() -> None:
    undo = Stopping()
    cache = PrefixCache(8, undo)
    link, _, _ = cache.register(0, ROOT, [1], 0)
    cache.register(1, link, [2], 1)
    undo.commit()
    for change in (
        lambda: cache.register(2, (5, 5), [7], 3),
        lambda: cache.register(2, ROOT, [7], 0),
        lambda: cache.forget(1),
        lambda: (cache.forget(0), cache.register(0, ROOT, [1], 0)),
    ):
        assert stop_at_each_entry(undo, change, lambda: state(cache)) > 0


class StopsInTheTable(int):
    """A hash that raises when the table is asked to hold it, the second time that it is looked at."""

    looks = 0

    def __hash__(self) -> int:
        StopsInTheTable.looks += 1
        if StopsInTheTable.looks == 2:
            raise KeyboardInterrupt
        return super().__hash__()


def test_a_block_that_is_in_no_table_yet_is_undone() -> None:
    """Its link is set, and nothing is found by it: the first thing of a registration, and the last of its undoing."""
    cache, undo = make(hash_function=lambda parent_hash, token_ids: StopsInTheTable(parent_hash + sum(token_ids)))
    before = state(cache)
    with pytest.raises(KeyboardInterrupt):
        cache.register(3, ROOT, [1, 2], 0)
    assert cache.links[3] is not None
    undo.rollback()
    assert state(cache) == before
