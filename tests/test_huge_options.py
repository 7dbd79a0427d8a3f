"""Options far beyond any machine: refused by name, value and limit, and nothing of a half-made engine stays."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import LLM, SamplingParams
from nvexplore.backends import cpu
from nvexplore.config import EngineConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.kv_cache import KVCache, KVCacheShape
from nvexplore.toy import make_toy

GREEDY = SamplingParams(temperature=0, max_tokens=4)
SHAPE = KVCacheShape(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)  # 768 bytes a block
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_toy(tmp_path_factory.mktemp("toy") / "qwen3", "qwen3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_kvcache_blocks": 10**9},
            r"num_kvcache_blocks=1000000000: needs [\d,]+ bytes, .* there are [\d,]+: must b",
        ),
        (
            {"num_kvcache_blocks": 10**12},
            r"num_kvcache_blocks=1000000000000: needs [\d,]+ bytes, .*: must be at most \d",
        ),
        (
            {"num_kvcache_blocks": 10**30},
            r"num_kvcache_blocks=10{30}: needs [\d,]+ bytes, .* there are .*: must be at most \d",
        ),
        ({"num_kvcache_blocks": 10**18, "tensor_parallel_size": 1}, r"num_kvcache_blocks=10{18}: needs"),
        ({"block_size": 10**9}, r"one block takes [\d,]+ bytes .* 1000000000 tokens .*, [\d,]+ bytes are available"),
        ({"block_size": 10**30}, r"one block takes [\d,]+ bytes .* 10{30} tokens"),
        ({"block_size": 10**9, "num_kvcache_blocks": 1}, r"num_kvcache_blocks=1: needs .*block_size=1000000000 tokens"),
        ({"max_num_seqs": 10**30}, r"max_num_seqs=10{30}: input should be less than or equal to 16777216"),
        ({"max_num_seqs": 2**24 + 1}, r"max_num_seqs=16777217: input should be less than or equal to 16777216"),
        ({"max_num_batched_tokens": 10**30}, r"max_num_batched_tokens=10{30}: input should be .* equal to 16777216"),
        ({"max_num_batched_tokens": 2**24 + 1}, r"max_num_batched_tokens=16777217: input should be less than or equal"),
        ({"max_model_len": 10**30}, r"max_model_len=10{30}: must be at most \d+"),
        ({"seed": 2**70}, rf"seed={2**70}: input should be less than or equal to {2**63 - 1}"),
        ({"seed": 2**63}, rf"seed={2**63}: input should be less than or equal to {2**63 - 1}"),
        ({"tensor_parallel_size": 10**30}, r"tensor_parallel_size=10{30}: "),
        ({"gpu_memory_utilization": 1e300}, r"gpu_memory_utilization=1e\+300: input should be less than or equal to 1"),
    ],
    ids=str,
)
def test_a_huge_option_is_refused_and_leaves_nothing(
    toy: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[CausalLM]] = []

    class Model(CausalLM):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(weakref.ref(self))

    monkeypatch.setattr("nvexplore.runner.model_runner.CausalLM", Model)
    with pytest.raises(ValueError, match=rf"^(no room for the KV cache: )?{message}") as error:
        LLM(toy, **options)
    assert "\n" not in str(error.value)
    del error
    gc.collect()
    assert all(ref() is None for ref in made)


def test_the_largest_options_work(toy: Path) -> None:
    options = {"max_num_seqs": 2**24, "max_num_batched_tokens": 2**24, "seed": 2**63 - 1, "block_size": 10**5}
    with LLM(toy, num_kvcache_blocks=8, **options) as llm:
        assert len(llm.generate(["abc"] * 3, GREEDY, use_tqdm=False)[0].token_ids) == 4
        llm.generate(["abc"], SamplingParams(max_tokens=4), use_tqdm=False)
    assert EngineConfig.of(num_kvcache_blocks=10**30).num_kvcache_blocks == 10**30  # what fits, the machine says


def test_a_pool_takes_all_that_there_is_and_no_more() -> None:
    whole = 7 * SHAPE.block_bytes + 1
    assert KVCache(SHAPE, 7, CPU, whole).num_blocks == 7
    with pytest.raises(
        ValueError, match=r"^num_kvcache_blocks=8: needs 6,144 bytes, 768 a block of block_size=4 tok"
    ) as e:
        KVCache(SHAPE, 8, CPU, whole)
    assert str(e.value).endswith("tokens, and there are 5,377: must be at most 7")


def test_slots_are_numbered_in_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory would do: the numbers would wrap around without a word."""
    monkeypatch.setattr("nvexplore.runner.kv_cache._zeros", lambda shape, num_blocks, device: torch.empty(0))
    for block_size, most in ((1, 2**31 - 1), (4, 2**29 - 1), (256, 2**23 - 1)):
        shape = SHAPE._replace(block_size=block_size)
        assert KVCache(shape, most, CPU).num_blocks == most
        with pytest.raises(
            ValueError, match=rf"^num_kvcache_blocks={most + 1}: must be at most {most} with block_size="
        ):
            KVCache(shape, most + 1, CPU)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_allocator_that_fails_is_told_in_the_same_words(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much")

    monkeypatch.setattr("nvexplore.runner.kv_cache._zeros", fail)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1000, 2000))
    with pytest.raises(ValueError, match=r"^num_kvcache_blocks=9: needs 6,912 bytes, 768 a block") as error:
        KVCache(SHAPE, 9, torch.device(device))
    assert str(error.value).endswith(
        "1,000 are free: must be at most 1" if device == "cuda" else "the machine does not give so many"
    )


def test_other_errors_of_a_gpu_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr("nvexplore.runner.kv_cache._zeros", fail)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1000, 2000))
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        KVCache(SHAPE, 9, torch.device("cuda"))


def test_the_whole_memory_is_the_smaller_of_machine_and_container(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = ""

    def read_text(path: Path) -> str:
        if not limit:
            raise FileNotFoundError
        return limit

    monkeypatch.setattr(Path, "read_text", read_text)
    machine = cpu._whole_memory()
    assert machine >= cpu._free_memory() > 0
    for limit, expected in (("max\n", machine), ("4096\n", 4096), (f"{machine * 2}\n", machine)):  # noqa: B007
        assert cpu._whole_memory() == expected
