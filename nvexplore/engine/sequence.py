"""One request while it lives in the engine. Knows no queue, no block pool and no device."""

from __future__ import annotations

from enum import StrEnum

from nvexplore.sampling_params import SamplingParams


class SequenceStatus(StrEnum):
    """Where a sequence is: WAITING holds no blocks; PREFILL and DECODE are resident; FINISHED has left."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Sequence:
    """Token ids of a request, its block table, and how far its KV has been computed.

    token_ids:            prompt, then completion.
    num_cached_tokens:    taken from the prefix cache at the last admission.
    num_computed_tokens:  tokens whose KV is present in the pool (cached ones included).
    block_table:          physical block ids in logical order.
    chain:                one entry a full block whose content is known to the prefix cache: (hash, registration).
    priority:             lower is sooner.
    num_passed:           how often a request behind it was admitted while it lacked blocks.
    finish_reason:        None, "stop" (end-of-sequence id), "length" (max_tokens) or "abort".
    """

    __slots__ = (
        "arrival",
        "block_table",
        "chain",
        "finish_reason",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_passed",
        "num_preemptions",
        "num_prompt_tokens",
        "priority",
        "request_id",
        "sampling_params",
        "seq_id",
        "status",
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
    ) -> None:
        self.seq_id = seq_id
        self.request_id = request_id
        self.arrival = arrival
        self.priority = priority
        self.sampling_params = sampling_params
        self.token_ids = token_ids
        self.num_prompt_tokens = len(token_ids)
        self.num_cached_tokens = 0
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.num_passed = 0
        self.block_table: list[int] = []
        self.chain: list[tuple[int, int]] = []
        self.status = SequenceStatus.WAITING
        self.finish_reason: str | None = None

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
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.status}, tokens={self.num_prompt_tokens}"
            f"+{self.num_completion_tokens}, computed={self.num_computed_tokens}, block_table={self.block_table})"
        )
