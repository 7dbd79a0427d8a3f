"""Keys and values into the pool: the right slots and nothing else, and what norm and rotation make of heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nvexplore.backends.kernels.qk_norm_rope_store import qk_norm_rope_store
from nvexplore.backends.kernels.store_kv import store_kv
from nvexplore.layers.rotary import RotaryTable
from nvexplore.rope_config import RopeConfig
from tests.kernels.places import Place, assert_near, trapped_memory

MAX_POSITIONS = 300
HEADS = [(16, 4, 4), (80, 4, 1), (128, 8, 1), (64, 9, 3)]  # head_dim, heads, KV heads


def pools(place: Place, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values full of NaN: a slot that is written shows."""
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    return place.pool(*shape), place.pool(*shape)


def same(actual: Tensor, expected: Tensor) -> bool:
    actual, expected = actual.float(), expected.float()
    return torch.equal(actual.isnan(), expected.isnan()) and torch.equal(actual.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(("head_dim", "num_kv_heads"), [(16, 2), (80, 1), (64, 3)])
def test_store_writes_the_slots_that_are_named(
    head_dim: int, num_kv_heads: int, block_size: int, kv_place: Place
) -> None:
    """V24: -1 first, last and in the middle stores nothing, least of all in the pool's last slot."""
    num_slots = 3 * 16
    slots = [-1, 5, -1, num_slots - 2, 0, 17, -1]
    caches = pools(kv_place, num_slots // block_size, block_size, num_kv_heads, head_dim)
    k, v = (kv_place.randn(7, num_kv_heads, head_dim) for _ in range(2))
    expected = [cache.clone() for cache in caches]
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[0].view(num_slots, num_kv_heads, head_dim)[slot] = k[token]
            expected[1].view(num_slots, num_kv_heads, head_dim)[slot] = v[token]
    store_kv(k, v, *caches, kv_place.ints(slots))
    assert same(caches[0], expected[0]) and same(caches[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_store_reads_rows_that_lie_apart(dtype: torch.dtype, kv_place: Place) -> None:
    """Keys and values are parts of one projection, whose other parts are NaN here."""
    packed = kv_place.nans(3, 10, 16)
    packed[:, 4:8] = kv_place.randn(3, 4, 16)
    k, v = packed[:, 4:6], packed[:, 6:8]
    caches = pools(kv_place, 4, 4, 2, 16)
    store_kv(k, v, *caches, torch.tensor([15, -1, 2], dtype=dtype, device=kv_place.device))
    for cache, values in zip(caches, (k, v), strict=True):
        written = cache.view(16, 2, 16).to(kv_place.dtype)
        assert torch.equal(written[[15, 2]], kv_place.kept(values[[0, 2]]))
        assert int(written.isfinite().sum()) == 2 * 2 * 16


def test_store_of_no_tokens_and_of_wrong_shapes(place: Place) -> None:
    k_cache, v_cache = pools(place, 4, 4, 2, 16)
    store_kv(place.randn(0, 2, 16), place.randn(0, 2, 16), k_cache, v_cache, place.ints([]))
    assert k_cache.isnan().all() and v_cache.isnan().all()
    k, slots = place.randn(1, 2, 16), place.ints([0])
    with pytest.raises(ValueError, match="keys of 48 values a token, the cache holds 32"):
        store_kv(place.randn(1, 3, 16), place.randn(1, 3, 16), k_cache, v_cache, slots)
    with pytest.raises(ValueError, match=r"v_cache of shape .* not contiguous"):
        store_kv(k, k, k_cache, place.nans(8, 4, 2, 16)[::2], slots)
    with pytest.raises(ValueError, match=r"k: the last dimension"):
        store_kv(place.randn(2, 2, 32)[:, :, ::2], place.randn(2, 2, 16), k_cache, v_cache, place.ints([0, 1]))


def rotated(heads: Tensor, angles: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """heads [T, heads, head_dim], angles [T, head_dim] -> normalised where there is a weight, then turned."""
    if weight is not None:
        heads = heads * (heads.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight
    cos, sin = angles[:, None].chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize(("head_dim", "num_heads", "num_kv_heads"), HEADS)
def test_norm_rotation_and_store(
    head_dim: int, num_heads: int, num_kv_heads: int, has_norm: bool, place: Place
) -> None:
    """V24 again, with rows of the projection that lie apart, and different norms and eps for queries and keys."""
    slots, positions = [3, -1, 22, 0], [0, 0, 299, 131]
    table = RotaryTable(RopeConfig(theta=10000.0), head_dim, MAX_POSITIONS, torch.device("cpu")).cos_sin
    cos_sin = table.to(place.device)
    qkv = place.strided_rows(4, (num_heads + 2 * num_kv_heads) * head_dim, gap=head_dim)
    kept = qkv.clone()
    q_weight, k_weight = (place.rand(head_dim), place.rand(head_dim)) if has_norm else (None, None)
    norms = [None if w is None else (w, eps) for w, eps in ((q_weight, 1e-2), (k_weight, 1e-6))]
    caches = pools(place, 6, 4, num_kv_heads, head_dim)
    with trapped_memory():
        q = qk_norm_rope_store(qkv, *caches, place.ints(slots), place.ints(positions), cos_sin, *norms)
    assert torch.equal(qkv, kept)

    heads, angles = qkv.unflatten(1, (-1, head_dim)), cos_sin[positions]
    assert_near(q, lambda h, a, w: rotated(h, a, w, 1e-2), heads[:, :num_heads], angles, q_weight)
    stored = [token for token, slot in enumerate(slots) if slot >= 0]
    where = [slots[token] for token in stored]
    k_slots, v_slots = (cache.view(24, num_kv_heads, head_dim) for cache in caches)
    keys = heads[stored, num_heads : num_heads + num_kv_heads]
    assert_near(k_slots[where], lambda h, a, w: rotated(h, a, w, 1e-6), keys, angles[stored], k_weight)
    assert torch.equal(v_slots[where], heads[stored, num_heads + num_kv_heads :])
    for cache in (k_slots, v_slots):
        assert sorted(cache.isfinite().flatten(1).any(dim=1).nonzero().flatten().tolist()) == sorted(where)


@pytest.mark.parametrize("has_norm", [True, False])
def test_keys_are_kept_in_the_projection_as_they_are_in_the_pool(has_norm: bool, place: Place) -> None:
    """Of the token whose slot is -1 too; queries and values stay as they were, and what lies between the rows."""
    qkv = place.strided_rows(3, 6 * 32, gap=32)
    kept, caches = qkv.clone(), pools(place, 2, 4, 1, 32)
    cos_sin = RotaryTable(RopeConfig(theta=10000.0), 32, MAX_POSITIONS, torch.device("cpu")).cos_sin.to(place.device)
    norm = (place.rand(32), 1e-6) if has_norm else None
    where = place.ints([5, -1, 2]), place.ints([0, 7, 299])
    qk_norm_rope_store(qkv, *caches, *where, cos_sin, norm, norm, keeps_keys=True)
    same = [slice(0, 4 * 32), slice(5 * 32, None)]
    assert all(torch.equal(qkv[:, part], kept[:, part]) for part in same)
    keys = qkv[:, 4 * 32 : 5 * 32]
    assert torch.equal(keys[[0, 2]], caches[0].view(8, 32)[[5, 2]])
    assert not torch.equal(keys[1], kept[1, 4 * 32 : 5 * 32]) and keys.isfinite().all()
    assert qkv.as_strided((2, 32), (7 * 32, 1), 6 * 32).isnan().all()


def test_norm_rotation_and_store_of_no_tokens(place: Place) -> None:
    caches = pools(place, 1, 4, 2, 16)
    angles = torch.zeros(8, 16, device=place.device)
    q = qk_norm_rope_store(place.randn(0, 8 * 16), *caches, place.ints([]), place.ints([]), angles)
    assert q.shape == (0, 4, 16)
    assert caches[0].isnan().all() and caches[1].isnan().all()
