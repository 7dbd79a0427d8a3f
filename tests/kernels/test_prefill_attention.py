"""Rows with many queries: tiles of tokens, cached context, tiles of keys that the causal edge crosses."""

from __future__ import annotations

import random

import pytest
import torch

from nvexplore.backends.kernels.prefill_attention import prefill_attention, tile_shape
from tests.kernels.attention_cases import SCALE, PagedCase, paged_case
from tests.kernels.places import Place, trapped_memory


def prefill(case: PagedCase, rows: list[int]) -> torch.Tensor:
    """Attend for ``rows``, tile after tile in random order; all else in the output is a sentinel."""
    place, group = case.place, case.q.shape[1] // case.k_cache.shape[2]
    size = tile_shape(place.dtype.itemsize, case.q.shape[2]).tokens(group)
    tiles = [(row, first) for row in rows for first in range(0, case.counts[row], size)]
    random.Random(0).shuffle(tiles)
    out = case.sentinels()
    with trapped_memory():
        prefill_attention(
            case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, case.cu_seqlens_q, SCALE,
            tile_rows=place.ints([row for row, _ in tiles]), tile_firsts=place.ints([first for _, first in tiles]),
            out=out,
        )  # fmt: skip
    return out


@pytest.mark.parametrize(
    ("head_dim", "heads", "block_size"),
    [
        (16, (2, 2), 1),
        (64, (3, 1), 4),
        (80, (4, 1), 16),
        (128, (8, 1), 16),
        (16, (40, 1), 4),
        (80, (2, 2), 3),
    ],
)
def test_chunks_with_and_without_cached_context(
    head_dim: int, heads: tuple[int, int], block_size: int, kv_place: Place
) -> None:
    """Rows of a whole tile of tokens, of one more and one less, whose cached context ends around a block's end."""
    tile = min(16, tile_shape(kv_place.dtype.itemsize, head_dim).tokens(heads[0] // heads[1]))
    rows = [
        (max(tile - 1, 1), max(tile - 1, 1)),  # a prompt
        (block_size + tile, tile),
        (2 * block_size - 1 + tile + 1, tile + 1),
        (2 * block_size + 1 + 2, 2),
    ]
    case = paged_case(kv_place, rows, heads=heads, head_dim=head_dim, block_size=block_size)
    case.check(prefill(case, [0, 1, 2, 3]))


@pytest.mark.parametrize("cached", [0, 1, 15, 16, 17, 63, 64, 65])
def test_more_tokens_than_a_tile_and_every_place_of_the_edge(cached: int, kv_place: Place) -> None:
    """The keys before a tile's first token need no mask, in whole tiles: the edge is where that could go wrong."""
    shape = tile_shape(kv_place.dtype.itemsize, 64)
    count = 2 * shape.tokens(3) + 1
    case = paged_case(kv_place, [(cached + count, count)], heads=(3, 1), head_dim=64, block_size=4)
    case.check(prefill(case, [0]))


def test_large_blocks(kv_place: Place) -> None:
    rows = [(255, 3), (256, 2), (257, 3)]
    case = paged_case(kv_place, rows, heads=(2, 1), head_dim=16, block_size=256)
    case.check(prefill(case, [0, 1, 2]))


def test_other_rows_of_the_batch_are_neither_read_nor_written(kv_place: Place) -> None:
    """A batch with decode rows and rows of padding, which other kernels serve."""
    case = paged_case(kv_place, [(6, 1), (9, 3), (0, 1), (20, 7), (5, 5)], heads=(4, 2), head_dim=16, block_size=4)
    for row in (0, 2, 3):
        case.q[case.tokens(row)] = torch.nan
    case.check(prefill(case, [4, 1]), [1, 4])


def test_a_prompt_of_one_token(kv_place: Place) -> None:
    case = paged_case(kv_place, [(1, 1), (3, 1)], heads=(6, 2), head_dim=80, block_size=4)
    case.check(prefill(case, [0, 1]))


def test_a_token_does_not_see_those_after_it(kv_place: Place) -> None:
    """The row's last keys and values become others: only the tokens from there on notice."""
    case = paged_case(kv_place, [(12, 8)], heads=(2, 1), head_dim=16, block_size=4)
    before = prefill(case, [0])
    block, offset = int(case.block_tables[0, 2]), 10 % 4
    case.k_cache[block, offset:] = 400.0
    case.v_cache[block, offset:] = 400.0
    after = prefill(case, [0])
    assert torch.equal(after[:6], before[:6])
    assert not torch.equal(after[6:], before[6:])


def test_no_tiles(kv_place: Place) -> None:
    case = paged_case(kv_place, [(6, 2)], heads=(2, 1), head_dim=16, block_size=4)
    case.check(prefill(case, []), [])


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("item_size", [2, 4])
def test_a_tile_takes_whole_tokens(item_size: int, head_dim: int) -> None:
    shape = tile_shape(item_size, head_dim)
    assert [shape.tokens(group) >= 1 for group in (1, 3, 40, 500)] == [True] * 4
    assert all(shape.tokens(group) * group <= max(shape.scores, group) for group in (1, 3, 4, 8, 40, 500))
