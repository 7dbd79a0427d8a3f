"""What requests ask of the sampler beyond a temperature: penalties, banned tokens, filters.

``SamplingParams``' module says in which order and by which rules. Plain torch, no loop over rows; knows no request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

import torch
from torch import Tensor

from nvexplore.layers.ranking import largest, ranked

# top_p looks at so many of the likeliest tokens, then at eight times as many, then at all: sorting a whole vocabulary
# takes ten times as long as finding a thousand.
_FEW = 1024
# So many logits are filtered at a time (110 rows of 151,936). Filters take ten times the bytes of what they filter, and
# the KV pool may have left no room for that of 512 rows.
_AT_ONCE = 1 << 24
# The coldest and the hottest that logits are divided by. Beyond, only the maximum has weight, or no logit matters any
# more; float32 would take a colder one for 0 where denormals are flushed, has infinity for a hotter one, and then NaN.
_COLDEST: Final = torch.finfo(torch.float32).tiny
_HOTTEST: Final = 1e30


@dataclass(slots=True)
class Controls:
    """C of a batch's R sampled rows ask for something, in rising order; a row that does not stays what it was.

    rows:                                                   [C] int64, which rows they are.
    repetition, frequency, presence:                        [C] float32 penalties.
    top_k:                                                  [C] int64, 0 is off.
    top_p, min_p:                                           [C] float64.
    seen_rows (index into rows), seen_ids, seen_counts:     [S] int64, once for each token that is to be penalised, and
                                                            how often it is in the completion.
    banned_rows (index into rows), banned_ids:              [B] int64, tokens that must not be chosen.
    """

    rows: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seen_rows: Tensor
    seen_ids: Tensor
    seen_counts: Tensor
    banned_rows: Tensor
    banned_ids: Tensor

    def to(self, device: torch.device) -> Controls:
        moved = {f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)}
        return replace(self, **moved)


def apply_controls(logits: Tensor, temperatures: Tensor, controls: Controls) -> Tensor:
    """Return logits [R, vocab] as penalised, and -inf where a token must not be drawn; the argument is kept.

    What a filter leaves keeps its logit, so one that removes nothing changes no draw. A row without a finite maximum
    (NaN, +inf, or all -inf) becomes NaN.
    """
    changed = logits.clone()
    _penalise(changed, controls)
    changed[controls.rows[controls.banned_rows], controls.banned_ids] = -math.inf
    step = max(1, _AT_ONCE // logits.shape[1])
    for begin in range(0, len(controls.rows), step):
        some = slice(begin, begin + step)
        chosen = controls.rows[some]
        is_broken = ~logits[chosen].amax(-1).isfinite()
        rows = changed[chosen].masked_fill_(is_broken[:, None], 0.0)
        _keep_top_k(rows, temperatures[chosen], controls.top_k[some])
        _keep_top_p(rows, temperatures[chosen], controls.top_p[some])
        _keep_min_p(rows, temperatures[chosen], controls.min_p[some])
        changed.index_copy_(0, chosen, rows.masked_fill_(is_broken[:, None], math.nan))
    return changed


def _penalise(logits: Tensor, c: Controls) -> None:
    where = (c.rows[c.seen_rows], c.seen_ids)
    values, repetition = logits[where], c.repetition[c.seen_rows]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= c.frequency[c.seen_rows] * c.seen_counts
    values -= c.presence[c.seen_rows] * (c.seen_counts > 0)
    logits[where] = values


def _keep_top_k(rows: Tensor, temperatures: Tensor, top_k: Tensor) -> None:
    chosen = ((top_k > 0) & (top_k < rows.shape[1]) & (temperatures > 0)).nonzero().flatten()
    if chosen.numel():
        some = rows[chosen]
        rows[chosen] = some.masked_fill_(~largest(some, top_k[chosen]), -math.inf)


def _keep_top_p(rows: Tensor, temperatures: Tensor, top_p: Tensor) -> None:
    chosen = ((top_p < 1) & (temperatures > 0)).nonzero().flatten()
    size = rows.shape[1]
    for count in (_FEW, 8 * _FEW, size):
        if not chosen.numel():
            return
        some = rows[chosen]
        weights = weights_of(some, some.amax(-1), temperatures[chosen])
        wanted = top_p[chosen, None] * weights.sum(-1, keepdim=True, dtype=torch.float64)
        ids = ranked(some, min(count, size))
        sums = weights.gather(1, ids).cumsum(-1, dtype=torch.float64)
        # A token stays if those before it have not reached the share yet; before the first there are none.
        is_kept = torch.cat((torch.zeros_like(sums[:, :1]), sums[:, :-1]), dim=-1) < wanted
        is_kept[:, 0] = True
        kept = torch.full_like(some, -math.inf).scatter_(1, ids, some.gather(1, ids).masked_fill_(~is_kept, -math.inf))
        is_enough = (sums[:, -1] >= wanted[:, 0]) | (count >= size)
        rows[chosen[is_enough]] = kept[is_enough]
        chosen = chosen[~is_enough]


def _keep_min_p(rows: Tensor, temperatures: Tensor, min_p: Tensor) -> None:
    chosen = ((min_p > 0) & (temperatures > 0)).nonzero().flatten()
    if chosen.numel():
        some = rows[chosen]
        too_small = weights_of(some, some.amax(-1), temperatures[chosen]) < min_p[chosen, None]
        rows[chosen] = some.masked_fill_(too_small, -math.inf)


def weights_of(rows: Tensor, peaks: Tensor, temperatures: Tensor) -> Tensor:
    """Probabilities [R, vocab] at positive temperatures [R], divided by those of ``peaks`` [R], the rows' largest.

    The largest is therefore exactly 1, and none is NaN however hot or cold, as long as the peaks are finite.
    """
    mild = temperatures.clamp(_COLDEST, _HOTTEST)
    return (rows - peaks[:, None]).div_(mild[:, None]).exp_()
