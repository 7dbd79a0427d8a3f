"""The flash-attn packages on a GPU: the results of the Triton kernels, eagerly, captured, and in whole engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.backends.attention.choice import installed_packages
from nvexplore.backends.attention.flash_attn import FlashAttention2, FlashAttention4
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.kernels.spread_tables import spread_tables
from nvexplore.engine.batch import ScheduledBatch
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch, decode_batch_of
from nvexplore.runner.packing import decode_shapes, packed_size
from tests.gpu.engines import ROOMY, greedy, make_llm, prompts, tokens
from tests.kernels.backends import rows

# The packages and the compiler of flash-attn-4 warn of things of their own.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

DEVICE = torch.device("cuda", 0)
HEADS, KV_HEADS, SCALE, POOL = 16, 8, 0.09, 40_960  # slots in the pool
PACKAGES = pytest.mark.parametrize(
    ("package", "block_size"), [("flash_attn_2", 256), ("flash_attn_4", 16), ("flash_attn_4", 256)]
)


def made(package: str) -> Any:
    if package not in installed_packages():
        pytest.skip(f"flash-attn is not installed: {package}")
    if package == "flash_attn_4" and torch.cuda.get_device_capability(DEVICE)[0] != 9:
        pytest.skip("flash-attn-4 pages on Hopper GPUs only")
    return {"flash_attn_2": FlashAttention2, "flash_attn_4": FlashAttention4}[package]()


def inputs(num_tokens: int, block_size: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    shape = (2, POOL // block_size, block_size, KV_HEADS, head_dim)
    caches = torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.bfloat16)
    return torch.randn(num_tokens, HEADS, head_dim, generator=generator, device=DEVICE, dtype=torch.bfloat16), caches


def scheduled(shape: list[tuple[int, int]], block_size: int) -> ScheduledBatch:
    return rows(*shape, block_size=block_size, num_blocks=POOL // block_size)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=1e-2)


@PACKAGES
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    "shape",
    [
        [(0, 300), (0, 1), (0, 65)],
        [(256, 40), (511, 130), (16, 3)],
        [(10, 1), (0, 70), (1000, 1), (250, 6), (0, 1)],
        [(0, 1), (15, 1), (16, 1), (255, 1), (256, 1), (1900, 1)],
    ],
    ids=["prefill", "chunks", "mixed", "decode"],
)
def test_results_are_those_of_triton(
    shape: list[tuple[int, int]], head_dim: int, package: str, block_size: int
) -> None:
    flash, own = made(package), TritonPagedAttention(132)
    host = build_forward_batch(scheduled(shape, block_size), block_size)
    q, caches = inputs(host.num_tokens, block_size, head_dim)
    moved = host.to(DEVICE)
    found, expected = (each.forward(q, caches[0], caches[1], SCALE, each.plan(host, moved)) for each in (flash, own))
    near(found, expected)


@PACKAGES
def test_a_captured_step_follows_its_inbox(package: str, block_size: int) -> None:
    """One graph of 8 rows: long contexts first, then fewer and shorter ones beside rows of padding, then long again."""
    flash, own, size, widest = made(package), TritonPagedAttention(132), 8, 4096 // block_size
    q, caches = inputs(size, block_size, 128)
    inbox = torch.zeros(packed_size(decode_shapes(size, widest)), dtype=torch.int32, device=DEVICE)
    tables = torch.zeros(size, widest, dtype=torch.int32, device=DEVICE)
    static: ForwardBatch = decode_batch_of(inbox, size, tables, block_size)
    plan = flash.plan(static)

    def step() -> torch.Tensor:
        source = static.packed[packed_size(decode_shapes(size, 0)) :]
        spread_tables(source, static.table_width, static.block_tables)
        out: torch.Tensor = flash.forward(q, caches[0], caches[1], SCALE, plan)
        return out

    stream = torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize(DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = step()
    for contexts in ([100, 4000, 256, 255, 257, 1, 700, 16], [30, 5, 512], [2000] * 7):
        shape = [(context - 1, 1) for context in contexts]
        host = build_forward_batch(scheduled(shape, block_size), block_size, num_padding=size - len(contexts))
        inbox[: host.packed.shape[0]].copy_(host.packed)
        graph.replay()
        expected = own.forward(q, caches[0], caches[1], SCALE, own.plan(host, host.to(DEVICE)))
        near(out[: len(contexts)], expected[: len(contexts)])
        assert out.isfinite().all(), "rows of padding too"
    graph.reset()


@PACKAGES
@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
def test_engines_say_what_they_say_with_triton(
    package: str, block_size: int, enforce_eager: bool, other_toy: Path
) -> None:
    """The first tokens, before rounding can lead elsewhere: those of float32 on the CPU, nearly all."""
    made(package)
    asked = [(prompt, greedy(3)) for prompt in prompts(40, 11, 3)]
    with make_llm(other_toy, "cpu") as llm:
        expected = tokens(llm, asked)
    options = {**ROOMY, "block_size": block_size, "num_kvcache_blocks": 64, "enforce_eager": enforce_eager}
    with make_llm(other_toy, dtype="bfloat16", attention_backend="flash_attn", **options) as llm:
        found = tokens(llm, asked)
    pairs = [pair for lists in zip(found, expected, strict=True) for pair in zip(*lists, strict=True)]
    assert len(pairs) == 9 and sum(one == other for one, other in pairs) >= 7
