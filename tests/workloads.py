"""Random small workloads from a seed, run through the toy engine; the oracle, fold and interrupt proofs use them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, check_logprobs, free_run, toy_engine


@dataclass
class Workload:
    """An engine with a small pool, and requests to add while it runs."""

    seed: int
    rng: random.Random
    engine: Engine
    requests: list[tuple[list[int], SamplingParams]]
    eos: frozenset[int]
    broken_every: int


def make_workload(seed: int, interrupt: Callable[[str], None] | None = None) -> Workload:
    """Block size 1-4, the smallest possible pool or more, budgets from 1 token, shared prefixes; half of the workloads
    have requests with several samples, stop ids, min_tokens and log probabilities, some a model that breaks down.
    """
    rng = random.Random(seed)
    block_size = rng.randint(1, 4)
    stem = [rng.randrange(5) for _ in range(24)]
    requests = []
    for _ in range(rng.randint(1, 8)):
        length = rng.randint(1, 20)
        shared = rng.randint(0, length)
        prompt = stem[:shared] + [rng.randrange(5) for _ in range(length - shared)]
        requests.append((prompt, SamplingParams(max_tokens=rng.randint(1, 10))))
    least = max(-(-(len(prompt) + params.max_tokens - 1) // block_size) for prompt, params in requests)
    eos = frozenset(rng.sample(range(997), 60)) if rng.random() < 0.5 else frozenset()
    broken_every = 0
    # From a generator of its own: the other half of the workloads stays what it was.
    more = random.Random(f"sampling {seed}")
    if more.random() < 0.5:
        requests = [(prompt, random_params(more, params.max_tokens)) for prompt, params in requests]
        broken_every = more.choice([0, 0, 20, 100])
    engine = toy_engine(
        least + rng.choice([0, 0, 1, 2, 5, 20]),
        block_size,
        eos=eos,
        interrupt=interrupt,
        max_num_batched_tokens=rng.choice([1, 2, 3, 5, 8, 16, 64]),
        max_num_seqs=rng.randint(1, 6),
        enable_prefix_caching=rng.random() < 0.85,
        policy=rng.choice(["prefill_first", "mixed"]),
        broken_every=broken_every,
    )
    return Workload(seed, rng, engine, requests, eos, broken_every)


def random_params(rng: random.Random, max_tokens: int) -> SamplingParams:
    """All that decides when a completion ends, and how often there is one."""
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, rng.randint(0, max_tokens)]),
        stop_token_ids=rng.sample(range(997), rng.choice([0, 0, 100])),
        ignore_eos=rng.random() < 0.3,
        logprobs=rng.choice([None, None, 2]),
        prompt_logprobs=rng.choice([None, None, 1]),
        n=rng.choice([1, 1, 1, 2, 3]),
    )


def run_workload(work: Workload, after_step: Callable[[Engine], None] = check_invariants) -> dict[str, int]:
    """Run to the end with adds, aborts and cache resets between steps; compare every output with the toy model alone.

    ``after_step`` runs after every step. Returns figures: steps, preemptions, aborts, prefix-cache hits.
    """
    rng, engine, todo = work.rng, work.engine, list(work.requests)
    started: list[tuple[list[int], Sequence]] = []
    steps = aborts = hits = 0
    while todo or engine.has_unfinished:
        while todo and rng.random() < 0.5:
            prompt, params = todo.pop()
            first = engine.add_request(prompt, params, priority=rng.choice([0, 0, 0, -1, 2]))
            assert len(first.samples) == params.n
            started += [(prompt, seq) for seq in first.samples]
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
    for prompt, seq in started:
        params, index = seq.sampling_params, seq.sample_index
        expected, reason = free_run(prompt, params, work.eos, sample_index=index, broken_every=work.broken_every)
        got = seq.completion_token_ids
        if seq.finish_reason == "abort":
            assert got == expected[: len(got)], f"request {seq.request_id} before its abort"
        else:
            assert got == expected, f"request {seq.request_id}"
            assert seq.finish_reason == reason
            assert seq.stop_reason == (got[-1] if reason == "stop" else None)
            assert (seq.error is not None) == (reason == "error")
        check_logprobs(seq)
    assert not engine.live
    check_invariants(engine)
    preemptions = sum(seq.num_preemptions for _, seq in started)
    return {
        "steps": steps,
        "preemptions": preemptions,
        "aborts": aborts,
        "rows_with_cache_hits": hits,
        "further_samples": sum(seq.sample_index > 0 for _, seq in started),
        "broken_rows": sum(seq.error is not None for _, seq in started),
    }


def step_or_retry(engine: Engine) -> None:
    """A step; where the workload interrupts it, look that nothing is broken and go on (the caller retries)."""
    with suppress(KeyboardInterrupt):
        engine.step()
