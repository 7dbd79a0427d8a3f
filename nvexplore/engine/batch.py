"""What the scheduler hands to the runner: one step's work, in columns. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nvexplore.engine.sequence import Logprobs, Sequence


class Blocked(NamedTuple):
    """Why a waiting request the scheduler looked at was not admitted: ``needed`` of what, and ``available``.

    reason: "token_budget" (tokens), "max_num_seqs" (sequences) or "free_blocks" (blocks).
    num_passed:          how often it had been passed over when it was looked at.
    num_admitted_before: how many requests this search had admitted by then.
    reserve:             blocks of ``needed`` that must stay free for others.
    """

    seq_id: int
    reason: str
    needed: int
    available: int
    num_passed: int
    num_admitted_before: int
    reserve: int = 0


@dataclass(slots=True)
class ScheduledBatch:
    """One step's rows; row i runs ``counts[i]`` tokens of ``seqs[i]`` from position ``starts[i]`` on.

    samples[i]:    this row's last token yields a new one (a decode row, or the last chunk of a prefill).
    is_prefill[i]: the row is a prefill chunk (a recompute after preemption included).
    num_decodes:   so many rows are not; they come before all that are.
    blocked:       the waiting requests that were looked at and not admitted, in the order of the search.
    search_end:    why the search for requests to admit ended (see ``Waiting``); None: there was none.
    """

    seqs: list[Sequence] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    is_prefill: list[bool] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    num_decodes: int = 0
    search_end: str | None = None

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)

    def add(self, seq: Sequence, count: int, *, is_prefill: bool) -> None:
        """Schedule the next ``count`` tokens of ``seq``."""
        start = seq.num_computed_tokens
        self.seqs.append(seq)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(start + count == len(seq.token_ids))
        self.is_prefill.append(is_prefill)

    def add_decodes(self, seqs: list[Sequence]) -> None:
        """Schedule the one next token of each of ``seqs``, before anything else is scheduled."""
        count = self.num_decodes = len(seqs)
        self.seqs = seqs
        self.starts = [seq.num_computed_tokens for seq in seqs]
        self.counts = [1] * count
        self.samples = [True] * count
        self.is_prefill = [False] * count


class Dispatch(NamedTuple):
    """How the runner will run a batch, known on the host before anything is uploaded.

    graph_size: batch size of the CUDA graph used, or None; ``padding``: rows added to reach it.
    eager_reason: why no graph is used, or None when one is.
    """

    graph_size: int | None = None
    padding: int | None = None
    eager_reason: str | None = None
    prefill_backend: str | None = None
    decode_backend: str | None = None


@dataclass(slots=True)
class Sampled:
    """What a run gave where a row asked for log probabilities.

    token_ids:        as in ``Runner.run``.
    logprobs:         batch row -> those of its sampled token, for rows whose sequence has a ``logprobs`` list.
    prompt_logprobs:  batch row -> those of the prompt tokens from ``len(seq.prompt_logprobs)`` on whose logits this
                      step computed (token p's are those of position p - 1), for rows that lack them.
    device_ns:        what the device took for the step, by its own clock; None where it is not measured.
    """

    token_ids: list[int]
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[Logprobs]] = field(default_factory=dict)
    device_ns: int | None = None


class Launched(Protocol):
    """A batch that is being computed."""

    def wait(self) -> list[int] | Sampled:
        """What ``Runner.run`` returns, once it is there. May be called again after an interrupt."""
        ...


class Runner(Protocol):
    """What the engine needs of whoever computes; a fake one serves the engine's tests."""

    def run(self, batch: ScheduledBatch) -> list[int] | Sampled:
        """Compute the batch; return one sampled token id for each row whose ``samples`` is True, in row order.

        -1: no token could be chosen for that row (its logits are not numbers). The request ends with
        finish_reason "error"; the others go on. A ``Sampled`` is only needed where log probabilities are asked for.
        """
        ...

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        """Say how ``run`` would run this batch; cheap, touches no device. Asked only when a record is wanted."""
        ...


class OverlappingRunner(Runner, Protocol):
    """A runner that can be given a batch while the one before is being computed."""

    def launch(self, batch: ScheduledBatch, previous: Launched | None) -> Launched:
        """Begin to compute the batch and return at once.

        previous: the batch launched before, if its tokens are not known yet. A row that continues one of its rows
        starts at ``len(seq.token_ids)``, with the token that the other row is about to yield.
        """
        ...
