"""The largest entries of rows, exactly so many: of equal ones the first. Knows nothing of what they mean."""

from __future__ import annotations

import torch
from torch import Tensor


def largest(rows: Tensor, counts: Tensor) -> Tensor:
    """Mark the ``counts[i]`` largest entries of row i: rows [R, V] without NaN, counts [R] in 1..V -> [R, V] bool."""
    most = int(counts.max())
    last = rows.topk(most, dim=-1).values.gather(1, counts[:, None] - 1)
    above, equal = rows > last, rows == last
    free = counts[:, None] - above.sum(-1, keepdim=True)
    # topk may choose any of equal entries; these are the first.
    return above | (equal & (equal.cumsum(-1) <= free))


def ranked(rows: Tensor, count: int) -> Tensor:
    """Return where the ``count`` largest entries of each row are [R, count]: falling, equal ones by position."""
    counts = torch.full((rows.shape[0],), count, device=rows.device)
    ids = largest(rows, counts).nonzero()[:, 1].view(-1, count)
    order = rows.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)
