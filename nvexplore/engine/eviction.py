"""Which free block is allocated next, and so loses the prefix it holds. Chooses; changes nothing.

Write one of your own by subclassing ``Eviction``, then ``LLM(eviction=MyEviction())``::

    class ShallowLast(Eviction):
        name = "shallow_last"

        def choose(self, free):
            return max(islice(free, 64), key=free.depth)

Outputs never depend on the choice, only how often a prefix is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from nvexplore.engine.free_list import FreeList
from nvexplore.engine.prefix_cache import PrefixCache

LFU_WINDOW = 64


class FreeBlocks:
    """The free blocks, as an ``Eviction`` sees them: iterates over their ids, least recently freed first.

    Of one sequence the tail comes before the head. Walk a bounded part of it (``islice``): a pool has many blocks,
    and a choice is made for each block that is allocated.
    """

    __slots__ = ("_cache", "_free", "_num_hits")

    def __init__(self, free: FreeList, cache: PrefixCache, num_hits: list[int]) -> None:
        self._free = free
        self._cache = cache
        self._num_hits = num_hits

    def __iter__(self) -> Iterator[int]:
        return iter(self._free)

    def __len__(self) -> int:
        return len(self._free)

    @property
    def oldest(self) -> int:
        """The block that was freed longest ago."""
        return self._free.head()

    def is_cached(self, block: int) -> bool:
        """Whether ``block`` holds a prefix that a request could hit."""
        return self._cache.links[block] is not None

    def depth(self, block: int) -> int:
        """How many blocks stand before a cached block in its prefix: 0 for the first of a prompt. -1: not cached."""
        return -1 if self._cache.links[block] is None else self._cache.depths[block]

    def num_hits(self, block: int) -> int:
        """How often requests have shared ``block`` since it was filled."""
        return self._num_hits[block]


class Eviction:
    """``lru``: the block that was freed longest ago."""

    name = "lru"

    def choose(self, free: FreeBlocks) -> int:
        """One of the ``free`` blocks (there is at least one); called for every block that is allocated."""
        return free.oldest


class LeastHit(Eviction):
    """``lfu``: of the 64 blocks freed longest ago the one hit least often; the oldest of equals."""

    name = "lfu"

    def choose(self, free: FreeBlocks) -> int:
        return min(islice(free, LFU_WINDOW), key=free.num_hits)


EVICTIONS: dict[str, type[Eviction]] = {eviction.name: eviction for eviction in (Eviction, LeastHit)}


def make_eviction(eviction: str | Eviction) -> Eviction:
    """An eviction order by name, or one of the caller's own; ValueError or TypeError names what there is."""
    if isinstance(eviction, Eviction):
        return eviction
    if not isinstance(eviction, str):
        raise TypeError(f"eviction={eviction!r}: must be a name or an Eviction object, not {type(eviction).__name__}")
    if eviction not in EVICTIONS:
        known = ", ".join(map(repr, EVICTIONS))
        raise ValueError(f"eviction={eviction!r}: must be one of {known}, or an Eviction object")
    return EVICTIONS[eviction]()
