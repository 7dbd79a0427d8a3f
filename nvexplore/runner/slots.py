"""Where a token's keys and values lie in the pool. Pure Python: knows no tensors and no scheduler."""

from __future__ import annotations

from collections.abc import Sequence


def slots_of(block_table: Sequence[int], block_size: int, start: int, stop: int) -> list[int]:
    """Return the slot of every token [start, stop) of a sequence whose physical blocks are ``block_table``.

    Slot numbers count tokens through the whole pool: block b holds slots b * block_size and the next
    block_size - 1. ValueError where the table does not reach ``stop``.
    """
    if not 0 <= start <= stop <= len(block_table) * block_size:
        raise ValueError(
            f"tokens [{start}, {stop}): the block table holds {len(block_table) * block_size} tokens "
            f"({len(block_table)} blocks of {block_size})"
        )
    return [block_table[position // block_size] * block_size + position % block_size for position in range(start, stop)]
