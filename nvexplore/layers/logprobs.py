"""Log probabilities of tokens: natural logs of the softmax of raw logits. Knows no request."""

from __future__ import annotations

import torch
from torch import Tensor

from nvexplore.layers.ranking import ranked


def token_logprobs(logits: Tensor, token_ids: list[int], counts: list[int]) -> list[dict[int, float]]:
    """For each row of logits [R, vocab] the ``counts[i]`` likeliest tokens, then ``token_ids[i]`` if not among them.

    Likeliest first, equal ones by id; a count beyond the vocabulary is all of it. A row that is not finite gives NaN.
    """
    logits = logits.float()
    values = logits.log_softmax(-1)
    chosen = values.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0].tolist()
    most = min(max(counts), logits.shape[1])
    ids: list[list[int]] = [[] for _ in counts]
    tops: list[list[float]] = [[] for _ in counts]
    if most:
        is_finite = logits.amax(-1, keepdim=True).isfinite()
        top_ids = ranked(logits.where(is_finite, 0.0), most)
        ids, tops = top_ids.tolist(), values.gather(1, top_ids).tolist()
    found = []
    for row, (token_id, count) in enumerate(zip(token_ids, counts, strict=True)):
        entries = dict(zip(ids[row][:count], tops[row][:count], strict=True))
        entries.setdefault(token_id, chosen[row])
        found.append(entries)
    return found
