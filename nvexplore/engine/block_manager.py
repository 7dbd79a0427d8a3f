"""Hands out physical KV blocks, shares cached ones, takes them back. Knows no queue, no budget and no tensor."""

from __future__ import annotations

import operator

from nvexplore.engine.event_log import EventLog
from nvexplore.engine.eviction import Eviction, FreeBlocks, make_eviction
from nvexplore.engine.free_list import FreeList
from nvexplore.engine.hashing import HASH_FUNCTIONS, HashFunction
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.prefix_cache import PrefixCache
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.undo import UndoLog


class BlockManager:
    """Block tables, ref counts, the free list and the prefix cache; every change can be undone.

    A freed block keeps its content and can be hit until it is allocated again: ``limits.eviction`` says which is next.
    """

    def __init__(
        self, limits: EngineLimits, undo: UndoLog, log: EventLog, hash_function: HashFunction | None = None
    ) -> None:
        self.block_size = limits.block_size
        self.num_blocks = limits.num_blocks
        self.free = FreeList(limits.num_blocks, undo)
        self.ref_count = [0] * limits.num_blocks
        self.cache = PrefixCache(limits.num_blocks, undo, hash_function or HASH_FUNCTIONS[limits.prefix_hash])
        # How often requests have shared what each block holds; 0 where that has been forgotten.
        self.num_hits = [0] * limits.num_blocks
        self.eviction = make_eviction(limits.eviction)
        self._takes_oldest = type(self.eviction).choose is Eviction.choose
        self._free_blocks = FreeBlocks(self.free, self.cache, self.num_hits)
        self.is_caching = limits.enable_prefix_caching
        self._undo = undo
        self._log = log
        # Counts on when a step is undone: it only tells that block tables may have changed.
        self.num_allocated = 0
        # Blocks allocated since ``start_step``: what a runner that fails may have overwritten.
        self.allocated_this_step: list[int] = []

    def start_step(self, step: int) -> None:
        """Forget what the last step allocated; evictions from now on are those of ``step``."""
        self._undo.attr(self.cache, "step")  # a plan that is only looked at is no step
        self.allocated_this_step = []
        self.cache.step = step

    def find_prefix(self, seq: Sequence) -> list[int]:
        """Cached blocks that hold the sequence's beginning, in logical order; changes nothing.

        Whole blocks, and at most ``num_tokens - 1`` tokens: at least one token must run to yield the next. None for
        a sequence that wants the log probabilities of its prompt, which only computing it yields.
        """
        hits: list[int] = []
        if not self.is_caching or seq.lacks_prompt_logprobs:
            return hits
        size, link = self.block_size, self.cache.root(seq.sampling_params.cache_salt)
        for start in range(0, seq.num_tokens - size, size):
            block = self.cache.find(link, seq.token_ids[start : start + size])
            if block is None:
                break
            hits.append(block)
            link = self.cache.link(block)
        return hits

    def shortage(self, seq: Sequence, hits: list[int]) -> tuple[int, int]:
        """(needed, available) blocks to hold all of ``seq``'s tokens when ``hits`` are shared.

        A hit on a block that nobody holds takes it off the free list, so it counts as needed too.
        """
        total = -(-seq.num_tokens // self.block_size)
        shared = len([block for block in hits if self.ref_count[block]])
        return total - shared, len(self.free)

    def admit(self, seq: Sequence, hits: list[int]) -> None:
        """Give ``seq`` the cached blocks ``hits``, then new ones for the rest of its tokens."""
        self._undo.attrs(seq, "block_table", "chain", "num_cached_tokens", "num_cached_first", "num_computed_tokens")
        seq.block_table = hits[:]
        seq.chain = [self.cache.link(block) for block in hits]
        if hits:
            self._undo.items(self.num_hits, hits)
            self._undo.items(self.ref_count, hits)
        for block in hits:
            if self.ref_count[block] == 0:
                self.free.remove(block)
            self.num_hits[block] += 1
            self.ref_count[block] += 1
            self._log.note("hit", block, seq.seq_id, None)
        seq.num_cached_tokens = seq.num_computed_tokens = len(hits) * self.block_size
        if seq.num_preemptions == 0:
            seq.num_cached_first = seq.num_cached_tokens
        self.grow(seq, seq.num_tokens)

    def grow(self, seq: Sequence, num_tokens: int) -> None:
        """Allocate blocks until ``num_tokens`` tokens fit. The caller has checked that they are there."""
        count = -(-num_tokens // self.block_size) - len(seq.block_table)
        if count <= 0:
            return
        if self._takes_oldest:
            self._take(seq, self.free.take(count))
            return
        for _ in range(count):
            block = self._choose()
            self.free.remove(block)
            self._take(seq, [block])

    def release(self, seq: Sequence) -> None:
        """Take back all of ``seq``'s blocks, tail first, so that heads are evicted last."""
        table, ref_count = seq.block_table, self.ref_count
        self._undo.attrs(seq, "block_table", "chain")
        self._undo.items(ref_count, table)
        seq.block_table = []
        seq.chain = []
        freed = []
        for block in reversed(table):
            ref_count[block] -= 1
            if ref_count[block] == 0:
                freed.append(block)
            self._log.note("freed", block, seq.seq_id, None)
        self.free.extend(freed)

    def register_written(self, seq: Sequence, num_tokens: int, *, replaces: bool = True) -> None:
        """Enter the blocks that the first ``num_tokens`` tokens fill into the prefix cache.

        Called when the step that writes the last of these tokens is planned: the backend stores all rows of a batch
        before any row attends, so a request admitted later in the same plan may already share them. A token that is
        not known then makes it wait for the commit that learns it.
        replaces: whether an entry that stands in the way gives way; if not, this and what follows is left out for now.
        """
        if not self.is_caching:
            return
        size, chain, is_told = self.block_size, seq.chain, self._log.active
        if len(chain) == num_tokens // size:
            return
        link = chain[-1] if chain else self.cache.root(seq.sampling_params.cache_salt)
        new = self.cache.log_registrations(chain)
        for index in range(len(chain), num_tokens // size):
            block = seq.block_table[index]
            token_ids = seq.token_ids[index * size : (index + 1) * size]
            if not replaces and self.cache.is_taken(link, token_ids):
                return
            link, is_new, replaced = self.cache.register(block, link, token_ids, index, new)
            chain.append(link)
            if replaced >= 0:
                self._forget_hits(replaced)
                self._log.note("evicted", replaced, -1, None)
            if is_new and is_told:
                self._log.note("hashed", block, seq.seq_id, link[0])

    def growth_left(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks that ``seq`` may yet need beyond those for ``num_tokens`` tokens, if it runs to max_tokens."""
        most = seq.num_prompt_tokens + seq.sampling_params.max_tokens - 1  # the last token is never stored
        size = self.block_size
        return max(0, -(-most // size) - -(-num_tokens // size))

    def evict(self, block: int) -> None:
        """Forget the cached content of ``block``, if it has any."""
        if self.cache.links[block] is not None:
            self.cache.forget(block)
            self._forget_hits(block)
            self._log.note("evicted", block, -1, None)

    def forget_all(self) -> None:
        """Forget all cached content; the caller notes one event for it."""
        cached = [block for block, link in enumerate(self.cache.links) if link is not None]
        self.cache.forget(*cached)
        self._forget_hits(*cached)

    def _forget_hits(self, *blocks: int) -> None:
        """They were hits on what these blocks no longer hold."""
        for block in blocks:
            if self.num_hits[block]:
                self._undo.item(self.num_hits, block)
                self.num_hits[block] = 0

    def hash_of(self, block: int) -> int | None:
        link = self.cache.links[block]
        return None if link is None else link[0]

    def _choose(self) -> int:
        """The free block that the eviction order names; RuntimeError if it names another."""
        choice = self.eviction.choose(self._free_blocks)
        try:
            block = -1 if isinstance(choice, bool) else operator.index(choice)
        except TypeError:
            block = -1
        if not 0 <= block < self.num_blocks or self.ref_count[block]:
            raise RuntimeError(f"eviction {self.eviction.name!r} chose {choice!r}, which is not a free block")
        return block

    def _take(self, seq: Sequence, blocks: list[int]) -> None:
        """Give ``seq`` blocks that are no longer on the free list; nobody held them."""
        links, ref_count, table = self.cache.links, self.ref_count, seq.block_table
        self._undo.log((_give_back, ref_count, blocks, table, len(table)))
        cached = []
        for block in blocks:
            if links[block] is not None:
                cached.append(block)
            ref_count[block] = 1
        if cached:
            self.cache.forget(*cached)
            self._forget_hits(*cached)
        if self._log.active:
            evicted = set(cached)
            for block in blocks:
                if block in evicted:
                    self._log.note("evicted", block, -1, None)
                self._log.note("allocated", block, seq.seq_id, None)
        table += blocks
        self.allocated_this_step += blocks
        self.num_allocated += len(blocks)


def _give_back(ref_count: list[int], blocks: list[int], table: list[int], length: int) -> None:
    del table[length:]
    for block in blocks:
        ref_count[block] = 0
