"""The pool's shape and views, and how many blocks it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.backends import create_backend
from nvexplore.backends.cpu import CpuBackend
from nvexplore.layers.parameter import Placement
from nvexplore.llm import LLM
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.forward_batch import build_forward_batch
from nvexplore.runner.kv_cache import KVCache, KVCacheShape, as_stored, resolve_kv_dtype
from nvexplore.toy import make_toy
from tests.paged import Paged, token_ids

SHAPE = KVCacheShape(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)
CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn


def test_shape_is_that_of_the_rank(tmp_path: Path) -> None:
    config = ModelConfig.from_path(make_toy(tmp_path, "llama", num_layers=3, head_dim=8))
    for size, kv_heads in ((1, 2), (2, 1)):
        model = CausalLM(config, max_positions=8, placement=Placement(torch.bfloat16, CPU, 0, size))
        layers = [layer.self_attn for layer in model.decoder_layers()]
        shape = KVCacheShape.of(layers, 4, torch.bfloat16)
        assert shape == SHAPE._replace(num_kv_heads=kv_heads)
        assert KVCacheShape.of(layers, 4, torch.bfloat16, "fp8") == shape._replace(dtype=FP8)
        cache = KVCache(shape, 2, CPU)
        cache.bind(layers)
        assert [layer.v_cache.data_ptr() for layer in layers] == [cache.pool[1, i].data_ptr() for i in range(3)]
    assert SHAPE.block_bytes == 2 * 3 * 4 * 2 * 8 * 2


def test_layers_hold_views_of_one_pool() -> None:
    cache = KVCache(SHAPE, 5, CPU)
    assert cache.pool.shape == (2, 3, 5, 4, 2, 8)
    assert cache.pool.nbytes == 5 * SHAPE.block_bytes
    assert cache.pool.count_nonzero() == 0
    for index in range(3):
        keys, values = cache.layer(index)
        assert keys.shape == values.shape == (5, 4, 2, 8)
        assert keys.is_contiguous()
        keys.fill_(index + 1)
        values.fill_(-index - 1)
    for index in range(3):
        assert (cache.pool[0, index] == index + 1).all()
        assert (cache.pool[1, index] == -index - 1).all()


def test_number_of_blocks() -> None:
    assert SHAPE.num_blocks(SHAPE.block_bytes * 7 + 1, useful_blocks=100) == 7
    assert SHAPE.num_blocks(SHAPE.block_bytes, useful_blocks=100) == 1
    assert SHAPE.num_blocks(1 << 40, useful_blocks=100) == 100


@pytest.mark.parametrize("available", [0, -5_000, SHAPE.block_bytes - 1])
def test_no_room_says_all_numbers_and_what_to_do(available: int) -> None:
    with pytest.raises(ValueError, match="no room for the KV cache") as caught:
        SHAPE.num_blocks(available, useful_blocks=100)
    for text in ("768 bytes", "3 layers", "4 tokens", "2 KV heads", "x 8 x", f"{max(0, available)} bytes"):
        assert text in str(caught.value)
    assert "num_kvcache_blocks" in str(caught.value)


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_pool_without_blocks(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"num_kvcache_blocks={num_blocks}"):
        KVCache(SHAPE, num_blocks, CPU)


def test_cpu_pool_is_at_most_1_gib_and_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = create_backend("cpu", torch.float32)
    assert isinstance(backend, CpuBackend)
    assert 0 < backend.available_memory(lambda: None) <= 1 << 30
    for free, expected in ((10 << 30, 1 << 30), (1 << 30, 1 << 29), (0, 0)):
        monkeypatch.setattr("nvexplore.backends.cpu._free_memory", lambda free=free: free)
        assert backend.available_memory(lambda: None) == expected


def test_the_format_of_the_pool() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert resolve_kv_dtype("auto", dtype) == dtype
        assert resolve_kv_dtype("fp8", dtype) == FP8
    for unknown in ("fp16", "float8_e4m3fn", ""):
        with pytest.raises(ValueError, match=rf"kv_cache_dtype='{unknown}' is not supported \(supported: auto, fp8\)"):
            resolve_kv_dtype(unknown, torch.float32)


def test_8_bits_make_room_for_twice_as_many_blocks_as_16() -> None:
    narrow = SHAPE._replace(dtype=FP8)
    assert 2 * narrow.block_bytes == SHAPE.block_bytes
    assert narrow.num_blocks(SHAPE.block_bytes * 7, useful_blocks=None) == 14
    assert KVCache(narrow, 14, CPU).pool.nbytes == KVCache(SHAPE, 7, CPU).pool.nbytes
    assert (KVCache(narrow, 2, CPU).pool.float() == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_stored_as_near_as_8_bits_can(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, 17.0, 19.0, -21.0, 447.0, 448.0, 449.0, 1e4, -1e4, torch.inf, -torch.inf], dtype=dtype)
    expected = [0.0, 1.0, 16.0, 20.0, -20.0, 448.0, 448.0, 448.0, 448.0, -448.0, 448.0, -448.0]
    found = as_stored(x, FP8)
    assert found.dtype == FP8 and found.float().tolist() == expected
    assert as_stored(torch.tensor([torch.nan, -torch.nan], dtype=dtype), FP8).float().isnan().all()
    assert as_stored(x, dtype) is x
    small = torch.tensor([2**-6, 2**-7 + 2**-9, 2**-9, 2**-10, 3 * 2**-10], dtype=dtype)
    assert as_stored(small, FP8).float().tolist() == [2**-6, 2**-7 + 2**-9, 2**-9, 0.0, 2**-8]


@pytest.fixture
def runner(tmp_path: Path) -> Paged:
    """A Llama with 4 query heads to 2 KV heads, and a pool of 24 blocks of 4 tokens."""
    return Paged(make_toy(tmp_path, "llama", num_layers=1), num_blocks=24, dtype="bfloat16")


@pytest.mark.parametrize("block_ids", ["side by side", "apart"])
def test_the_cpu_computes_with_what_8_bits_keep(block_ids: str, runner: Paged) -> None:
    """Layer by layer the same as over a full pool that holds the rounded numbers; what nobody wrote stays NaN.

    A prompt, a chunk of one with cached context, rows of padding, two decode rows together, then one alone.
    """
    (layer,) = (layer.self_attn for layer in runner.runner.model.decoder_layers())
    if block_ids == "side by side":
        runner.free.sort(reverse=True)
    a, b = runner.seq(token_ids(9)), runner.seq(token_ids(14, seed=1))
    full = torch.full((2, 24, 4, 2, layer.head_dim), torch.nan, dtype=torch.bfloat16)
    narrow = full.to(FP8)
    sides = [(pool, create_backend("cpu", torch.bfloat16)) for pool in (full, narrow)]
    torch.manual_seed(0)
    with torch.inference_mode():
        for rows in ([(a, 9)], [(b, 10)], [(b, 4), (a, 1)], [(a, 1), (b, 1)], [(b, 1)]):
            for seq, count in rows:
                seq.token_ids += [0] * max(0, seq.num_computed_tokens + count - len(seq.token_ids))
            batch = build_forward_batch(runner.batch(*rows), 4, num_padding=2 if len(rows) == 2 else 0)
            qkv = torch.randn(batch.num_tokens, 8 * layer.head_dim).bfloat16() * 100
            qkv[0, -3:] = torch.tensor([1e4, -1e4, 3e38])
            found = []
            for pool, backend in sides:
                layer.k_cache, layer.v_cache = pool
                begun = backend.begin(batch)
                q = backend.qk_norm_rope_store(qkv.clone(), layer, begun)
                if pool is full:
                    full.copy_(as_stored(full, FP8))
                found.append(backend.attention(q * 1e-3, layer, begun))
            assert found[0].isfinite().all() and torch.equal(*found)
            torch.testing.assert_close(narrow.float(), full.float(), rtol=0, atol=0, equal_nan=True)
            runner.commit(*rows)
    assert int(narrow.float().isnan().all(dim=(0, 3, 4)).sum()) == 24 * 4 - (11 + 16)
    assert narrow.float().nan_to_num(0.0).abs().max() == 448


def test_an_engine_with_a_pool_of_8_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvexplore.backends.cpu._POOL_LIMIT", 1 << 20)
    path = make_toy(tmp_path, "llama", num_layers=1)
    limits: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_model_len": 64, "max_num_seqs": 1 << 20}
    counts, logits = [], []
    for kv_cache_dtype in ("auto", "fp8"):
        with LLM(path, kv_cache_dtype=kv_cache_dtype, **limits) as llm:
            counts.append(llm.memory.num_blocks)
        # A pool of NaN, blocks in random order: two chunks, then a decode row.
        paged = Paged(path, dtype="bfloat16", kv_cache_dtype=kv_cache_dtype)
        seq = paged.seq(token_ids(23))
        logits.append(torch.cat([paged.logits((seq, count))[0] for count in (9, 13, 1)]))
        assert paged.runner.kv_cache.pool.dtype == (FP8 if kv_cache_dtype == "fp8" else torch.bfloat16)
    assert counts[1] in (2 * counts[0], 2 * counts[0] + 1)
    assert 0 < (logits[1] - logits[0]).abs().mean() < 0.5 * logits[0].std()
    with pytest.raises(ValueError, match=r"kv_cache_dtype='fp16': input should be 'auto' or 'fp8'"):
        LLM(path, kv_cache_dtype="fp16")
