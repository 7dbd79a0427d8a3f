"""Rows that begin in this step, straight from the projection: tiles, edges, neighbours, and who is sent there."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.kernels.fresh_attention import fresh_attention, fresh_tile_shape
from nvexplore.runner.forward_batch import build_forward_batch
from tests.kernels import backends
from tests.kernels.attention_cases import SCALE, SENTINEL, plain_attention
from tests.kernels.places import Place, assert_near, trapped_memory


def attend(place: Place, qkv: Tensor, counts: list[int], heads: tuple[int, int], rows: list[int]) -> Tensor:
    """Attention of ``rows``, tile after tile in random order; all else in the output is a sentinel."""
    q = qkv.view(qkv.shape[0], heads[0] + 2 * heads[1], -1)[:, : heads[0]].contiguous()
    size = fresh_tile_shape().tokens(heads[0] // heads[1])
    tiles = [(row, first) for row in rows for first in range(0, counts[row], size)]
    random.Random(0).shuffle(tiles)
    out = torch.full_like(q, SENTINEL)
    with trapped_memory():
        fresh_attention(
            q, qkv, place.ints([0, *accumulate(counts)]), SCALE,
            tile_rows=place.ints([row for row, _ in tiles]), tile_firsts=place.ints([first for _, first in tiles]),
            out=out,
        )  # fmt: skip
    return out


def check(out: Tensor, qkv: Tensor, counts: list[int], heads: tuple[int, int], rows: list[int]) -> None:
    starts = [0, *accumulate(counts)]
    packed = qkv.view(qkv.shape[0], heads[0] + 2 * heads[1], -1)
    for row in range(len(counts)):
        part = slice(starts[row], starts[row + 1])
        if row in rows:
            q, keys, values = torch.split(packed[part], [heads[0], heads[1], heads[1]], dim=1)
            assert_near(out[part], plain_attention, q, keys, values)
        else:
            assert (out[part] == SENTINEL).all(), f"row {row} was written"


@pytest.mark.parametrize(("head_dim", "heads"), [(16, (2, 2)), (64, (3, 1)), (128, (4, 2)), (32, (40, 1))])
def test_prompts_around_a_tile_and_around_a_tile_of_keys(head_dim: int, heads: tuple[int, int], half: Place) -> None:
    """Query heads that share a KV head: one, three, two, and more than a tile has rows."""
    tile, keys = fresh_tile_shape().tokens(heads[0] // heads[1]), fresh_tile_shape().keys
    counts = [2, tile + 1, keys - 1, keys, keys + 1, 2 * tile]
    qkv = half.randn(sum(counts), (heads[0] + 2 * heads[1]) * head_dim)
    rows = list(range(len(counts)))
    check(attend(half, qkv, counts, heads, rows), qkv, counts, heads, rows)


def test_a_neighbour_of_nothing_but_nan_is_neither_seen_nor_written(half: Place) -> None:
    """Tiles of keys reach into the next row, and behind the last one there is no memory of theirs."""
    counts, heads = [5, 3, 21, 4], (2, 1)
    whole = half.nans(sum(counts) + 8, 4 * 16)
    whole[: sum(counts)] = half.randn(sum(counts), 4 * 16)
    qkv = whole[: sum(counts)]
    qkv[5:8] = torch.nan
    check(attend(half, qkv, counts, heads, [0, 2, 3]), qkv, counts, heads, [0, 2, 3])


def test_long_prompts(half: Place) -> None:
    counts, heads = [3 * fresh_tile_shape().tokens(2) + 5, 2 * fresh_tile_shape().keys], (4, 2)
    qkv = half.randn(sum(counts), 8 * 64, scale=3.0)
    check(attend(half, qkv, counts, heads, [1, 0]), qkv, counts, heads, [0, 1])


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 16), (torch.bfloat16, 80)])
def test_what_the_kernel_is_not_made_for(dtype: torch.dtype, head_dim: int, device: torch.device) -> None:
    place = Place(device, dtype)
    with pytest.raises(ValueError, match=rf"{dtype} with head_dim {head_dim}"):
        attend(place, place.randn(2, 3 * head_dim), [2], (1, 1), [0])


def test_a_layer_gives_the_same_with_and_without(half: Place) -> None:
    """One batch with all kinds of rows: begun before, new, new of one token, decoding; the pool has the same keys."""
    layer = backends.attention_layer("Qwen3ForCausalLM", (4, 2), 16, half)
    batch = backends.rows((0, 37), (9, 20), (0, 1), (30, 1), (0, 16), block_size=4, num_blocks=40)
    qkv, pool = half.randn(75, 8 * 16), half.randn(2, 40, 4, 2, 16)
    found = []
    for has_tma in (True, False):
        backend = backends.gpu_backend(half)
        backend._attention = TritonPagedAttention(backends.PROCESSORS, has_tma=has_tma)
        layer.k_cache, layer.v_cache = pool.clone()
        begun = backend.begin(build_forward_batch(batch, 4))
        given = qkv.clone()
        q = backend.qk_norm_rope_store(given, layer, begun)
        assert torch.equal(given, qkv) is not has_tma  # its keys have been rotated in place
        found.append(backend.attention(q, layer, begun))
        assert begun.plan.projection is None
    backends.near(found[0], found[1].cpu(), half.dtype)


def test_a_pool_of_fewer_bits_is_always_read(half: Place) -> None:
    """What is attended to must not depend on which step a token was computed in."""
    host = build_forward_batch(backends.rows((0, 5), block_size=4, num_blocks=4), 4)
    attention = TritonPagedAttention(2, has_tma=True)
    qkv = half.randn(5, 4 * 16)
    for dtype, taken in ((half.dtype, True), (torch.float8_e4m3fn, False)):
        plan = attention.plan(host, host.to(half.device))
        assert attention.offer(qkv, torch.empty(4, 4, 1, 16, dtype=dtype), plan) is taken


def test_steps_without_new_prompts_read_the_pool(half: Place) -> None:
    attention = TritonPagedAttention(2, has_tma=True)
    for rows in ([(3, 5)], [(0, 1)], [(4, 1), (0, 1)]):
        host = build_forward_batch(backends.rows(*rows, block_size=4, num_blocks=8), 4)
        plan = attention.plan(host, host.to(half.device))
        assert not attention.offer(half.randn(host.num_tokens, 4 * 16), half.pool(8, 4, 1, 16), plan)
