"""The live requests by id, and the refusal of what could never run, naming value and limit. Knows no queue."""

from __future__ import annotations

from collections.abc import Iterable

from nvexplore.checks import check_int, check_ints, check_text
from nvexplore.engine.limits import LARGEST_INT, EngineLimits
from nvexplore.engine.sequence import Sequence
from nvexplore.engine.undo import UndoLog
from nvexplore.sampling_params import SamplingParams


class Requests:
    """Makes sequences and finds them by id; every change is logged for undo before it is made.

    live: the unfinished sequences by id. The samples of a request "a" with n = 3 are "a", "a#1" and "a#2".
    """

    def __init__(self, undo: UndoLog, eos_token_ids: frozenset[int]) -> None:
        self.live: dict[str, Sequence] = {}
        self._eos_token_ids = eos_token_ids
        self._undo = undo
        self._next_seq_id = 0
        # The samples of requests that have more than one, for as long as any of them lives: so long all have their ids.
        self._families: dict[str, tuple[Sequence, ...]] = {}

    def add(
        self, prompt: list[int], params: SamplingParams, request_id: str | None, arrival: float, priority: int
    ) -> Sequence:
        """Make the sequences of a request and return the first; TypeError or ValueError for an id that is in use."""
        first_seq_id = self._next_seq_id
        request_id = self._checked_id(request_id, params.n)
        samples = [
            Sequence(
                first_seq_id + index,
                list(prompt),
                params,
                request_id=name,
                arrival=arrival,
                priority=priority,
                sample_index=index,
                eos_token_ids=self._eos_token_ids,
            )
            for index, name in enumerate(_sample_ids(request_id, params.n))
        ]
        first = samples[0]
        first.siblings = tuple(samples[1:])
        self._undo.attr(self, "_next_seq_id")
        self._next_seq_id += len(samples)
        for seq in samples:
            self._undo.key(self.live, seq.request_id)
            self.live[seq.request_id] = seq
        if first.siblings:
            self._undo.key(self._families, request_id)
            self._families[request_id] = first.samples
        return first

    def find(self, request_id: str) -> list[Sequence]:
        """The live sequences that ``request_id`` names: one, or all the samples of a request."""
        family = self._families.get(request_id)
        if family is not None:
            return [seq for seq in family if seq.request_id in self.live]
        seq = self.live.get(request_id)
        return [] if seq is None else [seq]

    def leave(self, *seqs: Sequence) -> None:
        """Forget sequences that have finished."""
        for seq in seqs:
            self._undo.key(self.live, seq.request_id)
            del self.live[seq.request_id]
            if seq.sampling_params.n > 1:
                parent = seq.request_id.rpartition("#")[0] if seq.sample_index else seq.request_id
                if not self.find(parent):
                    self._undo.key(self._families, parent)
                    del self._families[parent]

    def _checked_id(self, request_id: str | None, n: int) -> str:
        """``request_id``, or one made from the next seq_id, if it and those of its samples are free."""
        if request_id is None:
            request_id = str(self._next_seq_id)
            while any(self._is_used(each) for each in _sample_ids(request_id, n)):  # somebody chose this as a name
                request_id += "'"
        request_id = check_text("request_id", request_id)
        for each in _sample_ids(request_id, n):
            if self._is_used(each):
                raise ValueError(
                    f"request_id={each!r}: a live request has this id already"
                    + ", or had it for a sample that has ended" * (each not in self.live)
                )
        return request_id

    def _is_used(self, request_id: str) -> bool:
        if request_id in self.live or request_id in self._families:
            return True
        family = self._families.get(request_id.rpartition("#")[0], ())
        return any(seq.request_id == request_id for seq in family)


def _sample_ids(request_id: str, n: int) -> list[str]:
    return [request_id, *(f"{request_id}#{index}" for index in range(1, n))]


def check_request(
    token_ids: Iterable[int], params: SamplingParams, limits: EngineLimits, vocab_size: int | None, knows_text: bool
) -> list[int]:
    """The prompt as a list of ints.

    Raises TypeError for what is no integer or no SamplingParams; ValueError for an empty prompt, an id (of the prompt
    or to stop at) outside the vocabulary, stop strings where nobody finds them (knows_text is False), or prompt +
    max_tokens beyond max_model_len or beyond the whole KV pool.
    """
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params={params!r}: must be a SamplingParams, not {type(params).__name__}")
    if isinstance(token_ids, (str, bytes)) or not isinstance(token_ids, Iterable):
        raise TypeError(f"token_ids={token_ids!r}: must be integers; text is for LLM.add_request")
    if params.stop and not knows_text:
        raise ValueError(f"stop={params.stop!r}: this engine has no stop_matcher, so it finds no strings; LLM has one")
    top = LARGEST_INT if vocab_size is None else vocab_size - 1
    for i, token_id in enumerate(params.stop_token_ids):
        check_int(f"stop_token_ids[{i}]", token_id, maximum=top)
    prompt = check_ints("token_ids", token_ids, minimum=0, maximum=top)
    if not prompt:
        raise ValueError("the prompt is empty: it must have at least 1 token")
    asked = f"prompt of {len(prompt)} tokens + max_tokens={params.max_tokens}"
    total = len(prompt) + params.max_tokens
    if total > limits.max_model_len:
        raise ValueError(f"{asked} is {total}: must be at most max_model_len={limits.max_model_len}")
    needed = limits.blocks_for(total - 1)  # the last token is never stored
    if needed > limits.num_blocks:
        raise ValueError(
            f"{asked} needs {needed} KV blocks of {limits.block_size} tokens: "
            f"the pool has num_blocks={limits.num_blocks}"
        )
    return prompt
