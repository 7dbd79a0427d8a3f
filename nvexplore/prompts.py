"""Prompts and sampling parameters as callers give them, one or many. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, Final

from nvexplore.checks import check_text
from nvexplore.sampling_params import SamplingParams

Prompt = str | SequenceOf[int] | Mapping[str, Any]
"""A text, token ids (an array or a tensor too), or vLLM's ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""

_KEYS: Final = ("prompt", "prompt_token_ids")
# Iterable, but bytes are numbers to Python that are no token ids, and sets have no order.
_NO_PROMPTS: Final = (bytes, bytearray, memoryview, set, frozenset)


def as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[str | SequenceOf[int]]:
    """The prompts as a list; a text, a dict or token ids alone are one prompt. Errors name the prompt at fault."""
    if isinstance(prompts, (str, Mapping)):
        return [as_prompt("prompts", prompts)]
    batch = [_plain(each) for each in _iterable("prompts", prompts, "text or token ids, or several of these")]
    if batch and not any(isinstance(each, Iterable) for each in batch):
        return [batch]  # one prompt of token ids
    return [as_prompt(f"prompts[{i}]", each) for i, each in enumerate(batch)]


def as_prompt(name: str, prompt: Any) -> str | SequenceOf[int]:
    """The text or the token ids of one prompt; TypeError or ValueError for what is neither. The ids are not checked."""
    if isinstance(prompt, Mapping):
        if len(prompt) != 1 or (key := next(iter(prompt))) not in _KEYS:
            keys = " or ".join(map(repr, _KEYS))
            raise ValueError(f"{name}={prompt!r}: a dict must have {keys}, and nothing else")
        name, prompt = f"{name}[{key!r}]", prompt[key]
    if isinstance(prompt, str):
        return check_text(name, prompt)
    ids: SequenceOf[int] = _iterable(name, prompt, "text or token ids")
    return ids


def params_for(
    batch: SequenceOf[object], params: SamplingParams | SequenceOf[SamplingParams] | None
) -> list[SamplingParams]:
    """One SamplingParams for each prompt; ValueError where their number is another, TypeError for other things."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * len(batch)
    if isinstance(params, (str, bytes, Mapping)) or not isinstance(params, Iterable):
        kind = type(params).__name__
        raise TypeError(f"sampling_params={params!r}: must be a SamplingParams, or one a prompt, not {kind}")
    each = list(params)
    for i, one in enumerate(each):
        if not isinstance(one, SamplingParams):
            raise TypeError(f"sampling_params[{i}]={one!r}: must be a SamplingParams, not {type(one).__name__}")
    if len(each) != len(batch):
        raise ValueError(f"sampling_params: {len(each)} given for {len(batch)} prompts; give one, or one a prompt")
    return each


def _plain(value: Any) -> Any:
    """Arrays, tensors and their scalars as Python has them: a tensor's scalars look like lists."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, memoryview) else value


def _iterable(name: str, value: Any, wanted: str) -> Any:
    plain = _plain(value)
    if isinstance(plain, _NO_PROMPTS) or not isinstance(plain, Iterable):
        raise TypeError(f"{name}={value!r}: must be {wanted}, not {type(value).__name__}")
    return plain
