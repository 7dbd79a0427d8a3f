"""Greedy tokens against transformers' generate, each prompt alone there, batched and constrained here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams


def reference_tokens(path: Path, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """What ``generate`` in fp32 gives for each prompt alone: ``max_tokens`` ids, through any end-of-sequence id."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    config = model.generation_config
    config.do_sample, config.temperature, config.top_p, config.top_k = False, None, None, None
    config.eos_token_id = None  # (min_new_tokens would not do: it forbids the id, which changes the text)
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens)
        outputs.append(out[0, len(prompt) :].tolist())
        assert len(outputs[-1]) == max_tokens
    return outputs


def engine_tokens(
    path: Path, prompts: list[list[int]], max_tokens: int, **options: Any
) -> tuple[list[list[int]], dict[str, int]]:
    """The same from nvexplore in one batch; and what happened on the way: chunks, hits, preemptions, steps."""
    with LLM(path, dtype="float32", **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        seqs = [llm.add_request(prompt, params) for prompt in prompts]
        figures = {"steps": 0, "chunked_prefills": 0, "hit_tokens": 0, "preemptions": 0, "evictions": 0}
        for record in llm.steps():
            planned = record.planned
            figures["steps"] += 1
            figures["chunked_prefills"] += sum(
                prefill and not last for prefill, last in zip(planned.is_prefill, planned.samples, strict=True)
            )
            figures["hit_tokens"] += sum(planned.admitted.num_cached_tokens)
            figures["preemptions"] += len(planned.preempted.seq_id)
            figures["evictions"] += planned.blocks.kind.count("evicted")
        return [seq.completion_token_ids for seq in seqs], figures


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: two that wait for each other on a busy machine take many times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
