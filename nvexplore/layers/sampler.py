"""Choosing token ids from logits in plain torch, one draw a row. Holds no random state."""

from __future__ import annotations

import torch
from torch import Tensor

from nvexplore.layers.controls import Controls, apply_controls, weights_of


def uniforms_of(sample_keys: Tensor) -> Tensor:
    """Turn random bits [R] int64 into numbers in [0, 1), [R] float64, by their upper 53 bits."""
    return ((sample_keys >> 11) & (2**53 - 1)).double() * 2.0**-53


def sample(logits: Tensor, temperatures: Tensor, uniforms: Tensor, controls: Controls | None = None) -> Tensor:
    """Choose one id a row: logits [R, vocab] float32, temperatures and uniforms [R] -> [R] int64.

    Temperature 0: the first maximum. Otherwise the first id at which the summed probabilities of
    softmax(logits / temperature) exceed the row's uniform number; however hot or cold, that is an id of the row. Rows
    do not influence one another.
    A row whose maximum is not a finite number gives -1. ``controls`` change some rows of logits before all this.
    """
    if controls is not None:
        logits = apply_controls(logits, temperatures, controls)
    peaks, ids = logits.max(dim=-1)  # a NaN is greater than everything, so it shows in the maximum
    drawn = temperatures.nonzero().flatten()
    if drawn.numel():
        ids[drawn] = _draw(logits[drawn], peaks[drawn], temperatures[drawn], uniforms[drawn])
    return ids.masked_fill_(~peaks.isfinite(), -1)


def _draw(logits: Tensor, peaks: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    # The largest weight is exactly 1 however small the temperature: nothing overflows, the rest fades to 0.
    sums = weights_of(logits, peaks, temperatures).cumsum_(dim=-1)
    totals = sums[:, -1:]
    points = (uniforms[:, None] * totals).to(sums.dtype)
    # right=True: the first sum above the point, which is never that of a token without weight. Where rounding
    # put the point on the total there is none, and the answer is the first token to reach the total.
    ids = torch.searchsorted(sums, points, right=True)
    last = torch.searchsorted(sums, totals.contiguous())
    return torch.minimum(ids, last).squeeze(-1)
