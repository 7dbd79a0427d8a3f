"""Which physical blocks hold which token prefix. Knows no ref counts and no free list.

A block that is full and written is registered under a hash that chains its parent's hash and its token ids. A hit
compares the ids *and* the parent's registration, so two prompts whose hashes collide are never mixed up. The first
block of a prompt chains to the request's salt: requests of different salts share nothing.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import xxhash

from nvexplore.engine.undo import UndoLog

MAX_EVICTIONS_KEPT = 16_384
MAX_CHILDREN_COMPARED = 256
HashFunction = Callable[[int, list[int]], int]


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


def chain_hash(parent_hash: int, token_ids: list[int]) -> int:
    """xxhash64 of the parent's hash and the ids; the same in every process."""
    state = xxhash.xxh64(parent_hash.to_bytes(8, "little"))
    state.update(array("q", token_ids).tobytes())
    return state.intdigest()


def sha256_hash(parent_hash: int, token_ids: list[int]) -> int:
    """The first 64 bits of SHA-256 of the parent's hash and the ids: nobody can choose prompts that collide."""
    state = hashlib.sha256(parent_hash.to_bytes(8, "little"))
    state.update(array("q", token_ids).tobytes())
    return int.from_bytes(state.digest()[:8], "little")


HASH_FUNCTIONS: dict[str, HashFunction] = {"xxhash": chain_hash, "sha256": sha256_hash}


class PrefixCache:
    """hash -> block, and what each registered block holds."""

    def __init__(self, num_blocks: int, undo: UndoLog, hash_function: HashFunction = chain_hash) -> None:
        self._undo = undo
        self._hash = hash_function
        self._block_of: dict[int, int] = {}
        self.content: list[CachedBlock | None] = [None] * num_blocks
        self._next_registration = 1
        # registration -> the registered blocks that chain to it; for saying how near a miss was.
        self._children: dict[int | str, dict[int, None]] = {}
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
        return self._lookup(self._hash(parent[0], token_ids), parent[1], token_ids)

    def link(self, block: int) -> Link:
        """The (hash, registration) that a block following the registered ``block`` chains to."""
        content = self.content[block]
        assert content is not None  # only registered blocks are found
        return content.hash, content.registration

    def register(self, block: int, parent: Link, token_ids: list[int], depth: int) -> tuple[Link, bool, int]:
        """Make ``block``, now written with ``token_ids`` after ``parent`` and ``depth`` blocks, findable.

        Returns its (hash, registration), whether it was registered (False: another block holds the same prefix
        already and stays the one that is hit), and the block whose entry it replaced (-1: none).
        """
        hash_ = self._hash(parent[0], token_ids)
        same = self._lookup(hash_, parent[1], token_ids)
        if same is not None:
            return self.link(same), False, -1
        # A colliding or orphaned entry gives way: it could only keep the newer content from being found.
        replaced = self._block_of.get(hash_, -1)
        if replaced >= 0:
            self.forget(replaced)
        registration = self._next_registration
        self._undo.attr(self, "_next_registration")
        self._undo.key(self._block_of, hash_)
        self._undo.item(self.content, block)
        self._next_registration = registration + 1
        self._block_of[hash_] = block
        self.content[block] = CachedBlock(hash_, registration, parent[1], tuple(token_ids), depth)
        if parent[1] not in self._children:
            self._undo.key(self._children, parent[1])
            self._children[parent[1]] = {}
        self._undo.key(self._children[parent[1]], block)
        self._children[parent[1]][block] = None
        return (hash_, registration), True, replaced

    def forget(self, block: int) -> None:
        """Drop a registered block's content from the table and from the block."""
        content = self.content[block]
        assert content is not None
        self._undo.key(self._block_of, content.hash)
        self._undo.item(self.content, block)
        del self._block_of[content.hash]
        self.content[block] = None
        siblings = self._children[content.parent]
        self._undo.key(siblings, block)
        del siblings[block]
        if not siblings:
            self._undo.key(self._children, content.parent)
            del self._children[content.parent]
        self._evicted[content.hash] = self.step
        if len(self._evicted) > MAX_EVICTIONS_KEPT:
            self._evicted.popitem(last=False)

    def children(self, parent: Link) -> list[int]:
        """Some of the registered blocks that chain to ``parent``, newest first; at most MAX_CHILDREN_COMPARED."""
        return list(islice(reversed(self._children.get(parent[1], {})), MAX_CHILDREN_COMPARED))

    def evicted_at(self, parent: Link, token_ids: list[int]) -> int | None:
        """The step in which a block with this content was evicted, if that is remembered."""
        return self._evicted.get(self._hash(parent[0], token_ids))

    def _lookup(self, hash_: int, parent_registration: int | str, token_ids: list[int]) -> int | None:
        block = self._block_of.get(hash_)
        if block is None:
            return None
        content = self.content[block]
        assert content is not None
        if content.parent != parent_registration or content.token_ids != tuple(token_ids):
            return None
        return block
