"""A runner without a model: the toy KV oracle, and the engine's invariants.

The toy runner writes token ids into KV slots, reads the whole context back through the block table and derives the
next id from it. So a wrong slot, a wrong length, a stale block or a lost token changes the output or raises.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits

VOCAB = 997


def next_id(context: list[int]) -> int:
    """The toy model: the next token is a checksum of the whole context."""
    return zlib.crc32(",".join(map(str, context)).encode()) % VOCAB


def unconstrained(prompt: list[int], max_tokens: int, eos: frozenset[int] = frozenset()) -> list[int]:
    """What the toy model says to ``prompt`` with no engine in between."""
    context = list(prompt)
    for _ in range(max_tokens):
        context.append(next_id(context))
        if context[-1] in eos:
            break
    return context[len(prompt) :]


class ToyRunner:
    """Writes ids into slots and reads them back; ``interrupt`` is called with a stage name as the run proceeds."""

    def __init__(self, num_blocks: int, block_size: int, interrupt: Callable[[str], None] | None = None) -> None:
        self.block_size = block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.interrupt = interrupt or (lambda stage: None)
        self.batches: list[list[tuple[int, int, int]]] = []

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        return Dispatch(eager_reason="toy", prefill_backend="toy", decode_backend="toy")

    def run(self, batch: ScheduledBatch) -> list[int]:
        self.batches.append(
            [(s.seq_id, start, count) for s, start, count in zip(batch.seqs, batch.starts, batch.counts, strict=True)]
        )
        self.interrupt("begin")
        size = self.block_size
        written: set[int] = set()
        for seq, start, count in zip(batch.seqs, batch.starts, batch.counts, strict=True):
            assert count > 0, "a row without tokens"
            assert seq.num_computed_tokens == start
            for position in range(start, start + count):
                slot = seq.block_table[position // size] * size + position % size
                assert slot not in written, f"slot {slot} written twice"
                written.add(slot)
                self.slots[slot] = seq.token_ids[position]
                self.interrupt("write")
        sampled = []
        for seq, start, count, samples in zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True):
            context = [self.slots[seq.block_table[p // size] * size + p % size] for p in range(start + count)]
            assert context == seq.token_ids[: start + count], f"KV of {seq} holds {context}"
            if samples:
                assert start + count == seq.num_tokens
                sampled.append(next_id([t for t in context if t is not None]))
        self.interrupt("end")
        return sampled


def toy_engine(
    num_blocks: int,
    block_size: int = 4,
    *,
    eos: frozenset[int] = frozenset(),
    interrupt: Callable[[str], None] | None = None,
    **limits: Any,
) -> Engine:
    """An engine over a toy runner; ``limits`` are EngineLimits' other fields."""
    runner = ToyRunner(num_blocks, block_size, interrupt)
    merged = {"max_model_len": 10_000, **limits}
    return Engine(
        EngineLimits(num_blocks=num_blocks, block_size=block_size, **merged),
        runner,
        eos_token_ids=eos,
    )


def run_to_end(engine: Engine, limit: int = 100_000) -> int:
    """Step until nothing is left; returns the number of steps."""
    for steps in range(limit):
        if not engine.has_unfinished:
            return steps
        engine.step()
    raise AssertionError(f"not done after {limit} steps")


def check_invariants(engine: Engine) -> None:
    """Everything that must hold between two steps, recomputed from scratch."""
    blocks, scheduler, size = engine.blocks, engine.scheduler.queues, engine.limits.block_size
    live = list(engine.live.values())
    running, waiting = scheduler.running, list(scheduler.waiting)
    assert sorted(s.seq_id for s in live) == sorted(s.seq_id for s in running + waiting)
    holders = [0] * blocks.num_blocks
    for seq in live:
        assert len(set(seq.block_table)) == len(seq.block_table), "a block twice in one table"
        for block in seq.block_table:
            holders[block] += 1
        assert 0 <= seq.num_cached_tokens <= seq.num_computed_tokens <= seq.num_tokens
    for seq in waiting:
        assert seq.status == "waiting" and not seq.block_table and not seq.chain
        assert seq.num_computed_tokens == 0 and seq.num_cached_tokens == 0
    assert len(running) <= engine.limits.max_num_seqs
    for seq in running:
        assert seq.status in ("prefill", "decode")
        assert seq.num_computed_tokens <= len(seq.block_table) * size
        assert len(seq.chain) <= seq.num_computed_tokens // size
        if seq.status == "decode":
            assert seq.num_tokens == seq.num_computed_tokens + 1
    assert holders == blocks.ref_count, "ref counts"
    free = list(blocks.free)
    assert len(free) == len(blocks.free) == len(set(free)), "free list"
    assert set(free) == {b for b, n in enumerate(holders) if n == 0}, "free list against ref counts"
    cache = blocks.cache
    registered = {b for b, content in enumerate(cache.content) if content is not None}
    assert len(cache) == len(registered), "hash table against blocks"
    for block in registered:
        content = cache.content[block]
        assert content is not None and len(content.token_ids) == size
        assert cache._block_of[content.hash] == block
        stored = engine.runner.slots[block * size : (block + 1) * size]  # type: ignore[attr-defined]
        assert list(content.token_ids) == stored, "a cached block whose slots hold something else"
    if not live:
        assert len(free) == blocks.num_blocks, "blocks leaked"
    assert not engine._undo, "an open transaction"
