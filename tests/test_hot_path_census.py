"""What a decode step consists of: a toy's operations, and kernels as a profiler would tell them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nvexplore.bench.hot_path_census import OPERATIONS, REST, Census, census_of, kind_of
from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy


def test_operations_of_a_step(tmp_path: Path) -> None:
    """Two layers: four products, two norms, and one each of the rest."""
    with LLM(make_toy(tmp_path, "qwen3"), device="cpu", num_kvcache_blocks=32, block_size=4) as llm:
        assert llm.runner is not None
        for length in (3, 4, 5):
            llm.add_request([7] * length, SamplingParams(max_tokens=9, ignore_eos=True))
        llm.step()
        census = census_of(lambda: len(llm.step().planned.seq_id), llm.runner.backend)
        assert not set(OPERATIONS) & set(vars(llm.runner.backend))
    assert census is not None and (census.counted, census.num_rows) == ("operations", 3)
    counts = census.by_kind()["count"].to_dict()
    ones = {"attention": 2, "RoPE, KV store": 2, "SiLU * mul": 2, "sampler": 1, REST: 1}
    assert counts == {"matrix products": 2 * 4 + 1, "norms": 2 * 2 + 1, **ones}
    frame = census.frame()
    assert frame["name"].iloc[0] == "embedding" and frame["name"].iloc[-1] == "sample" and frame["at_us"].iloc[0] == 0
    assert frame["at_us"].is_monotonic_increasing and frame["us"].min() > 0
    assert census.total_us == pytest.approx(frame["us"].sum()) and census.span_us >= census.total_us
    assert census.by_kind()["us"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_decode_attention", "attention"),
        ("void flash::flash_fwd_splitkv_kernel<...>", "attention"),
        ("_qk_norm_rope_store", "RoPE, KV store"),
        ("_add_rms_norm", "norms"),
        ("triton_per_fused_add_mean_mul_pow_rsqrt_0", "norms"),
        ("_silu_mul", "SiLU * mul"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "matrix products"),
        ("void cublasLt::splitKreduce_kernel<...>", "matrix products"),
        ("_scan", "sampler"),
        ("_spread_tables", REST),
    ],
)
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def profiled(monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, str, float, float]]) -> Census | None:
    """The census of a step on a GPU whose profiler tells ``events``: device, name, begin, end."""
    told = [
        SimpleNamespace(
            device_type=SimpleNamespace(name=kind), name=name, time_range=SimpleNamespace(start=begin, end=end)
        )
        for kind, name, begin, end in events
    ]

    class Profiler:
        def __init__(self, activities: list[Any]) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> Profiler:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def events(self) -> list[Any]:
            return told

    backend: Any = SimpleNamespace(device=torch.device("cuda"), **dict.fromkeys(OPERATIONS, lambda: 1))
    monkeypatch.setattr(torch.profiler, "profile", Profiler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return census_of(lambda: 8, backend)


def test_kernels_as_the_profiler_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        ("CPU", "cudaGraphLaunch", 0.0, 9.0),
        ("CUDA", "_silu_mul", 30.0, 31.5),
        ("CUDA", "Memcpy HtoD (Pinned -> Device)", 10.0, 12.0),
        ("CUDA", "_add_rms_norm", 20.0, 22.0),
        ("CUDA", "_silu_mul", 24.0, 25.0),
    ]
    census = profiled(monkeypatch, events)
    assert census is not None and (census.counted, census.num_rows) == ("kernels", 8)
    assert census.names == ["_add_rms_norm", "_silu_mul"] and census.name == [0, 1, 1]
    assert census.at_us == [0, 4, 10] and census.us == [2, 1, 1.5] and census.span_us == 11.5


def test_a_kernel_that_is_launched_early_counts_from_the_end_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        ("CUDA", "_few_rows_linear", 10.0, 14.0),
        ("CUDA", "_add_rms_norm", 11.0, 16.0),
        ("CUDA", "nvjet", 17.0, 20.0),
    ]
    census = profiled(monkeypatch, events)
    assert census is not None and census.at_us == [0, 4, 7] and census.us == [4, 2, 3]
    assert census.total_us == 9 and census.span_us == 10
    assert list(census.frame()["kind"]) == ["matrix products", "norms", "matrix products"]


def test_a_graph_without_a_profiler_cannot_be_seen_into(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiled(monkeypatch, [("CPU", "cudaGraphLaunch", 0.0, 9.0)]) is None
