"""Prompts and sampling parameters as callers give them, one or many. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from nvexplore.sampling_params import SamplingParams

Prompt = str | SequenceOf[int]
Messages = SequenceOf[dict[str, str]]


def as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    """The prompts as a list; a text or a list of token ids alone is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    batch = list(prompts)
    if batch and not any(isinstance(p, (str, bytes)) or hasattr(p, "__iter__") for p in batch):
        return [batch]  # type: ignore[list-item]  # one prompt of token ids
    return batch  # type: ignore[return-value]


def params_for(batch: list[Prompt], params: SamplingParams | SequenceOf[SamplingParams] | None) -> list[SamplingParams]:
    """One SamplingParams for each prompt; ValueError where their number is another."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * len(batch)
    each = list(params)
    if len(each) != len(batch):
        raise ValueError(f"sampling_params: {len(each)} given for {len(batch)} prompts; give one, or one a prompt")
    return each
