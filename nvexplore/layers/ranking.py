"""The largest entries of rows, exactly so many: of equal ones the first. Knows nothing of what they mean."""

from __future__ import annotations

import torch
from torch import Tensor


def largest(rows: Tensor, counts: Tensor) -> Tensor:
    """Mark the ``counts[i]`` largest entries of row i: rows [R, V] without NaN, counts [R] in 1..V -> [R, V] bool."""
    most = int(counts.max())
    last = rows.topk(most, dim=-1).values.gather(1, counts[:, None] - 1)
    marked = rows >= last
    if bool((marked.sum(-1) == counts).all()):
        return marked
    # More are equal to the last than there is room for: topk chose any of them, these are the first.
    above, equal = rows > last, rows == last
    return above | (equal & (equal.cumsum(-1) <= counts[:, None] - above.sum(-1, keepdim=True)))


def ranked(rows: Tensor, count: int) -> Tensor:
    """Return where the ``count`` largest entries of each row are [R, count]: falling, equal ones by position."""
    if count == rows.shape[1]:
        return rows.sort(dim=-1, descending=True, stable=True).indices
    counts = torch.full((rows.shape[0],), count, device=rows.device)
    ids = largest(rows, counts).nonzero()[:, 1].view(-1, count)
    order = rows.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)
