"""The cases of ``bench --kernels`` at tiny sizes: what they compute, and the bytes and FLOPs they say they take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import backends as backends_package
from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.attention.torch_paged import TorchPagedAttention
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.base import Backend
from nvexplore.backends.compiled_layers import CompiledCudaBackend
from nvexplore.backends.kernels.read_sum import WIDTH, read_sum
from nvexplore.bench import attention_cases, kernel_command
from nvexplore.bench.attention_cases import AttentionInputs, full_size_inputs, installed_makers
from nvexplore.bench.expert_cases import expert_cases
from nvexplore.bench.kernel_bench import Case, time_case
from nvexplore.bench.kernel_cases import RowSizes, row_cases
from nvexplore.bench.linear_cases import linear_cases
from nvexplore.bench.roofline import measured_bandwidth
from nvexplore.model_config import ModelConfig
from nvexplore.random_model import SHAPES
from tests.kernels.backends import CPU, PROCESSORS, cpu_backend, gpu_backend, near
from tests.kernels.places import Place

TINY = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
CONFIG = ModelConfig.from_dict(
    {**SHAPES["qwen3-0.6b"], **TINY, "intermediate_size": 20, "vocab_size": 300, "eos_token_id": 1, "bos_token_id": 2}
)
SIZES = RowSizes(rows=(1, 5), samples=3, tables=(2, 7))
DECODE = AttentionInputs("decode_attention", "a few", [(4, 1), (18, 1), (0, 1)], (4, 8))
PREFILL = AttentionInputs("prefill_attention", "chunks", [(0, 7), (5, 3)], (4,))


@pytest.fixture
def interpreted() -> None:
    from nvexplore.backends.kernels.launch import IS_INTERPRETED

    if not IS_INTERPRETED:
        pytest.skip("a GPU runs the kernels here")


def rows_of(backends: dict[str, Backend]) -> dict[tuple[str, str], dict[str, Case]]:
    """The row cases by name and inputs, then by who runs them."""
    found: dict[tuple[str, str], dict[str, Case]] = {}
    for case in row_cases(CONFIG, backends, SIZES):
        found.setdefault((case.name, case.inputs), {})[case.by] = case
    return found


def attention_of(device: torch.device, dtype: torch.dtype, *inputs: AttentionInputs) -> list[Case]:
    makers: dict[str, Callable[[], PagedAttention]] = {
        "triton": lambda: TritonPagedAttention(PROCESSORS),
        "torch": lambda: TorchPagedAttention(dtype),
    }
    return attention_cases.attention_cases(CONFIG, device, dtype, inputs, lambda block_size: makers)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["add_rms_norm", "qk_norm_rope_store", "silu_mul"])
def test_operations_give_what_the_cpus_backend_gives(name: str, dtype: torch.dtype) -> None:
    place = Place(CPU, dtype)
    made: dict[str, Backend] = {"triton": gpu_backend(place), "cpu": cpu_backend(dtype)}
    made["compiled"] = CompiledCudaBackend(CPU, dtype, TritonPagedAttention(PROCESSORS), compiler="eager")
    cases = [by for (kernel, _), by in rows_of(made).items() if kernel == name]
    assert len(cases) == len(SIZES.rows)
    for by in cases:
        results = {who: as_tuple(case.make().call()) for who, case in by.items()}
        assert list(results) == ["triton", "cpu", "compiled"]
        for who in ("triton", "compiled"):
            for actual, expected in zip(results[who], results["cpu"], strict=True):
                assert expected.float().abs().max() > 0.1, "or it compares nothing"
                near(actual, expected, dtype)


@pytest.mark.usefixtures("interpreted")
def test_keys_and_values_are_all_stored() -> None:
    (case,) = rows_of({"triton": gpu_backend(Place(CPU, torch.float32))})["store_kv", "5 x 2 x 32"].values()
    for cache in case.make().call():
        assert cache.shape == (5, 1, 2, 16)
        assert (cache != 0).all() and len({tuple(row) for row in cache.flatten(1).tolist()}) == 5


@pytest.mark.usefixtures("interpreted")
def test_both_samplers_draw_the_same_ids() -> None:
    attention = TritonPagedAttention(PROCESSORS)
    made: dict[str, Backend] = {
        "triton": gpu_backend(Place(CPU, torch.float32)),
        "compiled": CompiledCudaBackend(CPU, torch.float32, attention, compiler="eager"),
    }
    ids = [case.make().call().tolist() for case in rows_of(made)["gumbel", "3 x 300"].values()]
    assert ids[0] == ids[1] and len(set(ids[0])) == 3 and all(0 <= token < 300 for token in ids[0])


@pytest.mark.usefixtures("interpreted")
def test_tables_are_spread_whole() -> None:
    (case,) = rows_of({"triton": gpu_backend(Place(CPU, torch.float32))})["spread_tables", "2 x 7"].values()
    assert case.make().call().tolist() == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13]]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("inputs", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_attention_gives_what_plain_torch_gives(inputs: AttentionInputs, dtype: torch.dtype) -> None:
    cases = attention_of(CPU, dtype, inputs)
    assert len(cases) == 2 * len(inputs.block_sizes)
    for own, plain in zip(cases[::2], cases[1::2], strict=True):
        assert (own.by, plain.by, own.inputs) == ("triton", "torch", plain.inputs)
        result = own.make().call()
        assert result.shape == (sum(count for _, count in inputs.rows), 4, 16)
        near(result, plain.make().call(), dtype)


def as_tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


WIDE = replace(CONFIG, hidden_size=512, num_attention_heads=24, intermediate_size=1024)


@pytest.mark.usefixtures("interpreted")
def test_matrices_give_what_cublas_gives() -> None:
    cases = linear_cases(WIDE, CPU, torch.float16, (1, 5))
    # 24 and 2 x 2 heads of 16 are 448 outputs, which are too few.
    matrices = ("384 by 512", "512 by 2,048, SiLU * mul", "1,024 by 512")
    assert [case.inputs for case in cases[::2]] == [f"{rows} x {text}" for text in matrices for rows in (1, 5)]
    for own, theirs in zip(cases[::2], cases[1::2], strict=True):
        assert (own.by, theirs.by, own.inputs) == ("triton", "cublas", theirs.inputs)
        result, expected = own.make().call(), theirs.make().call()
        near(result.sum(0).half() if result.dim() > 2 else result, expected, torch.float16)
    work = cases[-1].make()
    # A matrix of 1,024 x 512, five rows in and out.
    assert (work.num_bytes, work.flops) == (2 * (1024 * 512 + 5 * 1024 + 5 * 512), 2 * 5 * 1024 * 512)


MOE = {"hidden_size": 24, "moe_intermediate_size": 8, "num_experts": 6, "num_experts_per_tok": 2}
EXPERTS = ModelConfig.from_dict(
    {**SHAPES["qwen3-moe-4-layers"], **TINY, **MOE, "vocab_size": 300, "eos_token_id": 1, "bos_token_id": 2}
)


@pytest.mark.usefixtures("interpreted")
def test_experts_as_cases() -> None:
    assert expert_cases(CONFIG, CPU, torch.float16) == []
    cases = expert_cases(EXPERTS, CPU, torch.float16, (3, 2000))
    assert [(case.by, case.inputs, case.ceiling) for case in cases] == [
        ("triton", "6 x 24 by 6 x 16", "read"),
        ("triton", "4,000 x 24 by 6 x 16", "matmul"),
        ("triton", "6 x 8 by 6 x 24", "read"),
        ("triton", "4,000 x 8 by 6 x 24", "matmul"),
    ]
    work = cases[0].make()
    x, weight, ends = work.call.args
    used = int((ends.diff(prepend=ends.new_zeros(1)) > 0).sum())
    assert x.shape == (6, 24) and weight.shape == (6, 16, 24) and ends[-1] == 6 and used < 6
    assert work.call().shape == (6, 16) and work.call().abs().max() > 0.1
    # Weights of the experts that are used, 24 values of each row in, 16 out; an end for each expert.
    assert (work.num_bytes, work.flops) == (2 * (used * 16 * 24 + 6 * 24 + 6 * 16) + 6 * 4, 2 * 6 * 24 * 16)


@pytest.mark.usefixtures("interpreted")
def test_bytes_of_rows() -> None:
    """Five rows in 16 bits, counted by hand."""
    found = rows_of({"triton": gpu_backend(Place(CPU, torch.float16))})
    expected = {
        # x, residual and its sum, norm: 4 x 5 x 24; the weight: 24
        ("add_rms_norm", "5 x 24"): 2 * (480 + 24),
        # 8 heads of 16 in and out: 2 x 5 x 128; two norms of 16; a position and a slot
        ("qk_norm_rope_store", "5 x 128"): 2 * (1280 + 32) + 5 * 2 * 4,
        # keys and values of 2 heads of 16, read and written: 4 x 5 x 32; a slot each
        ("store_kv", "5 x 2 x 32"): 2 * 640 + 20,
        # two halves of 20 in, one out
        ("silu_mul", "5 x 2 x 20"): 2 * 300,
        # 300 logits; temperature, key, id
        ("gumbel", "3 x 300"): 3 * (600 + 4 + 8 + 8),
        # 2 x 7 blocks read and written, and the width
        ("spread_tables", "2 x 7"): 2 * 56 + 4,
    }
    for key, num_bytes in expected.items():
        work = found[key]["triton"].make()
        assert (work.num_bytes, work.flops) == (num_bytes, 0), key


@pytest.mark.usefixtures("interpreted")
def test_bytes_and_flops_of_attention() -> None:
    decode, eights, prefill = (case.make() for case in attention_of(CPU, torch.float16, DECODE, PREFILL)[::2])
    # Contexts of 5, 19 and 1: keys and values of 2 heads of 16; 3 queries and results of 4 heads; 2 + 5 + 1 blocks of 4
    # (or 1 + 3 + 1 of 8), a length and a start each.
    assert decode.num_bytes == 2 * (25 * 64 + 3 * 128) + (8 + 6) * 4
    assert eights.num_bytes == 2 * (25 * 64 + 3 * 128) + (5 + 6) * 4
    assert decode.flops == 25 * 4 * 16 * 4
    # Contexts of 7 and 8; 10 tokens; 2 + 2 blocks. The first row's tokens see 1 to 7 keys, the second's 6, 7 and 8.
    assert prefill.num_bytes == 2 * (15 * 64 + 10 * 128) + (4 + 4) * 4
    assert prefill.flops == (28 + 21) * 4 * 16 * 4


def test_full_size_inputs_are_larger_than_a_cache() -> None:
    inputs = full_size_inputs()
    for each in inputs:
        assert sum(computed + count for computed, count in each.rows) * 4096 > 256e6, "bytes of keys and values"
    assert [(len(each.rows), each.is_decode) for each in inputs] == [(256, True), (4, True), (8, False), (8, False)]
    assert {count for _, count in inputs[3].rows} == {1024}


def test_every_kernel_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends_package.attention, "create_attention", lambda *_: TritonPagedAttention(PROCESSORS))
    monkeypatch.setattr(attention_cases, "installed_packages", frozenset)
    cases = kernel_command._cases(ModelConfig.from_dict(SHAPES["qwen3-0.6b"]), CPU, torch.bfloat16)
    folder = Path(backends_package.__file__).parent / "kernels"
    # The ids of a step are a kilobyte: what feeding them takes is a launch.
    kernels = {file.stem for file in folder.glob("*.py")} - {"__init__", "launch", "read_sum", "feed_ids"}
    assert {case.name for case in cases} == kernels
    assert {case.name for case in cases if case.by == "compiled"} == {
        "add_rms_norm",
        "qk_norm_rope_store",
        "silu_mul",
        "gumbel",
    }


@pytest.mark.parametrize(
    ("capability", "block_size", "expected"),
    [
        ((9, 0), 16, ["triton", "flash-attn-4"]),
        ((9, 0), 256, ["triton", "flash-attn 2", "flash-attn-4"]),
        ((8, 0), 256, ["triton", "flash-attn 2"]),
        ((8, 0), 16, ["triton"]),
    ],
)
def test_packages_where_they_fit(
    capability: tuple[int, int], block_size: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_cases, "installed_packages", lambda: frozenset({"flash_attn_2", "flash_attn_4"}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    makers = installed_makers(torch.device("cuda"), torch.bfloat16, 128, block_size)
    assert list(makers) == expected
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    for case in attention_cases.attention_cases(CONFIG, CPU, torch.float16, [DECODE], lambda _: makers):
        if case.by != "triton":
            result = time_case(case)
            assert result.error and "flash_attn" in result.error and not result.is_failure


def test_without_packages_only_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cases, "installed_packages", frozenset)
    assert list(installed_makers(torch.device("cuda"), torch.bfloat16, 128, 256)) == ["triton"]


@pytest.mark.parametrize("size", [0, 1, WIDTH - 1, WIDTH, 2 * WIDTH + 5])
def test_a_sum_that_reads_everything(size: int, device: torch.device) -> None:
    x = torch.randn(size).to(device)
    parts = read_sum(x)
    assert parts.shape == (-(-size // WIDTH),)
    torch.testing.assert_close(parts.sum(), x.sum(), rtol=1e-4, atol=1e-2)


@pytest.mark.usefixtures("interpreted")
def test_bandwidth_counts_a_copy_twice() -> None:
    times = iter([4.0, 2.0, 1.0, 5.0])
    sizes = []

    def timer(calls: Any) -> float:
        calls[0]()
        sizes.append(len(calls))
        return next(times)

    found = measured_bandwidth(CPU, timer)
    assert found.read_bytes_per_s > 1 << 20
    assert found.copy_bytes_per_s == found.read_bytes_per_s, "twice the bytes in twice the time"
    assert len(sizes) == 4


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:TensorFloat32 tensor cores")
def test_cases_are_timed_on_a_gpu() -> None:
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    attention = TritonPagedAttention(PROCESSORS)
    made: dict[str, Backend] = {
        "triton": gpu_backend(Place(device, dtype)),
        "compiled": CompiledCudaBackend(device, dtype, attention),
    }
    cases = [*row_cases(CONFIG, made, SIZES), *attention_of(device, dtype, DECODE, PREFILL)]
    cases += [*linear_cases(WIDE, device, dtype, (1, 5, 70)), *expert_cases(EXPERTS, device, dtype, (1, 40))]
    for case in cases:
        if case.by != "torch":
            result = time_case(case)
            assert result.error is None and result.seconds is not None and 0 < result.seconds < 1
    assert measured_bandwidth(device).read_bytes_per_s > 1e10
