"""What a batch's sequences ask for beyond tokens drawn at a temperature, ready for the sampler. Changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers.controls import Controls


@dataclass(slots=True)
class Wishes:
    """controls: what changes logits before the draw, or None.

    logprobs: (batch row, sampled row, how many) of the rows whose sampled token's log probabilities are wanted.
    prompts:  (batch row, first token, end, how many): of these prompt tokens log probabilities are wanted, and this
              step computes what comes before each.
    """

    controls: Controls | None
    logprobs: list[tuple[int, int, int]]
    prompts: list[tuple[int, int, int, int]]


def wishes_of(batch: ScheduledBatch, vocab_size: int) -> Wishes | None:
    """Collect the wishes of a batch; None where no sequence has any, which is found out fast."""
    if all(seq.is_plain for seq in batch.seqs):
        return None
    wishes = Wishes(None, [], [])
    controlled: list[tuple[int, Sequence, bool]] = []
    sampled_row = 0
    rows = zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True)
    for row, (seq, start, count, samples) in enumerate(rows):
        params = seq.sampling_params
        if seq.prompt_logprobs is not None and seq.lacks_prompt_logprobs:
            first, end = len(seq.prompt_logprobs), min(start + count + 1, seq.num_prompt_tokens)
            if first < end:
                wishes.prompts.append((row, first, end, params.prompt_logprobs or 0))
        if not samples:
            continue
        if params.logprobs is not None:
            wishes.logprobs.append((row, sampled_row, params.logprobs))
        # Counted by position: the token before may not be known yet.
        lacks_tokens = start + count - seq.num_prompt_tokens < params.min_tokens
        if params.has_penalties or params.has_filters or lacks_tokens:
            controlled.append((sampled_row, seq, lacks_tokens))
        sampled_row += 1
    if controlled:
        wishes.controls = _controls(controlled, vocab_size)
    return wishes


def _controls(rows: list[tuple[int, Sequence, bool]], vocab_size: int) -> Controls:
    seen: list[tuple[int, ...]] = []
    banned: list[tuple[int, ...]] = []
    for index, (_, seq, lacks_tokens) in enumerate(rows):
        params = seq.sampling_params
        if params.has_penalties:
            counts: dict[int, int] = Counter(seq.completion_token_ids)
            if params.repetition_penalty != 1:  # the only one that looks at the prompt
                counts = dict.fromkeys(seq.prompt_token_ids, 0) | counts
            seen += [(index, token_id, count) for token_id, count in counts.items()]
        if lacks_tokens:
            # A checkpoint may name an end-of-sequence id that its vocabulary does not have.
            banned += [(index, token_id) for token_id in sorted(seq.stop_ids) if token_id < vocab_size]
    asked = [seq.sampling_params for _, seq, _ in rows]
    seen_rows, seen_ids, seen_counts = _columns(seen, 3)
    banned_rows, banned_ids = _columns(banned, 2)
    return Controls(
        rows=torch.tensor([row for row, _, _ in rows], device="cpu"),
        repetition=torch.tensor([p.repetition_penalty for p in asked], dtype=torch.float32, device="cpu"),
        frequency=torch.tensor([p.frequency_penalty for p in asked], dtype=torch.float32, device="cpu"),
        presence=torch.tensor([p.presence_penalty for p in asked], dtype=torch.float32, device="cpu"),
        top_k=torch.tensor([min(p.top_k or 0, vocab_size) for p in asked], device="cpu"),
        top_p=torch.tensor([p.top_p for p in asked], dtype=torch.float64, device="cpu"),
        min_p=torch.tensor([p.min_p for p in asked], dtype=torch.float64, device="cpu"),
        seen_rows=seen_rows,
        seen_ids=seen_ids,
        seen_counts=seen_counts,
        banned_rows=banned_rows,
        banned_ids=banned_ids,
    )


def _columns(rows: list[tuple[int, ...]], width: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, width).T.contiguous()
