"""The scheduler's benchmark: what it asks of an engine without a model, and how ours answers. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits
from nvexplore.sampling_params import SamplingParams

TOKEN_BUDGET = 16_384  # prompt tokens a step, for all contenders
END_OF_SEQUENCE = 2  # is looked for, and never comes
FIRST_TOKENS = [7] * TOKEN_BUDGET  # all the same: contenders may spread a prefill over steps in different ways


@dataclass(frozen=True, slots=True)
class Shape:
    """What a contender is built for."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int


class Decider(Protocol):
    """An engine without a model: the next step samples the tokens it is told."""

    name: str

    def add(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        """Queue prompts."""
        ...

    def step(self, token_ids: list[int]) -> None:
        """One whole step; row i of those that sample gets ``token_ids[i]``, and there may be too many of them."""
        ...

    def is_prefilling(self) -> bool:
        """Whether a request has no token yet; answered at once, since it is asked while the clock runs."""
        ...

    def completions(self) -> list[list[int]]:
        """The tokens that the running sequences have so far, prompts included, in the order in which they came."""
        ...


MakeDecider = Callable[[Shape], Decider]


class _Runner:
    """Gives the tokens it was given."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def run(self, batch: ScheduledBatch) -> list[int]:
        return self.token_ids[: sum(batch.samples)] if batch.is_prefill[0] else self.token_ids

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        return Dispatch()


class Nvexplore:
    """``Engine.step``, whole: the transaction, the output and the runner's call are in its time; nobody subscribes."""

    name = "nvexplore"

    def __init__(self, shape: Shape) -> None:
        limits = EngineLimits(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=TOKEN_BUDGET,
            max_model_len=shape.max_model_len,
        )
        self._runner = _Runner()
        self._engine = Engine(limits, self._runner, eos_token_ids=[END_OF_SEQUENCE])

    def add(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        for prompt in prompts:
            self._engine.add_request(prompt, params)

    def step(self, token_ids: list[int]) -> None:
        self._runner.token_ids = token_ids
        self._engine.step()

    def is_prefilling(self) -> bool:
        queues = self._engine.scheduler.queues  # only the sequence admitted last can have run half of its prompt
        return bool(queues.waiting) or bool(queues.running and not queues.running[-1].num_completion_tokens)

    def completions(self) -> list[list[int]]:
        return [seq.token_ids for seq in sorted(self._engine.live.values(), key=lambda seq: seq.seq_id)]
