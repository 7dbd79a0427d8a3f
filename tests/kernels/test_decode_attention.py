"""Rows with one query each: contexts of every awkward length, keys split over programs, some rows of a batch."""

from __future__ import annotations

import pytest
import torch

from nvexplore.backends.kernels.decode_attention import MAX_SPLITS, decode_attention, num_splits
from tests.kernels.attention_cases import SCALE, PagedCase, paged_case
from tests.kernels.places import Place, trapped_memory


def decode(case: PagedCase, *, splits: int = 1) -> torch.Tensor:
    with trapped_memory():
        return decode_attention(
            case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, SCALE, splits=splits
        )


@pytest.mark.parametrize(
    ("head_dim", "heads", "block_size"),
    [
        (16, (2, 2), 1),
        (64, (3, 1), 4),
        (80, (4, 1), 16),
        (128, (8, 1), 16),
        (64, (9, 3), 1),
        (16, (40, 1), 4),
        (80, (2, 2), 3),
    ],
)
def test_contexts_around_the_end_of_a_block(
    head_dim: int, heads: tuple[int, int], block_size: int, kv_place: Place
) -> None:
    """V24: among them rows of padding, whose context is 0 and whose block is none."""
    contexts = sorted({0, 1, 2 * block_size - 1, 2 * block_size, 2 * block_size + 1, 33})
    case = paged_case(
        kv_place, [(context, 1) for context in contexts], heads=heads, head_dim=head_dim, block_size=block_size
    )
    case.check(decode(case))


def test_large_blocks_and_several_tiles_of_keys(kv_place: Place) -> None:
    rows = [(context, 1) for context in (255, 256, 257, 0, 129, 127, 128)]
    case = paged_case(kv_place, rows, heads=(3, 1), head_dim=64, block_size=256)
    case.check(decode(case))


@pytest.mark.parametrize("splits", [1, 2, 4, 8, MAX_SPLITS])
def test_splits_change_nothing(splits: int, kv_place: Place) -> None:
    """One program more or less than the keys are worth, an empty last part, rows of padding: none waits for others."""
    least = 32 if kv_place.device.type == "cpu" else 256 if splits <= 4 else 128
    contexts = [1, 0, least, least + 1, 3 * least + 5, 4 * least]
    case = paged_case(kv_place, [(context, 1) for context in contexts], heads=(3, 1), head_dim=80, block_size=4)
    case.check(decode(case, splits=splits))


def test_programs_that_share_a_row_count_from_zero_again(kv_place: Place) -> None:
    """One buffer for all launches, longer than it must be."""
    least = 32 if kv_place.device.type == "cpu" else 256
    case = paged_case(kv_place, [(5 * least, 1), (7, 1), (2 * least, 1)], heads=(4, 2), head_dim=16, block_size=16)
    ended = kv_place.ints([0] * 9)
    given = case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, SCALE
    first = decode_attention(*given, splits=4, ended=ended)
    case.check(first)
    for _ in range(20 if kv_place.device.type == "cuda" else 1):
        assert not ended.any()
        assert torch.equal(decode_attention(*given, splits=4, ended=ended), first)  # whoever came last


@pytest.mark.parametrize("splits", [1, 4])
def test_a_part_of_a_batch(splits: int, kv_place: Place) -> None:
    """Rows 3 and 0 of a batch, in that order: nobody reads other queries, nobody writes other outputs."""
    case = paged_case(kv_place, [(6, 1), (9, 3), (4, 2), (70, 1), (5, 1)], heads=(4, 2), head_dim=16, block_size=4)
    chosen = [3, 0]
    tokens = [case.starts[row] for row in chosen]
    others = [token for token in range(case.q.shape[0]) if token not in tokens]
    case.q[others] = torch.nan
    out = case.sentinels()
    with trapped_memory():
        decode_attention(
            case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, SCALE,
            splits=splits, rows=kv_place.ints(chosen), tokens=kv_place.ints(tokens), out=out,
        )  # fmt: skip
    case.check(out, chosen)


@pytest.mark.parametrize("splits", [1, 4])
def test_scores_far_from_zero(splits: int, kv_place: Place) -> None:
    """One key outweighs all others, wherever it is; and all scores of a row are far below 0."""
    case = paged_case(kv_place, [(70, 1), (35, 1), (2, 1)], heads=(2, 1), head_dim=64, block_size=4, scale=50.0)
    out = decode(case, splits=splits).double().cpu()
    for row, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        scores = torch.einsum("hd,sd->hs", case.q[row].double().cpu(), keys[:, 0].double().cpu()) * SCALE
        expected = scores.softmax(dim=-1) @ values[:, 0].double().cpu()
        # The weights are those of scores up to some thousand: their rounding shows in the exponent.
        torch.testing.assert_close(out[row], expected, rtol=0, atol=0.02)
    low = paged_case(kv_place, [(40, 1)], heads=(2, 1), head_dim=16, block_size=4)
    low.k_cache.copy_(low.k_cache.float().clamp(60.0, 60.0))  # NaN stays NaN
    low.q.fill_(-60.0)
    low.keys[0].fill_(60.0)  # all keys alike: the result is the mean of the values
    torch.testing.assert_close(
        decode(low, splits=splits)[0].float().cpu(),
        low.values[0].float().cpu().mean(dim=0).expand(2, -1),
        rtol=0,
        atol=5e-3,
    )


def test_no_rows(kv_place: Place) -> None:
    case = paged_case(kv_place, [(4, 1)], heads=(2, 1), head_dim=16, block_size=4)
    none, out = kv_place.ints([]), case.sentinels()
    given = case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, SCALE
    assert decode_attention(*given, splits=2, rows=none, tokens=none, out=out) is out
    case.check(out, [])


def test_a_row_of_nan_spoils_no_other(kv_place: Place) -> None:
    case = paged_case(kv_place, [(5, 1), (6, 1), (40, 1)], heads=(4, 2), head_dim=16, block_size=4)
    healthy = decode(case, splits=2)
    case.q[1] = torch.nan
    found = decode(case, splits=2)
    assert torch.equal(found[[0, 2]], healthy[[0, 2]])
    assert found[1].isnan().all()


def test_splits_fill_the_processors_and_are_a_power_of_two() -> None:
    """For 8 KV heads on 132 processors: as short rows can be, the sooner none is split."""

    def picks(longest: int) -> list[int]:
        return [num_splits(rows, 8, 132, longest) for rows in (1, 4, 8, 9, 49, 50, 98, 99, 197, 198, 256)]

    assert picks(32_768) == [16, 16, 8, 4, 4, 4, 4, 2, 2, 1, 1]
    assert picks(16_384) == [16, 16, 8, 4, 4, 4, 4, 1, 1, 1, 1]
    assert picks(2048) == [16, 16, 8, 4, 4, 1, 1, 1, 1, 1, 1]
    assert num_splits(1, 1, 10_000, 100_000) == MAX_SPLITS
    assert num_splits(1, 1, 1, 100_000) == 4
