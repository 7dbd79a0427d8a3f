"""A step of which more is asked than its ids: the log probabilities of tokens sampled, and of prompts."""

from __future__ import annotations

from typing import Final

from nvexplore.engine.batch import Sampled, ScheduledBatch
from nvexplore.layers.logprobs import token_logprobs
from nvexplore.runner.execution import Execution
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.wishes import Wishes

_PROMPT_ROWS: Final = 64  # rows of logits at a time: a vocabulary is wide, a prompt is long


def run_with_logprobs(execution: Execution, laid: ForwardBatch, batch: ScheduledBatch, wishes: Wishes) -> Sampled:
    """Compute a laid-out batch and wait for it."""
    begun = execution.forward(laid)
    sampled = Sampled([])
    if begun.num_samples:
        logits = execution.logits("sampled")
        ids = sampled.token_ids = execution.backend.sample(logits, begun).tolist()
        told = [wish for wish in wishes.logprobs if ids[wish[1]] >= 0]
        if told:
            rows = [row for _, row, _ in told]
            found = token_logprobs(logits[rows], [ids[row] for row in rows], [count for _, _, count in told])
            sampled.logprobs = {row: each for (row, _, _), each in zip(told, found, strict=True)}
    first_token = begun.cu_seqlens_q.tolist()
    for row, first, end, count in wishes.prompts:
        seq, start = batch.seqs[row], batch.starts[row]
        kept = sampled.prompt_logprobs[row] = []
        for begin in range(first, end, _PROMPT_ROWS):
            tokens = range(begin, min(begin + _PROMPT_ROWS, end))
            # The logits before a token, which are those of the position before it, say how likely it was.
            logits = execution.logits([first_token[row] + token - 1 - start for token in tokens])
            ids = [seq.token_ids[token] for token in tokens]
            kept += token_logprobs(logits, ids, [count] * len(ids))
    execution.forget()
    return sampled
