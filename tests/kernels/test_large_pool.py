"""A pool of more than 2**31 elements: offsets are computed in 64 bits though slots have 32. GPU only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nvexplore.backends.kernels.decode_attention import decode_attention
from nvexplore.backends.kernels.prefill_attention import prefill_attention
from nvexplore.backends.kernels.qk_norm_rope_store import qk_norm_rope_store
from nvexplore.backends.kernels.store_kv import store_kv
from tests.kernels.attention_cases import SCALE, plain_attention
from tests.kernels.places import Place, assert_near

BLOCK_SIZE, KV_HEADS, HEAD_DIM = 256, 8, 128
NUM_BLOCKS = 2**31 // (BLOCK_SIZE * KV_HEADS * HEAD_DIM) + 8

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[None, torch.float8_e4m3fn], ids=["float16", "fp8"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(torch.device("cuda", 0), torch.float16, request.param)


@pytest.fixture
def caches(place: Place) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys and values, about 4.3 GB each, or half of it; what they hold is not looked at."""
    if torch.cuda.mem_get_info(place.device)[0] < 11 << 30:
        pytest.skip("needs 11 GB of free GPU memory")
    shape = NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM
    yield tuple(torch.empty(shape, dtype=place.kv_dtype, device=place.device) for _ in range(2))
    torch.cuda.empty_cache()


def test_the_far_end_of_a_large_pool(caches: tuple[Tensor, Tensor], place: Place) -> None:
    """What is written to the last blocks is found there, by the stores and by both kinds of attention."""
    k_cache, v_cache = caches
    assert k_cache.numel() > 2**31
    blocks = [NUM_BLOCKS - 1, 0, NUM_BLOCKS - 3]  # of one sequence, in this order
    context = 2 * BLOCK_SIZE + 5
    positions = torch.arange(context)
    slots = (torch.tensor(blocks)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE).int()
    keys, values = (place.kept(place.randn(context, KV_HEADS, HEAD_DIM)) for _ in range(2))
    store_kv(keys, values, k_cache, v_cache, slots.to(place.device))
    for block, first in zip(blocks, range(0, context, BLOCK_SIZE), strict=True):
        end = min(context, first + BLOCK_SIZE)
        assert torch.equal(k_cache[block, : end - first].to(place.dtype), keys[first:end])
        assert torch.equal(v_cache[block, : end - first].to(place.dtype), values[first:end])

    tables, contexts = place.ints([blocks]), place.ints([context])
    q = place.randn(2, KV_HEADS, HEAD_DIM)
    out = torch.empty_like(q)
    prefill_attention(
        q, k_cache, v_cache, tables, contexts, place.ints([0, 2]), SCALE,
        tile_rows=place.ints([0]), tile_firsts=place.ints([0]), out=out,
    )  # fmt: skip
    assert_near(out, plain_attention, q, keys, values)
    for splits in (1, 4):
        found = decode_attention(q[1:].contiguous(), k_cache, v_cache, tables, contexts, SCALE, splits=splits)
        assert_near(found, plain_attention, q[1:], keys, values)

    last = NUM_BLOCKS * BLOCK_SIZE - 1
    qkv = place.kept(place.randn(1, 3 * KV_HEADS * HEAD_DIM))
    angles = torch.cat((torch.ones(1, HEAD_DIM // 2), torch.zeros(1, HEAD_DIM // 2)), dim=1).to(place.device)
    qk_norm_rope_store(qkv, k_cache, v_cache, place.ints([last]), place.ints([0]), angles)
    _, k, v = qkv.view(3, KV_HEADS, HEAD_DIM)
    assert torch.equal(k_cache[-1, -1].to(place.dtype), k) and torch.equal(v_cache[-1, -1].to(place.dtype), v)
