"""Draws a token for each row of logits in one pass: the maximum of logit + temperature * Gumbel noise.

The noise is -log(E) with E exponential, from a counter-based generator keyed by the row's sample key and counted by
token id: no row depends on another, and a step done again draws the same. argmax(x / T + g) = argmax(x + T * g), so
temperature 0 is the plain argmax and no temperature overflows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from nvexplore.backends.kernels.launch import IS_INTERPRETED, check_rows, power_of_2

_WIDTH = 4096  # tokens a program looks at; each call of the generator gives numbers for four
# Of Philox4x32, whose numbers pass all known tests from 7 on (Salmon et al., SC'11); the draw takes as long as they do.
ROUNDS = tl.constexpr(7)
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)


@triton.jit
def _log(x: tl.tensor) -> tl.tensor:
    """The logarithm by the GPU's own instruction: absolute error 2e-7, a tenth of the exact one's time."""
    if _IS_INTERPRETED:
        return tl.log(x)
    else:
        return libdevice.fast_logf(x)


@triton.jit
def _exponential(bits: tl.tensor) -> tl.tensor:
    """-log(1 - r) for r = (bits + 1/2) / 2**32: never 0, never infinite, exact where r is small and wins."""
    r = (bits.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # Near 0 the logarithm of 1 - r would be rounded to 0; its series is exact there. At the other end float32 may
    # round r to 1.
    return tl.where(r < 0.01, r * (1.0 + r * (0.5 + r * (0.33333333 + r * 0.25))), -_log(tl.maximum(1.0 - r, 3e-8)))


@triton.jit
def _best_of(
    logits_ptr: tl.tensor, at: tl.tensor, vocab: tl.tensor, bits: tl.tensor, temperature: tl.tensor
) -> tl.tensor:
    """The logits at ``at`` and their scores; what is no number or infinite scores infinity."""
    x = tl.load(logits_ptr + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    score = x
    if temperature > 0:
        score = x - temperature * _log(_exponential(bits))
    return tl.where((x != x) | (x == float("inf")), float("inf"), score)


@triton.jit
def _scan(
    logits_ptr: tl.tensor,
    temperatures_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    score_ptr: tl.tensor,
    id_ptr: tl.tensor,
    row_stride: tl.tensor,
    vocab: tl.tensor,
    NUM_PARTS: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    QUARTER: tl.constexpr = WIDTH // 4
    lane = tl.arange(0, QUARTER)
    first = part * WIDTH
    # Hotter than this no logit matters any more, and the noise times the temperature could be infinite.
    temperature = tl.minimum(tl.load(temperatures_ptr + row), 1e30)
    key = tl.load(keys_ptr + row)
    a, b, c, d = tl.randint4x(key, part * QUARTER + lane, ROUNDS)
    row_ptr = logits_ptr + row * row_stride
    best = _best_of(row_ptr, first + lane, vocab, a, temperature)
    ids = first + lane
    for quarter in tl.static_range(1, 4):
        bits = b if quarter == 1 else (c if quarter == 2 else d)
        at = first + quarter * QUARTER + lane
        score = _best_of(row_ptr, at, vocab, bits, temperature)
        ids = tl.where(score > best, at, ids)
        best = tl.maximum(score, best)
    top = tl.max(best, axis=0)
    # Of equal scores the smallest id.
    winner = tl.min(tl.where(best == top, ids, 2147483647), axis=0)
    tl.store(score_ptr + row * NUM_PARTS + part, top)
    tl.store(id_ptr + row * NUM_PARTS + part, winner)


@triton.jit
def _choose(
    score_ptr: tl.tensor, id_ptr: tl.tensor, out_ptr: tl.tensor, NUM_PARTS: tl.tensor, WIDTH: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDTH)
    score = tl.load(score_ptr + row * NUM_PARTS + part, mask=part < NUM_PARTS, other=float("-inf"))
    ids = tl.load(id_ptr + row * NUM_PARTS + part, mask=part < NUM_PARTS, other=2147483647)
    top = tl.max(score, axis=0)
    winner = tl.min(tl.where(score == top, ids, 2147483647), axis=0)
    is_finite = (top < float("inf")) & (top > float("-inf"))
    tl.store(out_ptr + row, tl.where(is_finite, winner, -1).to(tl.int64))


def gumbel_sample(logits: Tensor, temperatures: Tensor, sample_keys: Tensor) -> Tensor:
    """Choose an id for each row: logits [R, vocab], temperatures [R] float32, sample_keys [R] int64 -> [R] int64.

    Temperature 0: the first maximum. A row with NaN or +inf, or of -inf alone, gives -1.
    """
    check_rows("logits", logits)
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, _WIDTH)
    scores = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        _scan[(rows, parts)](
            logits, temperatures, sample_keys, scores, ids, logits.stride(0), vocab, parts, WIDTH=_WIDTH, num_warps=4
        )
        _choose[(rows,)](scores, ids, out, parts, WIDTH=power_of_2(parts, 16), num_warps=1)
    return out
