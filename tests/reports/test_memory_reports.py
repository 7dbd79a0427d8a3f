"""Public bug reports about how many KV blocks an engine gets, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nvexplore import LLM
from nvexplore.runner.kv_cache import DeviceMemory, KVCacheShape
from nvexplore.toy import make_toy
from tests.paged import Paged

GIB = 1 << 30


@pytest.mark.parametrize(
    ("utilization", "free_before", "expected"),
    [
        (0.9, 24, 21.6 - 7),  # all of our share
        (0.9, 20, 20 - 7),  # another process holds 4: less than our share is there
        (0.9, 10, 10 - 7),
        (0.9, 2, 0),
        (0.2, 20, 0),  # 4.8 for us, of which weights and a step take 7
        (1.0, 24, 24 - 7),
    ],
)
def test_v31_a_pool_is_this_engines_share_less_its_own_use(
    utilization: float, free_before: int, expected: float
) -> None:
    """vllm#10643, #10533: total 24, peak 3, weights 4; memory of others is not charged to this engine."""
    memory = DeviceMemory(24 * GIB, utilization, 4 * GIB, 3 * GIB, max(0, free_before - 4) * GIB)
    assert memory.available == pytest.approx(expected * GIB, abs=1)


def test_v31_what_others_take_meanwhile_is_not_charged() -> None:
    """vllm#55827: another process takes 5 between the two looks at the memory, or gives 5 back."""
    shape = KVCacheShape(28, 16, 8, 128, torch.bfloat16)
    memory = DeviceMemory(24 * GIB, 0.5, 4 * GIB, 3 * GIB, 16 * GIB)
    blocks = [shape.num_blocks(memory._replace(free=free * GIB), useful_blocks=10**9) for free in (16, 11, 20)]
    assert blocks == [5 * GIB // shape.block_bytes] * 3


def test_v31_two_engines_by_halves_and_a_third_that_finds_nothing() -> None:
    """vllm#10643, the sibling: a negative count of blocks; now an error with every number and a way out."""
    shape = KVCacheShape(28, 16, 8, 128, torch.bfloat16)
    first = DeviceMemory(24 * GIB, 0.45, 4 * GIB, 1 * GIB, 20 * GIB)
    second = first._replace(free=20 * GIB - first.available - 4 * GIB)
    assert first.available == second.available > 0
    third = second._replace(free=second.free - second.available - 4 * GIB)
    assert third.free > 0
    with pytest.raises(ValueError, match="no room for the KV cache") as caught:
        shape.num_blocks(third._replace(free=GIB), useful_blocks=10**9)
    for text in ("0.45 of", f"{24 * GIB:,}", f"{4 * GIB:,}", f"{GIB:,}", "num_kvcache_blocks", " 0 bytes"):
        assert text in str(caught.value)


def test_v31_an_explicit_number_of_blocks_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sibling on the CPU: nothing is free, and the user says how many all the same."""
    monkeypatch.setattr("nvexplore.backends.cpu._free_memory", lambda: 0)
    path = make_toy(tmp_path)
    assert Paged(path, num_blocks=7).runner.num_blocks == 7
    with pytest.raises(ValueError, match="0 bytes are available"):
        LLM(path)
