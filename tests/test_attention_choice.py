"""Which attention backend is chosen for whom, why others are refused, and how the options reach that choice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.backends import attention, create_backend
from nvexplore.backends.attention import PagedAttention, choice, create_attention
from nvexplore.backends.attention.flash_attn import FlashAttention2, FlashAttention4
from nvexplore.config import EngineConfig
from tests.fake_flash_attn import Calls, install

CUDA = torch.device("cuda", 0)


def facts(**changed: Any) -> choice.Facts:
    """A Hopper GPU with flash-attn 2 and a model that it can serve, but for what is ``changed``."""
    usual: dict[str, Any] = {
        "device_type": "cuda",
        "dtype": torch.bfloat16,
        "block_size": 256,
        "head_dim": 128,
        "capability": (9, 0),
        "installed": frozenset({"flash_attn_2"}),
    }
    if "installed" in changed:
        changed["installed"] = frozenset(changed["installed"].split())
    return choice.Facts(**{**usual, **changed})


CPU_FACTS: dict[str, Any] = {"device_type": "cpu", "capability": None, "installed": ""}
BOTH = "flash_attn_2 flash_attn_4"
FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("asked", "changed", "expected"),
    [
        ("auto", CPU_FACTS, "torch"),
        ("torch", CPU_FACTS, "torch"),
        ("auto", {}, "triton"),
        ("auto", {"installed": BOTH, "block_size": 16}, "triton"),
        ("triton", {"dtype": torch.float32, "block_size": 3, "head_dim": 80, "installed": ""}, "triton"),
        ("flash_attn", {}, "flash_attn_2"),
        ("flash_attn", {"capability": (8, 0), "dtype": torch.float16, "head_dim": 256}, "flash_attn_2"),
        ("flash_attn", {"capability": (12, 0), "block_size": 1024, "head_dim": None}, "flash_attn_2"),
        ("flash_attn", {"installed": BOTH}, "flash_attn_2"),
        ("flash_attn", {"installed": BOTH, "block_size": 16}, "flash_attn_4"),
        ("flash_attn", {"installed": BOTH, "capability": (8, 9)}, "flash_attn_2"),
        ("flash_attn", {"installed": "flash_attn_4", "block_size": 1, "head_dim": 64}, "flash_attn_4"),
        ("flash_attn", {"installed": "flash_attn_4"}, "flash_attn_4"),
        ("auto", {"kv_dtype": FP8, "installed": BOTH}, "triton"),
        ("triton", {"kv_dtype": FP8, "dtype": torch.float32, "capability": (8, 9)}, "triton"),
        ("auto", {**CPU_FACTS, "kv_dtype": FP8}, "torch"),
    ],
)
def test_choose(asked: str, changed: dict[str, Any], expected: str, phase: str) -> None:
    assert choice.choose("attention_backend", asked, phase, facts(**changed)) == expected


USE_TRITON = "attention_backend='triton'"


@pytest.mark.parametrize(
    ("asked", "changed", "message"),
    [
        ("flash_attn", CPU_FACTS, "not available on cpu (available: auto, torch)"),
        ("triton", CPU_FACTS, "not available on cpu (available: auto, torch)"),
        ("torch", {}, "not available on cuda (available: auto, triton, flash_attn)"),
        (
            "flash_attn",
            {"block_size": 16},
            f"flash-attn 2 pages in multiples of 256 tokens, block_size=16; use block_size=256 or {USE_TRITON}",
        ),
        (
            "flash_attn",
            {"dtype": torch.float32, "block_size": 100},
            (
                "flash-attn 2 computes in float16 and bfloat16, dtype=float32; flash-attn 2 pages in multiples of 256 "
                f"tokens, block_size=100; use dtype='bfloat16' and block_size=256 or {USE_TRITON}"
            ),
        ),
        (
            "flash_attn",
            {"installed": ""},
            f"flash-attn is not installed (pip install flash-attn --no-build-isolation); use {USE_TRITON}",
        ),
        (
            "flash_attn",
            {"capability": (7, 5)},
            f"flash-attn 2 needs a GPU of compute capability 8.0 or more, this one has 7.5; use {USE_TRITON}",
        ),
        (
            "flash_attn",
            {"head_dim": 260, "block_size": 16},
            (
                "flash-attn 2 takes heads of a multiple of 8 up to 256 values, head_dim=260; flash-attn 2 pages in "
                f"multiples of 256 tokens, block_size=16; use {USE_TRITON}"
            ),
        ),
        (
            "flash_attn",
            {"head_dim": 100, "installed": "flash_attn_4"},
            f"flash-attn-4 takes heads of a multiple of 8 up to 256 values, head_dim=100; use {USE_TRITON}",
        ),
        (
            "flash_attn",
            {"capability": (10, 0), "installed": "flash_attn_4"},
            f"flash-attn-4 pages on GPUs of compute capability 9.x only, this one has 10.0; use {USE_TRITON}",
        ),
        (
            "flash_attn",
            {"capability": (8, 0), "block_size": 16, "installed": BOTH},
            f"flash-attn 2 pages in multiples of 256 tokens, block_size=16; use block_size=256 or {USE_TRITON}",
        ),
        (
            "flash_attn",
            {"kv_dtype": FP8, "installed": BOTH},
            (
                "flash-attn 2 takes keys and values in the format of the queries, kv_cache_dtype='fp8'; "
                f"use kv_cache_dtype='auto' or {USE_TRITON}"
            ),
        ),
    ],
)
def test_a_refusal_says_why_and_what_would_work(asked: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="attention_backend=") as error:
        choice.choose("attention_backend", asked, "decode", facts(**changed))
    assert str(error.value) == f"attention_backend={asked!r}: {message}"


def test_a_refusal_names_the_option_that_was_set() -> None:
    with pytest.raises(
        ValueError, match=r"prefill_backend='flash_attn': .*; use block_size=256 or prefill_backend='tr"
    ):
        choice.choose("prefill_backend", "flash_attn", "prefill", facts(block_size=16))
    with pytest.raises(ValueError, match=r"decode_backend='triton': not available on cpu \(available: auto, torch\)"):
        create_backend("cpu", torch.float32, decode_backend="triton")


@pytest.mark.parametrize("asked", ["auto", "triton", "flash_attn"])
def test_8_bits_need_a_gpu_that_knows_them(asked: str) -> None:
    with pytest.raises(
        ValueError, match=r"kv_cache_dtype='fp8': .* 8\.9 or more, this one has 8\.0; use kv_cache_dtype="
    ):
        choice.choose("attention_backend", asked, "decode", facts(kv_dtype=FP8, capability=(8, 0)))


def test_auto_takes_the_fastest_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were flash-attn known to be faster for prompts, ``auto`` would take it there, where it can."""
    monkeypatch.setitem(choice._FASTEST, "prefill", ("flash_attn", "triton"))

    def found(phase: str, **changed: Any) -> str:
        return choice.choose("attention_backend", "auto", phase, facts(**changed))

    assert (found("prefill"), found("decode")) == ("flash_attn_2", "triton")
    assert found("prefill", block_size=16) == found("prefill", installed="") == "triton"
    assert found("prefill", block_size=16, installed=BOTH) == "flash_attn_4"
    assert found("prefill", kv_dtype=FP8, installed=BOTH) == "triton"
    assert found("prefill", **CPU_FACTS) == "torch"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], set()),
        (["flash_attn/__init__.py", "flash_attn_2_cuda.py"], {"flash_attn_2"}),
        # 2.8.3 has a cute folder, which cannot page.
        (["flash_attn/__init__.py", "flash_attn_2_cuda.py", "flash_attn/cute/__init__.py", "cutlass/__init__.py"],
         {"flash_attn_2"}),
        (["flash_attn/cute/__init__.py", "flash_attn/cute/paged_kv.py", "cutlass/__init__.py"], {"flash_attn_4"}),
        (["flash_attn/cute/__init__.py", "flash_attn/cute/paged_kv.py"], set()),  # without its compiler
        (["flash_attn/__init__.py"], set()),  # built without its extension
        (["flash_attn/__init__.py", "flash_attn_2_cuda.py", "flash_attn/cute/paged_kv.py", "cutlass/__init__.py"],
         {"flash_attn_2", "flash_attn_4"}),
    ],
)  # fmt: skip
def test_what_is_installed_is_found_without_importing_it(
    files: list[str], expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('this was imported')\n")
    for name in [name for name in sys.modules if name.split(".")[0] in ("flash_attn", "flash_attn_2_cuda", "cutlass")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # whatever this machine has is out of sight
    assert choice.installed_packages() == expected


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a Hopper GPU were here, with both packages installed."""
    install(monkeypatch, Calls())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "installed_packages", lambda: frozenset(BOTH.split()))


@pytest.mark.usefixtures("hopper")
def test_create_attention_makes_what_was_chosen() -> None:
    def made(block_size: int, **asked: Any) -> PagedAttention:
        return create_attention("flash_attn", CUDA, torch.bfloat16, block_size=block_size, head_dim=64, **asked)

    assert type(made(256)) is FlashAttention2
    assert type(made(16)) is FlashAttention4
    assert type(made(256, prefill="flash_attn", decode="flash_attn")) is FlashAttention2
    with pytest.raises(ValueError, match=r"attention_backend='flash_attn': .*dtype=float32"):
        create_attention("flash_attn", CUDA, torch.float32, prefill="triton")
    with pytest.raises(ValueError, match=r"decode_backend='flash_attn': .*kv_cache_dtype='fp8'; use .* or decode_back"):
        create_attention("auto", CUDA, torch.bfloat16, decode="flash_attn", block_size=256, kv_dtype=FP8)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 16),
        ({"attention_backend": "triton"}, 16),
        ({"attention_backend": "flash_attn"}, 256),
        ({"decode_backend": "flash_attn"}, 256),
        ({"prefill_backend": "flash_attn", "attention_backend": "triton"}, 256),
        ({"attention_backend": "flash_attn", "prefill_backend": "triton"}, 256),
        ({"attention_backend": "flash_attn", "prefill_backend": "triton", "decode_backend": "auto"}, 16),
        ({"attention_backend": "flash_attn", "block_size": 16}, 16),
        ({"block_size": 7}, 7),
    ],
)
def test_the_default_block_size(options: dict[str, Any], expected: int) -> None:
    config = EngineConfig.of(**options)
    assert config.block_size == options.get("block_size")
    assert config.on("cuda").block_size == config.on("cpu").block_size == expected
    assert config.limits(num_blocks=4, max_model_len=64).block_size == expected


def test_options_reach_the_backend_by_its_names() -> None:
    options = {"attention_backend": "auto", "prefill_backend": "torch", "gpu_memory_utilization": 0.5}
    asked = EngineConfig.of(**options, decode_backend="torch")
    assert create_backend("cpu", torch.float32, **asked.backend_options()).dispatch(1, 1)[3:] == ("torch", "torch")
    rest = {"decode_backend": "torch", "compile_layers": False, "kv_cache_dtype": "auto"}
    assert asked.backend_options() == options | rest
    with pytest.raises(ValueError, match="decode_backend='cudnn'"):
        EngineConfig.of(decode_backend="cudnn")
    assert (EngineConfig.of().kv_cache_dtype, EngineConfig.of(kv_cache_dtype="fp8").kv_cache_dtype) == ("auto", "fp8")
    for unknown in ("fp16", "FP8", None):
        with pytest.raises(ValueError, match=r"kv_cache_dtype=.*'auto' or 'fp8'"):
            EngineConfig.of(kv_cache_dtype=unknown)
