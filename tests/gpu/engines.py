"""Engines on a GPU and on the CPU for the same toy, and what their records tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nvexplore.engine.events import StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams
from tests.paged import token_ids

ROOMY: dict[str, Any] = {"block_size": 16, "num_kvcache_blocks": 256, "max_num_batched_tokens": 512, "max_num_seqs": 16}


def make_llm(path: Path, device: str = "cuda", **options: Any) -> LLM:
    """An LLM in float32 with a small pool; without limits that a test does not name."""
    return LLM(path, **{"device": device, "dtype": "float32", "max_model_len": 256, **ROOMY, **options})


def greedy(max_tokens: int, **wishes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **wishes)


def prompts(*lengths: int) -> list[list[int]]:
    """Printable bytes, which the toys were made for; each prompt begins as the first one does."""
    shared = [32 + token % 90 for token in token_ids(max(lengths), seed=1)]
    own = [[32 + token % 90 for token in token_ids(length, seed=10 + n)] for n, length in enumerate(lengths)]
    return [shared[: 2 * length // 3] + ids[2 * length // 3 :] for length, ids in zip(lengths, own, strict=True)]


def run(llm: LLM, asked: list[tuple[list[int], SamplingParams]]) -> tuple[list[Sequence], list[StepRecord]]:
    """Run requests to their end; their sequences, and a record of each step."""
    seqs = [llm.add_request(prompt, params) for prompt, params in asked]
    return seqs, list(llm.steps())


def tokens(llm: LLM, asked: list[tuple[list[int], SamplingParams]]) -> list[list[int]]:
    return [seq.completion_token_ids for seq in run(llm, asked)[0]]


def poison_last_block(llm: LLM) -> None:
    assert llm.runner is not None
    llm.runner.kv_cache.pool[:, :, -1].fill_(torch.nan)


def check_written(llm: LLM, records: list[StepRecord]) -> None:
    """V24: the last block is as poisoned as it was, and of all others those slots are written that records name.

    Slot 0 is too: the warm-up wrote it.
    """
    assert llm.runner is not None
    pool = llm.runner.kv_cache.pool
    assert pool[:, :, -1].isnan().all()
    is_written = pool[:, :, :-1].ne(0).flatten(4).any(dim=-1).any(dim=1).any(dim=0)
    named = {(0, 0)}
    for spans in (record.planned.spans for record in records):
        for block, offset, length in zip(spans.block_id, spans.offset, spans.length, strict=True):
            named |= {(block, at) for at in range(offset, offset + length)}
    assert {(block, at) for block, at in is_written.nonzero().tolist()} == named
