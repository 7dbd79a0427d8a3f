"""What a caller gets of a request: the whole completion, or its text bit by bit. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import Any

from nvexplore.collector import few_collections
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import StepRecord
from nvexplore.engine.sequence import Logprobs, Sequence
from nvexplore.progress import progress_bar
from nvexplore.text.completion_text import CompletionText
from nvexplore.text.detokenizer import Decode


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """What one prompt gave; with ``SamplingParams(n=...)`` the first completion, and ``outputs`` has all of them.

    text:            the completion without special tokens; it ends before the stop string or stop token.
    token_ids:       all completion tokens, the one that ended it included.
    finish_reason:   "stop", "length", "abort", or "error" (``error`` says what went wrong).
    stop_reason:     for "stop": the stop string, or the id that ended it.
    num_cached_tokens: prompt tokens from the prefix cache when the request was first admitted, whatever came later.
    logprobs:        one entry a completion token, or None: natural log probabilities by id, the likeliest first.
    prompt_logprobs: one entry a prompt token, None for the first; or None. With n > 1 on the first output only.
    """

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str | None
    num_cached_tokens: int
    stop_reason: int | str | None = None
    error: str | None = None
    logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs | None] | None = None
    others: tuple[GenerationOutput, ...] = field(default=(), repr=False)

    @property
    def outputs(self) -> tuple[GenerationOutput, ...]:
        """All n completions, this one first."""
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What has been added to a completion: ``text`` (whole characters, nothing of a stop string) and its tokens.

    token_ids may be ahead of the text, which waits for the rest of a character or of what may be a stop string.
    index: which of n completions. The last delta of each has a ``finish_reason`` (see GenerationOutput).
    """

    request_id: str
    text: str
    token_ids: list[int]
    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    logprobs: list[Logprobs] | None = None


class DeltaReader:
    """Reads a sequence while the engine steps: what has come since the last time."""

    def __init__(self, seq: Sequence, decode: Decode) -> None:
        self.seq = seq
        self.is_done = False
        params = seq.sampling_params
        self._text = CompletionText(decode, params.stop_strings, params.min_tokens)
        self._num_read = self._num_told = 0

    def read(self) -> TextDelta | None:
        """The new text, or None while there is none; call it between steps."""
        seq = self.seq
        if self.is_done:
            return None
        end = seq.num_completion_tokens
        text = self._text.push(shown_token_ids(seq, self._num_read))
        self._num_read = end
        if seq.is_finished:
            self.is_done = True
            text += self._text.flush()
        elif not text:
            return None
        start, self._num_told = self._num_told, end
        return TextDelta(
            request_id=seq.request_id,
            text=text,
            token_ids=seq.token_ids[seq.num_prompt_tokens + start :],
            index=seq.sample_index,
            finish_reason=seq.finish_reason,
            stop_reason=seq.stop_reason,
            error=seq.error,
            logprobs=None if seq.logprobs is None else seq.logprobs[start:],
        )


def read_deltas(
    first: Sequence, decode: Decode, advance: Callable[[], None], lock: AbstractContextManager[Any]
) -> Iterator[TextDelta]:
    """A request's deltas as they come, under ``lock``; ``advance`` is called while there is none."""
    readers = [DeltaReader(seq, decode) for seq in first.samples]
    while not all(reader.is_done for reader in readers):
        with lock:
            deltas = [delta for reader in readers if (delta := reader.read()) is not None]
            if not deltas:
                advance()
        yield from deltas


def shown_token_ids(seq: Sequence, start: int = 0) -> list[int]:
    """The completion tokens from ``start`` on whose text is shown: not the id that stopped it."""
    end = len(seq.token_ids) - isinstance(seq.stop_reason, int)
    return seq.token_ids[seq.num_prompt_tokens + start : end]


def output_of(first: Sequence, decode: Decode) -> GenerationOutput:
    """What a request gave, from its first sample and its further ones."""
    return _output(first, decode, tuple(_output(seq, decode) for seq in first.siblings))


def _output(seq: Sequence, decode: Decode, others: tuple[GenerationOutput, ...] = ()) -> GenerationOutput:
    params = seq.sampling_params
    text = CompletionText(decode, params.stop_strings, params.min_tokens)
    return GenerationOutput(
        request_id=seq.request_id,
        prompt_token_ids=seq.prompt_token_ids,
        token_ids=seq.completion_token_ids,
        text=text.push(shown_token_ids(seq)) + text.flush(),
        finish_reason=seq.finish_reason,
        num_cached_tokens=seq.num_cached_first,
        stop_reason=seq.stop_reason,
        error=seq.error,
        logprobs=seq.logprobs,
        prompt_logprobs=seq.prompt_logprobs,
        others=others,
    )


def advance(engine: Engine) -> None:
    """Bring a step of an engine with unfinished requests to its end; RuntimeError as ``check_progress``."""
    if not engine.advance():
        _refuse_to_wait(engine)


def check_progress(record: StepRecord, engine: Engine) -> None:
    """RuntimeError if the step of ``record`` did nothing although requests are unfinished: nor will the next."""
    if record.is_empty:
        _refuse_to_wait(engine)


def _refuse_to_wait(engine: Engine) -> None:
    if engine.has_unfinished:
        raise RuntimeError(
            f"policy {engine.policy.name!r} admits none of {len(engine.live)} unfinished requests while nothing runs"
        )


def run_to_end(seqs: list[Sequence], advance: Callable[[], None], use_tqdm: bool) -> None:
    """Call ``advance`` until all of ``seqs`` have finished; a progress bar counts their tokens."""
    done, left = 0, seqs
    bar = progress_bar(sum(seq.sampling_params.max_tokens for seq in seqs), use_tqdm)
    with closing(bar), few_collections():
        while left := [seq for seq in left if not seq.is_finished]:
            advance()
            if use_tqdm:
                now = sum(seq.num_completion_tokens for seq in seqs)
                bar.update(now - done)
                done = now
        bar.total = done  # a completion that ended early is complete
