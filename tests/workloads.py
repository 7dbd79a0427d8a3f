"""Random small workloads from a seed, run through the toy engine; the oracle, fold and interrupt proofs use them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, toy_engine, unconstrained


@dataclass
class Workload:
    """An engine with a small pool, and requests to add while it runs."""

    seed: int
    rng: random.Random
    engine: Engine
    requests: list[tuple[list[int], int]]
    eos: frozenset[int]


def make_workload(seed: int, interrupt: Callable[[str], None] | None = None) -> Workload:
    """Block size 1-4, the smallest possible pool or more, budgets from 1 token, shared prefixes."""
    rng = random.Random(seed)
    block_size = rng.randint(1, 4)
    stem = [rng.randrange(5) for _ in range(24)]
    requests = []
    for _ in range(rng.randint(1, 8)):
        length = rng.randint(1, 20)
        shared = rng.randint(0, length)
        prompt = stem[:shared] + [rng.randrange(5) for _ in range(length - shared)]
        requests.append((prompt, rng.randint(1, 10)))
    least = max(-(-(len(prompt) + max_tokens - 1) // block_size) for prompt, max_tokens in requests)
    eos = frozenset(rng.sample(range(997), 60)) if rng.random() < 0.5 else frozenset()
    engine = toy_engine(
        least + rng.choice([0, 0, 1, 2, 5, 20]),
        block_size,
        eos=eos,
        interrupt=interrupt,
        max_num_batched_tokens=rng.choice([1, 2, 3, 5, 8, 16, 64]),
        max_num_seqs=rng.randint(1, 6),
        enable_prefix_caching=rng.random() < 0.85,
        policy=rng.choice(["prefill_first", "mixed"]),
    )
    return Workload(seed, rng, engine, requests, eos)


def run_workload(work: Workload, after_step: Callable[[Engine], None] = check_invariants) -> dict[str, int]:
    """Run to the end with adds, aborts and cache resets between steps; compare every output with the toy model alone.

    ``after_step`` runs after every step. Returns figures: steps, preemptions, aborts, prefix-cache hits.
    """
    rng, engine, todo = work.rng, work.engine, list(work.requests)
    started: list[tuple[list[int], int, Sequence]] = []
    steps = aborts = hits = 0
    while todo or engine.has_unfinished:
        while todo and rng.random() < 0.5:
            prompt, max_tokens = todo.pop()
            params = SamplingParams(max_tokens=max_tokens)
            priority = rng.choice([0, 0, 0, -1, 2])
            started.append((prompt, max_tokens, engine.add_request(prompt, params, priority=priority)))
        if rng.random() < 0.05 and engine.live:
            aborts += engine.abort(rng.choice(list(engine.live)))
        if rng.random() < 0.02:
            engine.reset_prefix_cache()
        if rng.random() < 0.1:
            before = engine.snapshot()
            engine.plan()
            assert engine.snapshot().same_state(before), "plan() changed the engine"
        step_or_retry(engine)
        steps += 1
        after_step(engine)
        hits += sum(seq.num_cached_tokens > 0 for seq in engine.live.values())
    for prompt, max_tokens, seq in started:
        expected = unconstrained(prompt, max_tokens, work.eos)
        got = seq.completion_token_ids
        if seq.finish_reason == "abort":
            assert got == expected[: len(got)], f"request {seq.request_id} before its abort"
        else:
            assert got == expected, f"request {seq.request_id}"
            assert seq.finish_reason == ("stop" if got[-1] in work.eos else "length")
    assert not engine.live
    check_invariants(engine)
    preemptions = sum(seq.num_preemptions for _, _, seq in started)
    return {"steps": steps, "preemptions": preemptions, "aborts": aborts, "rows_with_cache_hits": hits}


def step_or_retry(engine: Engine) -> None:
    """A step; where the workload interrupts it, look that nothing is broken and go on (the caller retries)."""
    with suppress(KeyboardInterrupt):
        engine.step()
