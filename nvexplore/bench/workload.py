"""What is run and how long each part took. Knows no engine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Workload:
    """``batch`` prompts of ``prompt_len`` tokens each, completed by ``new_tokens`` tokens each, whatever they are."""

    batch: int
    prompt_len: int
    new_tokens: int

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """The token ids: random, the same in every run, different for each prompt, no special low ids."""
        source = random.Random(0)
        ids = range(vocab_size // 2, vocab_size)
        return [source.choices(ids, k=self.prompt_len) for _ in range(self.batch)]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a workload: its completions; seconds until all have their first token, then until the last."""

    token_ids: list[list[int]]
    prefill_seconds: float
    decode_seconds: float

    def decode_rate(self, workload: Workload) -> float:
        """Tokens a second, without the first token of each prompt, which the prefill gives."""
        return workload.batch * (workload.new_tokens - 1) / self.decode_seconds

    def prefill_rate(self, workload: Workload) -> float:
        """Prompt tokens a second, up to and with the choice of the first new tokens."""
        return workload.batch * workload.prompt_len / self.prefill_seconds


class Contender(Protocol):
    """Something that completes prompts greedily."""

    name: str

    def run(self, workload: Workload) -> Run: ...

    def close(self) -> None: ...
