"""The pool's shape and views, and how many blocks it gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nvexplore.backends import create_backend
from nvexplore.backends.cpu import CpuBackend
from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.kv_cache import KVCache, KVCacheShape
from nvexplore.toy import make_toy

SHAPE = KVCacheShape(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)
CPU = torch.device("cpu")


def test_shape_is_that_of_the_rank(tmp_path: Path) -> None:
    config = ModelConfig.from_path(make_toy(tmp_path, "llama", num_layers=3, head_dim=8))
    for size, kv_heads in ((1, 2), (2, 1)):
        model = CausalLM(config, max_positions=8, placement=Placement(torch.bfloat16, CPU, 0, size))
        layers = [layer.self_attn for layer in model.decoder_layers()]
        shape = KVCacheShape.of(layers, 4, torch.bfloat16)
        assert shape == SHAPE._replace(num_kv_heads=kv_heads)
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
