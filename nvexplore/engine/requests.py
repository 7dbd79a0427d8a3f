"""Refuses what could never run, at submission, naming value and limit. Changes nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable

from nvexplore.checks import check_int
from nvexplore.engine.limits import EngineLimits
from nvexplore.sampling_params import SamplingParams


def check_request(
    token_ids: Iterable[int], params: SamplingParams, limits: EngineLimits, vocab_size: int | None
) -> list[int]:
    """The prompt as a list of ints.

    Raises TypeError for what is no integer or no SamplingParams; ValueError for an empty prompt, an id outside the
    vocabulary, or prompt + max_tokens beyond max_model_len or beyond the whole KV pool.
    """
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params={params!r}: must be a SamplingParams, not {type(params).__name__}")
    if isinstance(token_ids, (str, bytes)) or not isinstance(token_ids, Iterable):
        raise TypeError(f"token_ids={token_ids!r}: must be integers; text is for LLM.add_request")
    top = None if vocab_size is None else vocab_size - 1
    prompt = [check_int(f"token_ids[{i}]", t, minimum=0, maximum=top) for i, t in enumerate(token_ids)]
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


def checked_request_id(request_id: str | None, seq_id: int, live: Container[str]) -> str:
    """``request_id``, or one made from ``seq_id``; TypeError or ValueError unless it is a str no live request has."""
    if request_id is None:
        request_id = str(seq_id)
        while request_id in live:  # somebody chose this number as a name
            request_id += "'"
    if not isinstance(request_id, str):
        raise TypeError(f"request_id={request_id!r}: must be a str, not {type(request_id).__name__}")
    if request_id in live:
        raise ValueError(f"request_id={request_id!r}: a live request has this id already")
    return request_id
