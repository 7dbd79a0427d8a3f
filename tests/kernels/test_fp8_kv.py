"""A pool of 8 bits: every number is stored as the nearest that there is, and every number of it is read exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from nvexplore.backends.kernels.decode_attention import decode_attention
from nvexplore.backends.kernels.prefill_attention import prefill_attention, tile_shape
from nvexplore.backends.kernels.qk_norm_rope_store import qk_norm_rope_store
from nvexplore.backends.kernels.store_kv import store_kv
from tests.kernels.attention_cases import SCALE, PagedCase, paged_case
from tests.kernels.backends import near
from tests.kernels.places import Place
from tests.kernels.test_store import HEADS, pools, same

GREATEST = 448.0


def all_bytes() -> Tensor:
    return torch.arange(256, dtype=torch.int16).to(torch.uint8)


def all_numbers(dtype: torch.dtype) -> Tensor:
    """Every number of 16 bits; of 32 those of 8, what lies between two of them, just beside that, and large ones."""
    if dtype.itemsize == 2:
        return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    exact = all_bytes().view(torch.float8_e4m3fn).float().nan_to_num(0.0).sort().values
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(exact.tolist())])
    large = torch.tensor([449.0, 464.0, 465.0, 480.0, 1e4, 3e38, torch.inf, torch.nan, 2.0**-11, 1e-30, 0.0])
    near = [torch.nextafter(middles, middles + side) for side in (1, -1)]
    return torch.cat((exact, middles, *near, large, -large))


def nearest(x: Tensor) -> Tensor:
    """x as the 8-bit number next to it, in float32: of two equally near, the one whose byte is even."""
    x = x.double().cpu()
    table = all_bytes()[:127].view(torch.float8_e4m3fn).double()  # 0 to 448: these bytes are in order
    size = x.abs().nan_to_num(0.0).clamp(max=GREATEST)
    above = torch.searchsorted(table, size)
    below = (above - 1).clamp(min=0)
    down, up = size - table[below], table[above] - size
    found = torch.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    return table[found].copysign(x).masked_fill(x.isnan(), torch.nan).float()


def test_every_number_is_stored_as_the_nearest(fp8_place: Place) -> None:
    """Beyond the greatest it is the greatest; NaN alone is NaN."""
    numbers = all_numbers(fp8_place.dtype)
    numbers = torch.cat((numbers, numbers.new_zeros(-len(numbers) % 256))).view(-1, 2, 128)
    caches = pools(fp8_place, len(numbers), 1, 2, 128)
    slots = fp8_place.ints(list(range(len(numbers))))
    store_kv(numbers.to(fp8_place.device), -numbers.to(fp8_place.device), *caches, slots)
    assert same(caches[0][:, 0].cpu(), nearest(numbers))
    assert same(caches[1][:, 0].cpu(), nearest(-numbers))


@pytest.mark.parametrize("number", [1e4, -1e4, torch.inf])
def test_too_large_a_number_reads_back_as_the_greatest(number: float, fp8_place: Place) -> None:
    """Through both stores, beside NaN, which stays; a slot of -1 is skipped."""
    limit = GREATEST if number > 0 else -GREATEST
    qkv = torch.full((2, 6 * 16), number, dtype=fp8_place.dtype, device=fp8_place.device)
    qkv[0, -1] = torch.nan
    upright = torch.cat((torch.ones(8, 8), torch.zeros(8, 8)), dim=1).to(fp8_place.device)  # turns nothing
    stored, fused = pools(fp8_place, 3, 1, 2, 16), pools(fp8_place, 3, 1, 2, 16)
    k, v = qkv.view(2, 6, 16)[:, 2:4], qkv.view(2, 6, 16)[:, 4:]
    slots = fp8_place.ints([1, -1])
    store_kv(k, v, *stored, slots)
    if number != torch.inf:  # a rotation makes NaN of it
        qk_norm_rope_store(qkv, *fused, slots, fp8_place.ints([0, 1]), upright)
    for k_cache, v_cache in (stored, fused)[: 1 if number == torch.inf else 2]:
        assert (k_cache[1].float() == limit).all()
        values = v_cache[1].float().flatten()
        assert (values[:-1] == limit).all() and values[-1].isnan()
        assert k_cache[[0, 2]].float().isnan().all() and v_cache[[0, 2]].float().isnan().all()


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize(("head_dim", "num_heads", "num_kv_heads"), HEADS)
def test_what_the_fused_store_keeps_is_what_it_keeps_in_full_rounded(
    head_dim: int, num_heads: int, num_kv_heads: int, has_norm: bool, fp8_place: Place
) -> None:
    """Small numbers, some below the smallest, and some too large.

    Compiled twice a kernel may add squares in another order, which moves a few keys across the middle of two numbers.
    """
    slots, positions = fp8_place.ints([3, -1, 22, 0, 7]), fp8_place.ints([0, 1, 5, 7, 2])
    qkv = fp8_place.strided_rows(5, (num_heads + 2 * num_kv_heads) * head_dim, gap=head_dim)
    qkv[2] *= 300
    qkv[3] *= 1e-2
    angles = torch.linspace(0, 3, 8 * head_dim // 2).view(8, -1)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(fp8_place.device)
    norms = [(100 * fp8_place.rand(head_dim), 1e-6) for _ in range(2)] if has_norm else [None, None]
    found = []
    for where in (fp8_place, fp8_place._replace(narrow=None)):
        caches = pools(where, 6, 4, num_kv_heads, head_dim)
        found.append((qk_norm_rope_store(qkv, *caches, slots, positions, cos_sin, *norms), *caches))
    (q, *narrow), (full_q, *full) = found
    assert (q.float() - full_q.float()).abs().max() <= 1e-2 * full_q.float().abs().max()
    assert all(cache.dtype == torch.float8_e4m3fn for cache in narrow)
    near(narrow[0], nearest(full[0]), torch.float8_e4m3fn)
    assert same(narrow[0].cpu(), nearest(full[0])) or (has_norm and fp8_place.device.type == "cuda")
    assert same(narrow[1].cpu(), nearest(full[1]))
    assert (narrow[1].float() == GREATEST).any() and (narrow[1].float().abs() < 2**-6).any()


def attended(case: PagedCase, *, splits: int) -> Tensor:
    """Rows of one token by the one kernel, the others by the other."""
    place, group = case.place, case.q.shape[1] // case.k_cache.shape[2]
    out, single = case.sentinels(), [row for row, count in enumerate(case.counts) if count == 1]
    given = case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens
    tokens = place.ints([case.starts[row] for row in single])
    decode_attention(*given, SCALE, splits=splits, rows=place.ints(single), tokens=tokens, out=out)
    size = tile_shape(place.dtype.itemsize, case.q.shape[2]).tokens(group)
    tiles = [(row, at) for row, count in enumerate(case.counts) if count > 1 for at in range(0, count, size)]
    prefill_attention(
        *given, case.cu_seqlens_q, SCALE,
        tile_rows=place.ints([row for row, _ in tiles]), tile_firsts=place.ints([at for _, at in tiles]), out=out,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("heads", "head_dim", "block_size"), [((2, 2), 64, 3), ((8, 2), 128, 16)])
def test_both_patterns_of_nan_in_unused_slots(
    heads: tuple[int, int], head_dim: int, block_size: int, splits: int, fp8_place: Place
) -> None:
    case = paged_case(
        fp8_place, [(40, 1), (7, 5), (1, 1), (35, 3)], heads=heads, head_dim=head_dim, block_size=block_size
    )
    for cache in (case.k_cache, case.v_cache):
        unused = cache.view(torch.uint8)
        assert (unused == 0x7F).any() and not (unused == 0xFF).any()
        case.check(attended(case, splits=splits))
        unused[unused == 0x7F] = 0xFF
    case.check(attended(case, splits=splits))


def test_every_number_is_read_exactly(fp8_place: Place) -> None:
    """A token that sees one key gives its value; the second of two tokens is there to make a prompt."""
    case = paged_case(fp8_place, [(1, 1), (2, 2)], heads=(2, 2), head_dim=128, block_size=4)
    numbers = all_bytes().view(torch.float8_e4m3fn).to(fp8_place.device).view(2, 128)
    expected = numbers.float().nan_to_num(0.0)
    for row in range(2):
        slot = case.v_cache[case.block_tables[row, 0], 0]
        slot.copy_(expected)
    out = attended(case, splits=1)
    assert torch.equal(out[0].float(), expected) and torch.equal(out[1].float(), expected)


@pytest.mark.parametrize("pattern", [0x7F, 0xFF])
def test_nan_in_a_slot_that_is_used_shows(pattern: int, fp8_place: Place) -> None:
    case = paged_case(fp8_place, [(6, 1), (7, 4), (3, 1), (5, 3)], heads=(2, 1), head_dim=16, block_size=4)
    healthy = attended(case, splits=1)
    for row in (0, 1):
        case.v_cache[case.block_tables[row, 0], 1].view(torch.uint8).fill_(pattern)
    out = attended(case, splits=1)
    for row in range(4):
        found = out[case.tokens(row)]
        assert found.isnan().all() if row < 2 else torch.equal(found, healthy[case.tokens(row)])
