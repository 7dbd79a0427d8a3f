"""Which physical blocks hold which token prefix. Knows no ref counts and no free list.

A block that is full and written is registered under a hash that chains its parent's hash and its token ids. A hit
compares the ids *and* the parent's registration, so two prompts whose hashes collide are never mixed up. The first
block of a prompt chains to the request's salt: requests of different salts share nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from nvexplore.engine.hashing import HashFunction, chain_hash
from nvexplore.engine.undo import UndoLog

MAX_EVICTIONS_KEPT = 16_384
MAX_CHILDREN_COMPARED = 256


class CachedBlock(NamedTuple):
    """What a registered block holds.

    hash, registration: its chain hash and its own number. parent: the registration of the block before it, or the
    salt of the prompt it begins. depth: how many blocks stand before it.
    """

    hash: int
    registration: int
    parent: int | str
    token_ids: tuple[int, ...]
    depth: int


Link = tuple[int, int | str]
"""What a block chains to: (hash, registration) of the block before it, or those of a ``root``."""
ROOT: Link = (0, 0)
"""What the first block of a prompt without salt chains to."""


class Contents:
    """What each block of the pool holds, to look at; None where it is not registered."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    def __len__(self) -> int:
        return len(self._cache.links)

    def __iter__(self) -> Iterator[CachedBlock | None]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, block: int) -> CachedBlock | None:
        cache, link = self._cache, self._cache.links[block]
        if link is None:
            return None
        return CachedBlock._make((*link, cache.parents[block], cache.token_ids[block], cache.depths[block]))


class PrefixCache:
    """hash -> block, and what each registered block holds.

    links, parents, token_ids, depths: the fields of ``CachedBlock`` by block, in columns, since an object for each
    block takes longer to make and gives Python's garbage collector more to look at. Only ``links`` says whether a
    block is registered; where it is None the others are what the block held last.
    """

    def __init__(self, num_blocks: int, undo: UndoLog, hash_function: HashFunction = chain_hash) -> None:
        self._undo = undo
        self._hash = hash_function
        self._block_of: dict[int, int] = {}
        self.links: list[Link | None] = [None] * num_blocks
        self.parents: list[int | str] = [0] * num_blocks
        self.token_ids: list[tuple[int, ...]] = [()] * num_blocks
        self.depths = [0] * num_blocks
        self.content = Contents(self)
        # What ``find`` has looked for last in vain, and its hash: it is most often what is registered next.
        self._missed: tuple[int, list[int], int] = (0, [], 0)
        self._next_registration = 1
        # registration -> the registered blocks that chain to it; for saying how near a miss was.
        self._children: dict[int | str, tuple[int] | dict[int, None]] = {}  # most have one, or none
        # The last evictions, hash -> step. An undone step may leave entries here: those blocks are hit, not asked for.
        self.step = 0
        self._evicted: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, salt: str | None) -> Link:
        """What the first block of a prompt chains to."""
        return ROOT if salt is None else (self._hash(0, list(salt.encode("utf-8", "surrogatepass"))), salt)

    def find(self, parent: Link, token_ids: list[int]) -> int | None:
        """The block that holds ``token_ids`` after ``parent``, or None."""
        hash_ = self._hash(parent[0], token_ids)
        block = self._lookup(hash_, parent[1], token_ids)
        if block is None:
            self._missed = (parent[0], token_ids, hash_)
        return block

    def is_taken(self, parent: Link, token_ids: list[int]) -> bool:
        """Whether to register ``token_ids`` after ``parent`` would replace a colliding or orphaned entry."""
        hash_ = self._hash(parent[0], token_ids)
        return hash_ in self._block_of and self._lookup(hash_, parent[1], token_ids) is None

    def link(self, block: int) -> Link:
        """The (hash, registration) that a block following the registered ``block`` chains to."""
        link = self.links[block]
        assert link is not None  # only registered blocks are found
        return link

    def log_registrations(self, chain: list[Link]) -> list[Any]:
        """Log one undo entry for several calls of ``register``, which are given the list that this returns.

        chain: the links of a sequence, which gets those of the blocks too.
        """
        new: list[Any] = []  # of each block its number, and what the columns said of it
        self._undo.log((self._unregister, new, self._next_registration, chain, len(chain)))
        return new

    def register(
        self, block: int, parent: Link, token_ids: list[int], depth: int, new: list[Any] | None = None
    ) -> tuple[Link, bool, int]:
        """Make ``block``, now written with ``token_ids`` after ``parent`` and ``depth`` blocks, findable.

        new: from ``log_registrations``; without it the call logs an undo entry of its own.
        Returns its (hash, registration), whether it was registered (False: another block holds the same prefix
        already and stays the one that is hit), and the block whose entry it replaced (-1: none).
        """
        parent_hash, before = parent
        known, its_ids, hash_ = self._missed
        if known != parent_hash or its_ids != token_ids:
            hash_ = self._hash(parent_hash, token_ids)
        replaced = self._block_of.get(hash_, -1)
        if replaced >= 0:
            if self._lookup(hash_, before, token_ids) is not None:
                return self.link(replaced), False, -1
            # A colliding or orphaned entry gives way: it could only keep the newer content from being found.
            self.forget(replaced)
            new = None  # that must be undone after this
        if new is None:
            new = self.log_registrations([])
        new += (block, self.parents[block], self.token_ids[block], self.depths[block])
        registration = self._next_registration
        link = hash_, registration
        self.parents[block] = before
        self.token_ids[block] = tuple(token_ids)
        self.depths[block] = depth
        self.links[block] = link
        self._next_registration = registration + 1
        self._block_of[hash_] = block
        if before in self._children:
            self._add_child(before, block)
        else:
            self._children[before] = (block,)
        return link, True, replaced

    def _add_child(self, parent: int | str, block: int) -> None:
        """Does nothing if it is one already."""
        siblings = self._children.get(parent)
        if isinstance(siblings, dict):
            siblings[block] = None
        elif siblings is None:
            self._children[parent] = (block,)
        elif siblings[0] != block:
            self._children[parent] = {siblings[0]: None, block: None}

    def _drop_child(self, parent: int | str, block: int) -> None:
        """Does nothing if it is none. Nothing is kept for a parent without children."""
        siblings = self._children.get(parent, ())
        if block not in siblings:
            return
        if isinstance(siblings, dict) and len(siblings) > 1:
            del siblings[block]
        else:
            del self._children[parent]

    def _unregister(self, new: list[Any], registration: int, chain: list[Link], length: int) -> None:
        """Undo ``register``: these blocks were not registered, and nothing had their hashes.

        A block's link is set before anything that is found by it, and is taken away last: without it nothing is left.
        """
        for at in range(len(new) - 4, -1, -4):
            block, parent, token_ids, depth = new[at : at + 4]
            link = self.links[block]
            if link is not None:
                self._block_of.pop(link[0], None)
                self._drop_child(self.parents[block], block)
                self.links[block] = None
            self.parents[block], self.token_ids[block], self.depths[block] = parent, token_ids, depth
        self._next_registration = registration
        del chain[length:]

    def forget(self, *blocks: int) -> None:
        """Drop registered blocks' contents from the table and from the blocks."""
        links: list[Any] = [self.links[block] for block in blocks]
        self._undo.log((self._remember, blocks, links))
        for block, (hash_, _) in zip(blocks, links, strict=True):
            del self._block_of[hash_]
            self.links[block] = None
            self._drop_child(self.parents[block], block)
            self._evicted[hash_] = self.step
            self._evicted.move_to_end(hash_)
        while len(self._evicted) > MAX_EVICTIONS_KEPT:
            self._evicted.popitem(last=False)

    def _remember(self, blocks: tuple[int, ...], links: list[Any]) -> None:
        """Undo ``forget``: the other columns have stayed, or are those again that they were."""
        for block, link in zip(blocks, links, strict=True):
            self.links[block] = link
            self._block_of[link[0]] = block
            self._add_child(self.parents[block], block)
        for parent in {self.parents[block] for block in blocks}:
            siblings = self._children[parent]
            if isinstance(siblings, dict):  # they came back as the newest, and are not
                self._children[parent] = dict.fromkeys(sorted(siblings, key=lambda block: self.link(block)[1]))

    def children(self, parent: Link) -> list[int]:
        """Some of the registered blocks that chain to ``parent``, newest first; at most MAX_CHILDREN_COMPARED."""
        return list(islice(reversed(self._children.get(parent[1], ())), MAX_CHILDREN_COMPARED))

    def evicted_at(self, parent: Link, token_ids: list[int]) -> int | None:
        """The step in which a block with this content was evicted, if that is remembered."""
        return self._evicted.get(self._hash(parent[0], token_ids))

    def _lookup(self, hash_: int, parent_registration: int | str, token_ids: list[int]) -> int | None:
        block = self._block_of.get(hash_)
        if block is None:
            return None
        if self.parents[block] != parent_registration or self.token_ids[block] != tuple(token_ids):
            return None
        return block

    def orphan(self, parent: Link, token_ids: list[int]) -> int | None:
        """The block that holds ``token_ids`` after the same prefix as ``parent``, whose entry was another, now gone."""
        block = self._block_of.get(self._hash(parent[0], token_ids))
        if block is None or self.depths[block] == 0 or self.token_ids[block] != tuple(token_ids):
            return None
        # Where the other entry is still there, it is of another prefix with the same hash.
        before = self.parents[block]
        return block if all(link is None or link[1] != before for link in self.links) else None
