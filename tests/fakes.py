"""A runner without a model: the toy KV oracle, and the engine's invariants.

The toy runner writes token ids into KV slots, reads the whole context back through the block table and derives the
next id from it. So a wrong slot, a wrong length, a stale block or a lost token changes the output or raises.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from nvexplore.engine.batch import Dispatch, Sampled, ScheduledBatch
from nvexplore.engine.commit import StopMatcher
from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.sequence import Logprobs, Sequence
from nvexplore.sampling_params import SamplingParams

VOCAB = 997


def next_id(context: list[int], sample_index: int = 0) -> int:
    """The toy model: the next token is a checksum of the whole context (and of which sample it is)."""
    salt = f"#{sample_index}" if sample_index else ""
    return zlib.crc32((",".join(map(str, context)) + salt).encode()) % VOCAB


def is_broken(context: list[int], broken_every: int) -> bool:
    """Whether the toy model can say nothing after ``context``: for one context in so many, 0 for none."""
    return bool(broken_every) and zlib.crc32(str(context).encode()) % broken_every == 0


def unconstrained(prompt: list[int], max_tokens: int, eos: frozenset[int] = frozenset()) -> list[int]:
    """What the toy model says to ``prompt`` with no engine in between."""
    return free_run(prompt, SamplingParams(max_tokens=max_tokens), eos)[0]


def free_run(
    prompt: list[int],
    params: SamplingParams,
    eos: frozenset[int] = frozenset(),
    *,
    sample_index: int = 0,
    broken_every: int = 0,
) -> tuple[list[int], str]:
    """The completion and how it ends, with no engine in between. The toy model masks nothing before min_tokens."""
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos)
    context = list(prompt)
    for count in range(1, params.max_tokens + 1):
        if is_broken(context, broken_every):
            return context[len(prompt) :], "error"
        context.append(next_id(context, sample_index))
        if context[-1] in ends and count > params.min_tokens:
            return context[len(prompt) :], "stop"
    return context[len(prompt) :], "length"


def toy_logprobs(context: list[int], token_id: int) -> Logprobs:
    """What the toy model gives as log probabilities of ``token_id`` after ``context``: any numbers that tell errors."""
    return {token_id: -float(len(context)), -1: float(sum(context))}


class ToyRunner:
    """Writes ids into slots and reads them back; ``interrupt`` is called with a stage name as the run proceeds."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        interrupt: Callable[[str], None] | None = None,
        broken_every: int = 0,
    ) -> None:
        self.block_size = block_size
        self.broken_every = broken_every
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.interrupt = interrupt or (lambda stage: None)
        self.batches: list[list[tuple[int, int, int]]] = []

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        return Dispatch(eager_reason="toy", prefill_backend="toy", decode_backend="toy")

    def run(self, batch: ScheduledBatch) -> list[int] | Sampled:
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
        sampled = Sampled([])
        rows = zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True)
        for row, (seq, start, count, samples) in enumerate(rows):
            context = [self.slots[seq.block_table[p // size] * size + p % size] for p in range(start + count)]
            assert context == seq.token_ids[: start + count], f"KV of {seq} holds {context}"
            self._tell_logprobs(row, seq, start, count, sampled)
            if samples:
                assert start + count == seq.num_tokens
                ids = list(seq.token_ids)
                token_id = -1 if is_broken(ids, self.broken_every) else next_id(ids, seq.sample_index)
                sampled.token_ids.append(token_id)
                if seq.logprobs is not None and token_id >= 0:
                    sampled.logprobs[row] = toy_logprobs(ids, token_id)
        self.interrupt("end")
        return sampled if sampled.logprobs or sampled.prompt_logprobs else sampled.token_ids

    @staticmethod
    def _tell_logprobs(row: int, seq: Sequence, start: int, count: int, sampled: Sampled) -> None:
        if seq.prompt_logprobs is None or not seq.lacks_prompt_logprobs:
            return
        first, ids = len(seq.prompt_logprobs), seq.token_ids
        assert start < first, "prompt tokens that were not computed: where should their log probabilities come from?"
        known = range(first, min(start + count + 1, seq.num_prompt_tokens))
        sampled.prompt_logprobs[row] = [toy_logprobs(ids[:i], ids[i]) for i in known]


def toy_engine(
    num_blocks: int,
    block_size: int = 4,
    *,
    eos: frozenset[int] = frozenset(),
    interrupt: Callable[[str], None] | None = None,
    broken_every: int = 0,
    stop_matcher: StopMatcher | None = None,
    make_runner: Callable[..., ToyRunner] | None = None,
    overlap: bool = False,
    **limits: Any,
) -> Engine:
    """An engine over a toy runner; ``limits`` are EngineLimits' other fields."""
    runner = (make_runner or ToyRunner)(num_blocks, block_size, interrupt, broken_every)
    merged = {"max_model_len": 10_000, **limits}
    return Engine(
        EngineLimits(num_blocks=num_blocks, block_size=block_size, **merged),
        runner,
        eos_token_ids=eos,
        stop_matcher=stop_matcher,
        overlap=overlap,
    )


def run_to_end(engine: Engine, limit: int = 100_000) -> int:
    """Step until nothing is left; returns the number of steps."""
    for steps in range(limit):
        if not engine.has_unfinished:
            return steps
        engine.step()
    raise AssertionError(f"not done after {limit} steps")


def check_logprobs(seq: Sequence) -> None:
    """The toy model's log probabilities, one entry a token, however often the prompt was computed."""
    ids, prompt = seq.token_ids, seq.num_prompt_tokens
    if seq.logprobs is not None:
        assert seq.logprobs == [toy_logprobs(ids[:i], ids[i]) for i in range(prompt, len(ids))]
    if seq.prompt_logprobs is not None:
        known = seq.prompt_logprobs
        assert known == [None, *(toy_logprobs(ids[:i], ids[i]) for i in range(1, len(known)))]
        assert not seq.num_completion_tokens or len(known) == prompt
        assert len(known) > seq.num_computed_tokens or len(known) == prompt


def check_held_content(engine: Engine, seq: Sequence) -> None:
    """What the cache says of the blocks that ``seq`` holds: its tokens, after its own blocks, under its own salt."""
    size = engine.limits.block_size
    parent: int | str = seq.sampling_params.cache_salt or 0
    for index, block in enumerate(seq.block_table):
        content = engine.blocks.cache.content[block]
        if content is not None:
            assert seq.chain[index] == (content.hash, content.registration), "a block that the sequence does not know"
            assert (content.parent, content.depth) == (parent, index), "a block of another prefix or salt"
            assert list(content.token_ids) == seq.token_ids[index * size : (index + 1) * size]
        if index < len(seq.chain):
            parent = seq.chain[index][1]


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
        assert seq.error is seq.finish_reason is seq.stop_reason is None
        check_logprobs(seq)
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
        check_held_content(engine, seq)
    places = [(seq.priority, seq.num_preemptions == 0, seq.seq_id) for seq in waiting]
    assert places == sorted(places), "order of the queue: by priority, preempted before new, then arrival"
    assert holders == blocks.ref_count, "ref counts"
    free = list(blocks.free)
    assert len(free) == len(blocks.free) == len(set(free)), "free list"
    assert set(free) == {b for b, n in enumerate(holders) if n == 0}, "free list against ref counts"
    ring = blocks.free
    assert all(ring._prev[ring._next[block]] == block for block in free), "links of the free list"
    cache = blocks.cache
    registered = {b for b, content in enumerate(cache.content) if content is not None}
    assert len(cache) == len(registered), "hash table against blocks"
    assert {block for block, hits in enumerate(blocks.num_hits) if hits} <= registered, "hits of forgotten content"
    children: dict[int | str, set[int]] = {}
    for block in registered:
        content = cache.content[block]
        assert content is not None and len(content.token_ids) == size
        children.setdefault(content.parent, set()).add(block)
        assert cache._block_of[content.hash] == block
        stored = engine.runner.slots[block * size : (block + 1) * size]  # type: ignore[attr-defined]
        assert list(content.token_ids) == stored, "a cached block whose slots hold something else"
    assert {parent: set(known) for parent, known in cache._children.items()} == children, "children against blocks"
    families = engine._requests._families
    assert all(any(seq.request_id in engine.live for seq in family) for family in families.values()), "a dead family"
    if not live:
        assert len(free) == blocks.num_blocks, "blocks leaked"
    assert not engine._undo, "an open transaction"
