"""Requests that come and go leave nothing behind: after 10,000 cycles the engine is as large as after 1,000."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections import Counter
from contextlib import suppress
from unittest import mock

from nvexplore.engine import prefix_cache
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.drive import quiet
from tests.fakes import ToyRunner, check_invariants, run_to_end, toy_engine
from tests.faults import Faults
from tests.prove import Figures, Proof, combine
from tests.prove._sizes import sizes

CYCLES = 10_000
# Stores that grow until they are full: where, and the bound that their module documents.
BOUNDED = {"engine.blocks.cache._evicted": prefix_cache.MAX_EVICTIONS_KEPT}
SMALL_BOUND = 500
# Memory blocks of the interpreter that may come and go besides: a leak of one object a cycle would be 9,000.
SLACK = 300
LEAST = 500  # how often each way to go must have come up, over all seeds


class Life:
    """An engine with a small pool and a watcher, and everything that can happen to a request in it, over and over."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faults = Faults(seed, ("runner", "watcher"))
        self.counts: Counter[str] = Counter()
        self.alive: weakref.WeakSet[Sequence] = weakref.WeakSet()
        self.states: list[State] = []
        self.engine: Engine = toy_engine(
            10,
            2 + seed % 3,
            interrupt=self.faults.runner,
            broken_every=50,
            max_num_seqs=4,
            max_num_batched_tokens=8,
            policy=("prefill_first", "mixed")[seed // 2 % 2],
            eviction=("lru", "lfu")[seed // 4 % 2],
            prefix_hash=("xxhash", "sha256")[seed // 4 % 2],
        )

    def watch(self, item: Snapshot | StepRecord) -> None:
        self.faults.watcher(is_record=isinstance(item, StepRecord))
        if isinstance(item, Snapshot):
            self.states[:] = [State(item)]
        else:
            self.states[0].apply(item)

    def cycle(self, number: int) -> None:
        """One request comes, as many steps are run as it takes to make room, and perhaps one in whatever state goes."""
        rng, engine = self.rng, self.engine
        if not engine._hub:
            self.faults.call(lambda: engine.subscribe(self.watch))
            self.counts["watchers"] += 1
        params = SamplingParams(
            max_tokens=rng.randint(1, 6),
            n=rng.choice([1, 1, 1, 3]),
            cache_salt=rng.choice([None, None, "a", f"{number:0{number // 8}}"]),
            logprobs=rng.choice([None, 1]),
            prompt_logprobs=rng.choice([None, None, 1]),
        )
        prompt = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
        first = engine.add_request(prompt, params, priority=rng.choice([0, 0, 1, -1]))
        self.alive.update(first.samples)
        if rng.random() < 0.05:
            with suppress(ValueError):
                engine.add_request([1] * 1000)
            self.counts["refused"] += 1
        while len(engine.live) > rng.randint(0, 8):
            output = self.faults.call(engine.step)
            self.counts["steps"] += 1
            for seq in output.finished if output is not None else ():
                self.counts[f"ended_by_{seq.finish_reason}"] += 1
                self.counts["preemptions"] += seq.num_preemptions
        if rng.random() < 0.3 and engine.live:
            victim = engine.live[rng.choice(list(engine.live))]
            self.counts[f"aborted_{'preempted' if victim.num_preemptions else victim.status}"] += 1
            engine.abort(victim.request_id)
        if rng.random() < 0.01:
            engine.reset_prefix_cache()
            self.counts["cache_resets"] += 1

    def settle(self) -> None:
        """End everything and run one last request, the same each time, so that equal states are equally large."""
        engine, faults = self.engine, self.faults
        run_to_end(engine)
        engine._hub.subscriptions.clear()
        engine.reset_prefix_cache()
        engine.subscribe(self.watch)
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=2))
        run_to_end(engine)
        engine.reset_prefix_cache()
        engine.step()
        check_invariants(engine)
        assert isinstance(engine.runner, ToyRunner)
        engine.runner.batches.clear()
        assert not faults.in_call
        gc.collect()


def grow(seed: int, is_small: bool, cycles: int) -> Figures:
    """What one engine holds after a tenth of the cycles, again after all of them."""
    life, measured = Life(seed), []
    for cycle in range(1, cycles + 1):
        life.cycle(cycle)
        if cycle in (cycles // 10, cycles):
            life.settle()
            tables = sizes(life.engine, "engine", but=("engine.runner",)) | sizes(life.states[0], "state")
            measured.append((tables, len(life.alive), sys.getallocatedblocks()))
    (few, few_alive, few_blocks), (many, many_alive, many_blocks) = measured
    (kept,) = [many[name] for name in BOUNDED]
    for name, bound in BOUNDED.items():
        assert few.pop(name) <= many.pop(name) <= bound, name
    assert few == many, {
        name: (few.get(name), many.get(name)) for name in few | many if few.get(name) != many.get(name)
    }
    assert few_alive == many_alive, f"{many_alive - few_alive} more sequences are held"
    if is_small:
        assert many_blocks - few_blocks < SLACK, f"{many_blocks - few_blocks} more blocks of memory are held"
    return {
        "cycles": cycles,
        f"max_blocks_of_memory_more_{'small' if is_small else 'full'}": many_blocks - few_blocks,
        "max_evictions_kept": kept,
        "containers": len(few),
        "max_sequences_held": many_alive,
        **life.counts,
        **life.faults.counts,
    }


def run_one(seed: int, cycles: int = CYCLES) -> Figures:
    """With a small bound for every other seed: then all stores are full early, and every allocation counts."""
    is_small = seed % 2 == 0
    bound = SMALL_BOUND if is_small else prefix_cache.MAX_EVICTIONS_KEPT
    with quiet(), mock.patch.object(prefix_cache, "MAX_EVICTIONS_KEPT", bound):
        return grow(seed, is_small, cycles)


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    return combine(run_one(seed) for seed in seeds)


def check(figures: Figures) -> None:
    """Requests have gone in every way, and the bounded stores were full."""
    ways = [f"aborted_{state}" for state in ("waiting", "prefill", "decode", "preempted")]
    rare = [way for way in [*ways, "ended_by_error", "refused"] if figures.get(way, 0) < LEAST]  # type: ignore[operator]
    assert not rare, f"too rare to prove anything: {rare}"
    assert figures["max_evictions_kept"] == prefix_cache.MAX_EVICTIONS_KEPT


PROOF = Proof(
    "cycles",
    "10,000 requests that come and go leave nothing behind",
    12,
    0,  # `make test` runs a shorter one
    run_chunk,
    chunk=1,
    check=check,
    is_parallel=True,
)
