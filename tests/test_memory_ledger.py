"""Where memory goes: the numbers add up to the pool there is, and say how it came about."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nvexplore.llm import LLM
from nvexplore.runner.kv_cache import DeviceMemory, KVCacheShape
from nvexplore.runner.memory_ledger import ledger_of
from nvexplore.toy import make_toy

SHAPE = KVCacheShape(3, 4, 2, 8, torch.float16)  # 768 bytes a block


@pytest.mark.parametrize("chosen", [None, 12])
def test_an_llm_says_where_its_memory_goes(tmp_path: Path, chosen: int | None) -> None:
    with LLM(make_toy(tmp_path), device="cpu", num_kvcache_blocks=chosen, max_num_seqs=2, max_model_len=64) as llm:
        assert llm.runner is not None
        memory = llm.memory
        pool = llm.runner.kv_cache.pool
        assert (memory.pool, memory.num_blocks) == (pool.nbytes, pool.shape[2])
        weights = {p.data_ptr(): p.nbytes for p in llm.runner.model.parameters()}  # a tied head is counted once
        assert memory.weights == sum(weights.values())
        assert (memory.total, memory.graphs, memory.others) == (None, None, None)
        if chosen:
            assert memory.num_blocks_from == "num_kvcache_blocks=12"
        else:
            assert f" bytes available / {memory.block_bytes:,} a block = " in memory.num_blocks_from
            assert memory.num_blocks_from.endswith(", of which 8 can be in use at a time")  # 2 x 64 tokens / 16
    with pytest.raises(RuntimeError, match="closed"):
        _ = llm.memory


def test_a_measured_device() -> None:
    measured = DeviceMemory(total=1_000_000, utilization=0.9, weights=100_000, peak=50_000, free=600_000)
    ledger = ledger_of(
        "cuda:0", weights=100_000, shape=SHAPE, num_blocks=716, available=measured, useful_blocks=None, graphs=7_000
    )
    assert SHAPE.num_blocks(measured, useful_blocks=None) == 716  # (600,000 free - 50,000) / 768
    assert (ledger.total, ledger.step_peak, ledger.others, ledger.graphs) == (1_000_000, 50_000, 300_000, 7_000)
    text = str(ledger)
    assert "550,000 bytes available / 768 a block = 716" in text and "0.9 of 1,000,000 bytes" in text
    assert "CUDA graphs" in text and "0.3 MiB  when the pool was sized" in text


def test_what_was_not_measured_is_not_told() -> None:
    text = str(ledger_of("cpu", weights=1, shape=SHAPE, num_blocks=2, available=2000, useful_blocks=9, graphs=None))
    assert "graphs" not in text and "other engines" not in text
    assert text.endswith("num_blocks: 2,000 bytes available / 768 a block = 2")


def test_a_share_of_a_model() -> None:
    """Rank 0's, and that another rank had less room."""
    given = {"weights": 1, "shape": SHAPE, "available": 7680, "useful_blocks": 9, "graphs": None, "num_ranks": 2}
    ledger = ledger_of("cpu", num_blocks=7, **given)  # type: ignore[arg-type]
    assert ledger.num_ranks == 2 and str(ledger).startswith("rank 0 of 2; each has its share of every layer")
    assert ledger.num_blocks_from.endswith("= 10, of which 9 can be in use at a time; another rank has room for 7")
    ledger = ledger_of("cpu", num_blocks=9, **given)  # type: ignore[arg-type]
    assert ledger.num_blocks_from.endswith("= 10, of which 9 can be in use at a time")
