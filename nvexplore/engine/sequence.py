"""One sample of a request while it lives in the engine. Knows no queue, no block pool and no device."""

from __future__ import annotations

from enum import StrEnum

from nvexplore.engine.prefix_cache import Link
from nvexplore.sampling_params import SamplingParams


class SequenceStatus(StrEnum):
    """Where a sequence is: WAITING holds no blocks; PREFILL and DECODE are resident; FINISHED has left."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


Logprobs = dict[int, float]
"""Log probabilities by token id: the likeliest tokens, likeliest first, then the chosen one if it is not among them."""


class Sequence:
    """Token ids of a request, its block table, and how far its KV has been computed.

    token_ids:            prompt, then completion.
    num_cached_tokens:    taken from the prefix cache at the last admission.
    num_cached_first:     taken from it at the first one, when there were tokens of the prompt alone.
    num_computed_tokens:  tokens whose KV is present in the pool (cached ones included).
    block_table:          physical block ids in logical order.
    chain:                one entry a full block whose content is known to the prefix cache: (hash, registration).
    priority:             lower is sooner.
    num_passed:           how often a request behind it was admitted while it lacked blocks.
    sample_index:         0 for the request itself, 1, 2, ... for its further samples (SamplingParams.n).
    siblings:             of a request with n > 1: its further samples, on the first one only.
    stop_ids:             ids that end the completion: end-of-sequence unless ignored, and stop_token_ids.
    is_plain:             SamplingParams.is_plain.
    may_end_at:           until so many tokens are computed, the token that follows ends it only if it is a stop id.
    ends_at:              no row beyond so many computed tokens gives it a token: those of max_tokens, or of its end.
    needs_host:           a token of it can't be drawn before the host knows the one before (penalties), or the host
                          wants more than the token (log probabilities); such a step overlaps with no other.
    logprobs:             one entry a completion token, or None where they are not asked for.
    prompt_logprobs:      of the prompt tokens whose context has been computed, None for the first; or None as above.
    finish_reason:        None, "stop", "length" (max_tokens), "abort", or "error" (no token could be chosen).
    stop_reason:          for "stop": the id that ended it, or the stop string.
    error:                for "error": what went wrong.
    """

    __slots__ = (
        "__weakref__",
        "arrival",
        "block_table",
        "chain",
        "ends_at",
        "error",
        "finish_reason",
        "is_plain",
        "logprobs",
        "may_end_at",
        "needs_host",
        "num_cached_first",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_passed",
        "num_preemptions",
        "num_prompt_tokens",
        "priority",
        "prompt_logprobs",
        "request_id",
        "sample_index",
        "sampling_params",
        "seq_id",
        "siblings",
        "status",
        "stop_ids",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        seq_id: int,
        token_ids: list[int],
        sampling_params: SamplingParams,
        *,
        request_id: str,
        arrival: float = 0.0,
        priority: int = 0,
        sample_index: int = 0,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.seq_id = seq_id
        self.request_id = request_id
        self.arrival = arrival
        self.priority = priority
        self.sampling_params = sampling_params
        self.token_ids = token_ids
        self.num_prompt_tokens = len(token_ids)
        self.num_cached_tokens = 0
        self.num_cached_first = 0
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.num_passed = 0
        self.block_table: list[int] = []
        self.chain: list[Link] = []
        self.status = SequenceStatus.WAITING
        self.sample_index = sample_index
        self.siblings: tuple[Sequence, ...] = ()
        self.stop_ids = frozenset() if sampling_params.ignore_eos else eos_token_ids
        if sampling_params.stop_token_ids:
            self.stop_ids = self.stop_ids.union(sampling_params.stop_token_ids)
        self.is_plain = sampling_params.is_plain
        self.ends_at = self.num_prompt_tokens + sampling_params.max_tokens - 1
        self.may_end_at = 0 if sampling_params.stop else self.ends_at
        self.needs_host = sampling_params.needs_host
        self.logprobs: list[Logprobs] | None = None if sampling_params.logprobs is None else []
        # All samples have the same prompt: the first one's are enough.
        asked = sampling_params.prompt_logprobs is not None and sample_index == 0
        self.prompt_logprobs: list[Logprobs | None] | None = [None] if asked else None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def completion_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def samples(self) -> tuple[Sequence, ...]:
        """This sample of its request and, if it is the first, all others."""
        return (self, *self.siblings)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Its prompt must be computed, and not be taken from the cache, to say what it is asked for."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.status}, tokens={self.num_prompt_tokens}"
            f"+{self.num_completion_tokens}, computed={self.num_computed_tokens}, block_table={self.block_table})"
        )
