"""The free list against a plain list: order, size, and every change taken back."""

from __future__ import annotations

import random

import pytest

from nvexplore.engine.free_list import FreeList
from nvexplore.engine.undo import UndoLog
from tests.undo_logs import Hasty, Stopping, stop_at_each_entry


def backwards(free: FreeList) -> list[int]:
    """The list from its tail, by the links that point back."""
    found, block = [], free._prev[free._sentinel]
    while block != free._sentinel:
        found.append(block)
        block = free._prev[block]
    return found


def check(free: FreeList, expected: list[int]) -> None:
    assert list(free) == expected and backwards(free) == expected[::-1]
    assert len(free) == len(expected)
    if expected:
        assert free.head() == expected[0]


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
def test_it_begins_with_all_blocks_in_order(num_blocks: int) -> None:
    check(FreeList(num_blocks, UndoLog()), list(range(num_blocks)))


def test_the_only_block_comes_and_goes() -> None:
    free = FreeList(1, UndoLog())
    for take_it in (lambda: free.remove(0), lambda: free.take(1)):
        take_it()
        check(free, [])
        free.extend([0])
        check(free, [0])


def test_blocks_are_taken_at_the_head_and_put_at_the_tail() -> None:
    free = FreeList(6, UndoLog())
    free.remove(1)
    assert free.take(3) == [0, 2, 3]
    check(free, [4, 5])
    free.extend([3, 0])
    check(free, [4, 5, 3, 0])
    free.extend([])
    check(free, [4, 5, 3, 0])
    assert free.take(4) == [4, 5, 3, 0]
    check(free, [])
    free.extend([2, 1])
    check(free, [2, 1])


@pytest.mark.parametrize("seed", range(12))
def test_it_is_a_queue_from_whose_middle_one_can_take(seed: int) -> None:
    rng = random.Random(seed)
    undo = Hasty() if seed % 2 else UndoLog()
    num_blocks = rng.randint(1, 7)
    free, model = FreeList(num_blocks, undo), list(range(num_blocks))
    for _ in range(60):
        saved = list(model)
        for _ in range(rng.randint(1, 6)):
            held = [block for block in range(num_blocks) if block not in model]
            if held and (not model or rng.random() < 0.5):
                blocks = rng.sample(held, rng.randint(1, len(held)))
                free.extend(blocks)
                model += blocks
            elif rng.random() < 0.5:
                block = rng.choice(model)
                free.remove(block)
                model.remove(block)
            else:
                count = rng.randint(1, len(model))
                assert free.take(count) == model[:count]
                del model[:count]
            check(free, model)
        if rng.random() < 0.5:
            undo.rollback()
            model = saved
            check(free, model)
        else:
            undo.commit()


def test_a_change_that_was_announced_only_is_undone() -> None:
    undo = Stopping()
    free = FreeList(4, undo)
    free.remove(2)
    undo.commit()

    def look() -> tuple[list[int], list[int], int]:
        return list(free), backwards(free), len(free)

    for change in (lambda: free.remove(1), lambda: free.take(2), lambda: free.extend([2])):
        assert stop_at_each_entry(undo, change, look) == 1
    check(free, [0, 1, 3])
