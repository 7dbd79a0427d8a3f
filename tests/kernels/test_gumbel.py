"""The sampler: greedy and its ties, hostile numbers, independence of rows, and draws that follow the softmax.

The interpreter takes its time for a row, so that many cases are rows of one batch here.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from nvexplore.backends.kernels.gumbel import gumbel_sample
from nvexplore.runner.sample_keys import sample_key
from tests.kernels.places import Place, trapped_memory

PART = 4096  # tokens that a program of the kernel looks at, in quarters


@pytest.fixture
def single(device: torch.device) -> Place:
    return Place(device, torch.float32)


def pick(logits: Tensor, temperatures: list[float], keys: list[int] | None = None) -> list[int]:
    device, rows = logits.device, logits.shape[0]
    keys = [sample_key(7, row, 1) for row in range(rows)] if keys is None else keys
    given = torch.tensor(temperatures).to(device), torch.tensor(keys, dtype=torch.int64).to(device)
    kept = logits.clone()
    with trapped_memory():
        ids = gumbel_sample(logits, *given)
    assert ids.dtype == torch.int64 and ids.shape == (rows,)
    torch.testing.assert_close(logits, kept, rtol=0, atol=0, equal_nan=True)
    found: list[int] = ids.tolist()
    return found


@pytest.mark.parametrize("vocab", [1, 1000, PART, PART + 1, 2 * PART + 100])
def test_greedy_is_the_maximum(vocab: int, place: Place) -> None:
    """Rows lie apart, and between them is NaN."""
    logits = place.strided_rows(2, vocab, gap=PART, scale=4.0)
    assert pick(logits, [0.0] * 2) == logits.float().cpu().argmax(dim=-1).tolist()


def test_of_equal_logits_the_smallest_id(single: Place) -> None:
    ties = [
        [0, 1],
        [1023, 1024],  # the last of a quarter and the first of the next
        [1, 1024, 2048, 3072],  # further back in its own quarter
        [1500, 2048, 3073],
        [PART - 1, PART],  # in two parts
        [5, PART + 4],
        [PART + 7, PART + 1090],
    ]
    logits = single.randn(len(ties), PART + 1100).clamp(-3, 3)
    for row, ids in enumerate(ties):
        logits[row, ids] = 5.0
    assert pick(logits, [0.0] * len(ties)) == [ids[0] for ids in ties]
    logits = torch.full((4, PART + 1100), -2.0, device=single.device)
    firsts = [0, 1500, PART - 1, PART]
    for row, first in enumerate(firsts):
        logits[row, :first] = -math.inf
    assert pick(logits, [0.0] * 4) == firsts


def test_a_broken_row_is_marked_and_the_others_are_not(place: Place) -> None:
    """NaN or +inf anywhere, at a temperature and without; and rows that have no token at all."""
    broken = [(where, bad) for where in (0, 1500, PART - 1, PART, 4999) for bad in (math.nan, math.inf)]
    logits = place.randn(2 + len(broken) + 2, 5000)
    rows = len(logits)
    temperatures = [float(row % 2) for row in range(rows)]
    healthy = pick(logits[:2].clone(), temperatures[:2]) if place.dtype is torch.float32 else None
    for row, (where, bad) in enumerate(broken, start=2):
        logits[row, where] = bad
    logits[-2:] = -math.inf
    found = pick(logits, temperatures)
    assert found[2:] == [-1] * (rows - 2)
    assert min(found[:2]) >= 0 and (healthy is None or found[:2] == healthy)


def test_a_token_without_probability_is_never_drawn(single: Place) -> None:
    """However hot: only two of 2,000 have any, and over some keys both are drawn at every temperature."""
    temperatures = [0.5, 100.0, 1e30, 3e38]
    logits = torch.full((8 * len(temperatures), 2000), -math.inf, device=single.device)
    logits[:, [17, 1500]] = -8.0
    found = pick(logits, [t for t in temperatures for _ in range(8)])
    assert [set(found[8 * i : 8 * i + 8]) for i in range(len(temperatures))] == [{17, 1500}] * len(temperatures)


def test_next_to_no_temperature_is_greedy(place: Place) -> None:
    cold = [0.0, 1e-30, 1e-38, 1e-45, 1e-10]
    logits = place.randn(1, 1003, scale=3.0).repeat(2 * len(cold), 1)
    # Logits as large as the format has leave no room for noise, and do not overflow.
    logits[len(cold) :, 77] = torch.finfo(place.dtype).max
    greedy = int(logits[0].float().cpu().argmax())
    assert pick(logits, [*cold, *cold[:-1], 100.0]) == [greedy] * len(cold) + [77] * len(cold)


def test_a_draw_depends_on_its_logits_its_temperature_and_its_key_alone(single: Place) -> None:
    logits, temperatures = single.randn(5, 4500, scale=2.0), [0.7, 0.0, 1.0, 1.5, 0.7]
    keys = [sample_key(3, row, 9) for row in range(5)]
    together = pick(logits, temperatures, keys)
    order = [4, 2, 1, 0, 3]
    moved = pick(logits[order], [temperatures[i] for i in order], [keys[i] for i in order])
    assert moved == [together[i] for i in order]
    assert pick(logits[3:4].clone(), temperatures[3:4], keys[3:4]) == together[3:4]


def test_all_bits_of_a_key_count(single: Place) -> None:
    keys = [5, 5 + (1 << 32), 6, -5, 5]
    found = pick(torch.zeros(5, 4500, device=single.device), [1.0] * 5, keys)
    assert found[0] == found[4]
    assert len(set(found)) == 4


@cache
def draws(device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids drawn at positions that follow one another, and the probabilities they should have."""
    count, temperature = 20_000 if device.type == "cuda" else 60, 1.3
    logits = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.0, -math.inf, 3.0, -0.5, 0.1], device=device)
    keys = torch.tensor([sample_key(0, 1, position) for position in range(count)], device=device)
    ids = gumbel_sample(logits.repeat(count, 1), torch.full((count,), temperature, device=device), keys)
    return ids.cpu(), torch.softmax(logits.cpu().double() / temperature, dim=0)


def test_draws_follow_the_softmax(device: torch.device) -> None:
    """Chi-square of 7 degrees of freedom below its 1e-6 quantile. Keys are fixed: it passes always or never."""
    ids, probabilities = draws(device)
    seen, expected = torch.bincount(ids, minlength=9).double(), probabilities * len(ids)
    assert seen[5] == 0
    kept = expected > 0
    assert ((seen - expected)[kept] ** 2 / expected[kept]).sum() < 40.5


def test_draws_at_neighbouring_positions_have_nothing_in_common(device: torch.device) -> None:
    ids, probabilities = draws(device)
    count = len(ids) - 1
    assert abs(float(torch.corrcoef(torch.stack((ids[:-1], ids[1:])).double())[0, 1])) < 4.5 / count**0.5
    is_equal = float((ids[:-1] == ids[1:]).double().mean())
    assert abs(is_equal - float(probabilities.square().sum())) < 4.5 * 0.5 / count**0.5


def test_the_noise_of_keys_and_tokens_is_exponential_and_independent(device: torch.device) -> None:
    """8 keys of neighbouring positions, 4,096 tokens each: Kolmogorov-Smirnov below its 1e-6 quantile."""
    from tests.kernels.exponential import noise_of

    keys = torch.tensor([sample_key(0, 2, position) for position in range(8)], device=device)
    out = torch.full((8 * 4, 1024), torch.nan, device=device)
    noise_of[(8,)](keys, out, SIZE=1024)
    noise = out.double().cpu()
    correlations = torch.corrcoef(noise) - torch.eye(32, dtype=torch.float64)
    assert correlations.abs().max() < 5.5 / 1024**0.5  # the greatest of 496
    assert torch.corrcoef(torch.stack((noise[:, :-1].flatten(), noise[:, 1:].flatten())))[0, 1].abs() < 5 / 32768**0.5
    shares = 1 - torch.exp(-noise.flatten().sort().values)
    distance = (shares - (torch.arange(32768, dtype=torch.float64) + 0.5) / 32768).abs().max()
    assert distance < 2.7 / 32768**0.5


def test_the_noise_is_never_zero_and_never_infinite(device: torch.device) -> None:
    """-log(1 - r) at r = (bits + 1/2) / 2**32, from the smallest to the largest bits."""
    from tests.kernels.exponential import exponential_of

    bits = [0, 1, 2, 1000, 42_949_670, 42_949_680, 1 << 31, (1 << 31) - 1, 3 << 30, 2**32 - 257, 2**32 - 2, 2**32 - 1]
    bits += [7 * 2**20 + i * 2**28 for i in range(16 - len(bits))]
    signed = torch.tensor([b - (1 << 32) if b >> 31 else b for b in bits], dtype=torch.int32, device=device)
    out = torch.full((16,), torch.nan, device=device)
    exponential_of[(1,)](signed, out, SIZE=16)
    found = out.cpu().double()
    assert found.isfinite().all() and (found > 0).all()
    expected = torch.tensor([-math.log1p(-(b + 0.5) / 2**32) for b in bits], dtype=torch.float64)
    ordinary = expected < 12  # above, float32 has too few numbers below 1 to tell r from 1
    torch.testing.assert_close(found[ordinary], expected[ordinary], rtol=1e-5, atol=0)
    assert (found[~ordinary] > 12).all() and int((~ordinary).sum()) == 3


def test_no_rows(single: Place) -> None:
    assert pick(single.randn(0, 100), []) == []


def test_logits_that_do_not_lie_side_by_side_are_refused(single: Place) -> None:
    with pytest.raises(ValueError, match="logits: the last dimension"):
        pick(single.randn(8, 3).t(), [0.0] * 3)
