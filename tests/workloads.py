"""Random small workloads from a seed: an engine, and requests for it. ``drive`` runs them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Any

from nvexplore.engine.eviction import Eviction, FreeBlocks
from nvexplore.engine.policy import Policy
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.drive import Workload, run_workload
from tests.fakes import ToyRunner, free_run, toy_engine
from tests.faults import Faults
from tests.overlapped_work import OverlappedWorkload
from tests.toy_device import ToyDevice

__all__ = ["Workload", "make_workload", "run_workload"]

# The bytes of a salt are hashed like token ids: with blocks of one or two tokens these collide with prompts.
SALTS = (None, None, "\x01", "\x01\x02", "a")


class OwnPolicy(Policy):
    """Chooses at random, which nothing may depend on; now and then what is no choice at all."""

    name = "own"

    def __init__(self, seed: int, faults: Faults) -> None:
        self._rng = random.Random(f"policy {seed}")
        self._faults = faults
        self.decodes_first = self._rng.random() < 0.5
        self.lookahead = self._rng.choice([0, 1, 8])
        self.max_passed = self._rng.choice([0, 2, 16])
        self.running: list[Sequence] = []  # the engine's, once it is made

    def admission_order(self, waiting: SequenceOf[Sequence]) -> Iterable[Sequence]:
        order = list(waiting)
        self._rng.shuffle(order)
        return self._faults.spoil("order", order, lambda: [[*self.running[:1], stranger()], [stranger(), *order]])

    def victim(self, candidates: SequenceOf[Sequence], needing: Sequence) -> Sequence:
        return self._faults.spoil("victim", self._rng.choice(candidates), lambda: [None, stranger(), needing.seq_id])


class OwnEviction(Eviction):
    """The block freed last, or any: worse than ``lru``, and nothing may depend on it."""

    name = "own"

    def __init__(self, seed: int, faults: Faults, num_blocks: int) -> None:
        self._rng = random.Random(f"eviction {seed}")
        self._faults = faults
        self._num_blocks = num_blocks

    def choose(self, free: FreeBlocks) -> int:
        blocks = list(free)
        choice = blocks[-1] if self._rng.random() < 0.5 else self._rng.choice(blocks)
        held = [block for block in range(self._num_blocks) if block not in blocks]
        return self._faults.spoil("eviction", choice, lambda: [None, -1, self._num_blocks, str(choice), *held[:2]])


def stranger() -> Sequence:
    """A sequence that no engine knows."""
    return Sequence(-1, [1], SamplingParams(), request_id="stranger")


def overlaps(seed: int) -> bool:
    """Whether the steps of this workload overlap where both kinds are run: those of one in three."""
    return random.Random(f"overlap {seed}").random() < 1 / 3


def make_workload(
    seed: int,
    interrupt: Callable[[str], None] | None = None,
    faults: Faults | None = None,
    *,
    overlap: bool = False,
) -> Workload:
    """Block size 1-4, the smallest possible pool or more, budgets from 1 token, shared prefixes, all policies, eviction
    orders and hashes; half of the workloads have requests with several samples, stop ids, min_tokens and log
    probabilities, some salts, some prompts that go on where another request ends, some a model that breaks down.

    overlap: steps overlap, on a toy device.
    """
    rng, faults = random.Random(seed), faults or Faults()
    block_size = rng.randint(1, 4)
    requests = random_requests(rng)
    eos = frozenset(rng.sample(range(997), 60)) if rng.random() < 0.5 else frozenset()
    broken_every = 0
    if rng.random() < 0.5:
        requests = [(prompt, random_params(rng, params.max_tokens)) for prompt, params in requests]
        broken_every = rng.choice([0, 0, 20, 100])
    if overlap:  # few that need the host, or no step would overlap with another
        requests = [(prompt, some_logprobs(rng, params)) for prompt, params in requests]
    if rng.random() < 0.5:
        requests = [(prompt, replace(params, cache_salt=rng.choice(SALTS))) for prompt, params in requests]
    if rng.random() < 0.4:
        continue_some(rng, requests, eos)
    least = max(-(-(len(prompt) + params.max_tokens - 1) // block_size) for prompt, params in requests)
    num_blocks = least + rng.choice([0, 0, 1, 2, 5, 20])
    own = OwnPolicy(seed, faults)
    limits: dict[str, Any] = {
        "max_num_batched_tokens": rng.choice([1, 2, 3, 5, 8, 16, 64]),
        "max_num_seqs": rng.randint(1, 6),
        "enable_prefix_caching": rng.random() < 0.85,
        "policy": rng.choice(["prefill_first", "mixed", own]),
        "eviction": rng.choice(["lru", "lfu", OwnEviction(seed, faults, num_blocks)]),
        "prefix_hash": rng.choice(["xxhash", "sha256"]),
    }
    engine = toy_engine(
        num_blocks,
        block_size,
        eos=eos,
        interrupt=interrupt or faults.runner,
        broken_every=broken_every,
        make_runner=ToyDevice if overlap else ToyRunner,
        overlap=overlap,
        **limits,
    )
    own.running = engine.scheduler.queues.running
    kind = OverlappedWorkload if overlap else Workload
    return kind(seed, rng, engine, requests, eos, broken_every, faults)


def random_requests(rng: random.Random) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of 1-20 tokens from a small alphabet, many of which begin alike."""
    stem = [rng.randrange(5) for _ in range(24)]
    requests, most = [], rng.choice([10, 10, 30])
    for _ in range(rng.randint(1, 8)):
        length = rng.randint(1, 20)
        shared = rng.randint(0, length)
        prompt = stem[:shared] + [rng.randrange(5) for _ in range(length - shared)]
        requests.append((prompt, SamplingParams(max_tokens=rng.randint(1, most))))
    return requests


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


def some_logprobs(rng: random.Random, params: SamplingParams) -> SamplingParams:
    return params if rng.random() < 0.35 else replace(params, logprobs=None, prompt_logprobs=None)


def continue_some(rng: random.Random, requests: list[tuple[list[int], SamplingParams]], eos: frozenset[int]) -> None:
    """Let some prompts be another's prompt and what the model said to it, whole or in part, as in a chat.

    The other stands behind in the list, whose end is added first.
    """
    for index in range(len(requests) - 2, -1, -1):
        if rng.random() < 0.4:
            prompt, before = requests[rng.randrange(index + 1, len(requests))]
            said, _ = free_run(prompt, before, eos)
            new = [rng.randrange(5) for _ in range(rng.randint(1, 3))]
            requests[index] = (prompt + said[: rng.randint(0, len(said))] + new, requests[index][1])
