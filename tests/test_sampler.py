"""Which token a row of logits gives: greedy, draws, hostile numbers, independence of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from nvexplore.layers.sampler import sample, uniforms_of
from nvexplore.runner.sample_keys import sample_key

JUST_BELOW_ONE = 1 - 2.0**-53


def pick(logits: list[list[float]] | Tensor, temperatures: list[float], uniforms: list[float]) -> list[int]:
    ids: list[int] = sample(
        torch.as_tensor(logits, dtype=torch.float32),
        torch.tensor(temperatures),
        torch.tensor(uniforms, dtype=torch.float64),
    ).tolist()
    return ids


def test_n21_zero_is_the_first_maximum_of_the_raw_logits() -> None:
    assert pick([[1, 3, 2]], [0], [math.nan]) == [1]  # the uniform number is not used
    assert pick([[1, 3, 3, 2, 3]], [0], [0.9]) == [1]
    assert pick([[-math.inf, -5, -math.inf, -5]], [0], [0.9]) == [1]


@pytest.mark.parametrize("size", [2, 7, 16, 33, 1000, 151936])
def test_first_maximum_on_ties_at_any_width(size: int) -> None:
    for first in {0, 1, size // 3, size // 2, size - 2}:
        logits = torch.zeros(3, size)
        logits[:, first:] = 1.0
        assert pick(logits, [0, 0, 0], [0, 0, 0]) == [first] * 3


def test_n21_mixed_temperatures_leave_each_other_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 1003) * 3
    temperatures, uniforms = [0.0, 0.7, 0.0, 1e-11], [0.1, 0.2, 0.3, 0.4]
    together = pick(logits, temperatures, uniforms)
    alone = [pick(logits[i : i + 1], [t], [u])[0] for i, (t, u) in enumerate(zip(temperatures, uniforms, strict=True))]
    assert together == alone
    assert together[0] == int(logits[0].argmax())
    assert together[2] == int(logits[2].argmax())
    assert together[3] == int(logits[3].argmax())  # so cold that only the maximum is left


def test_draws_of_a_row_do_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(32, 5001, generator=generator) * 2
    uniforms = torch.rand(32, generator=generator, dtype=torch.float64).tolist()
    together = pick(logits, [0.8] * 32, uniforms)
    assert together == [pick(logits[i : i + 1], [0.8], [uniforms[i]])[0] for i in range(32)]
    order = list(range(31, -1, -1))
    assert pick(logits[order], [0.8] * 32, [uniforms[i] for i in order]) == together[::-1]


@pytest.mark.parametrize("temperature", [1e-11, 1e-38, 1e-45, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("uniform", [0.0, 0.5, JUST_BELOW_ONE])
def test_n24_hostile_draws_give_a_token_that_has_probability(temperature: float, uniform: float) -> None:
    """The likely token first, last and in the middle, with tokens of probability 0 around it."""
    for row in ([50.0, -1e4, -math.inf], [-math.inf, 50.0, -1e4], [-math.inf, -math.inf, 50.0]):
        assert pick([row], [min(temperature, 100.0)], [uniform]) == [row.index(50.0)]
    (token,) = pick([[-math.inf, 1.0, -math.inf, 1.0, -math.inf]], [temperature], [uniform])
    # Equal logits: half of the unit interval each; a temperature that is 0 in float32 is greedy.
    assert token == (1 if uniform == 0.0 or float(np.float32(temperature)) == 0 else 3)


def test_the_end_of_the_sum_is_never_passed() -> None:
    torch.manual_seed(0)
    logits = torch.randn(8, 151936) - 5
    logits[:, -1000:] = -math.inf
    for uniform in (1.0, JUST_BELOW_ONE, 0.0):
        for token in pick(logits, [1.0] * 8, [uniform] * 8):
            assert 0 <= token < 150936


def test_draws_follow_the_softmax() -> None:
    """200,000 draws: chi-square of 7 degrees of freedom below its 1e-6 quantile, for three temperatures."""
    logits = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.0, -math.inf, 3.0, -0.5, 0.1])
    count = 200_000
    keys = torch.tensor([sample_key(0, 1, position) for position in range(count)])
    for temperature in (0.5, 1.0, 2.0):
        ids = sample(logits.expand(count, -1), torch.full((count,), temperature), uniforms_of(keys))
        seen = torch.bincount(ids, minlength=9).double()
        expected = count * torch.softmax(logits.double() / temperature, dim=0)
        assert seen[5] == 0
        kept = expected > 0
        chi_square = ((seen - expected)[kept] ** 2 / expected[kept]).sum()
        assert chi_square < 40.5


def test_a_flat_vocabulary_is_drawn_without_bias() -> None:
    """151,936 equal tokens: float32 sums put each of 2,000 draws within one token of where exact sums would."""
    size = 151936
    uniforms = uniforms_of(torch.tensor([sample_key(3, 0, position) for position in range(2000)]))
    logits = torch.zeros(100, size)
    ids = torch.cat([sample(logits, torch.ones(100), part) for part in uniforms.split(100)])
    assert (ids - (uniforms * size).long()).abs().max() <= 1


def test_uniform_numbers_come_from_the_upper_bits() -> None:
    keys = torch.tensor([0, -1, -(2**63), 2**63 - 1, 1 << 11])
    uniforms = uniforms_of(keys)
    assert uniforms.dtype == torch.float64
    assert uniforms.tolist() == [0.0, JUST_BELOW_ONE, 0.5, 0.5 - 2.0**-53, 2.0**-53]
    many = uniforms_of(torch.tensor([sample_key(0, seq, 9) for seq in range(20_000)]))
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(float(many.mean()) - 0.5) < 0.01
    counts = torch.histc(many.float(), bins=20, min=0, max=1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 60


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 500, 1002])
def test_a_broken_row_is_marked_and_the_others_are_not(bad: float, temperature: float, where: int) -> None:
    torch.manual_seed(2)
    logits = torch.randn(3, 1003)
    healthy = pick(logits, [temperature] * 3, [0.3] * 3)
    logits[1, where] = bad
    assert pick(logits, [temperature] * 3, [0.3] * 3) == [healthy[0], -1, healthy[2]]


def test_a_row_without_any_token_is_marked() -> None:
    assert pick([[-math.inf] * 4, [0, 1, 0, 0]], [1.0, 0.0], [0.5, 0.5]) == [-1, 1]


def test_sampling_uses_no_random_state_and_keeps_the_logits() -> None:
    logits = torch.randn(4, 100)
    kept, state = logits.clone(), torch.get_rng_state()
    pick(logits, [0.0, 1.0, 1.0, 0.5], [0.1, 0.2, 0.3, 0.4])
    assert torch.equal(logits, kept)
    assert torch.equal(torch.get_rng_state(), state)
