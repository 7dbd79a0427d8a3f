"""The flash-attn backends against plain torch on ragged paged batches, and one backend a phase."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from nvexplore.backends.attention.by_phase import AttentionByPhase, names_by_phase
from nvexplore.backends.attention.flash_attn import FlashAttention2, FlashAttention4
from nvexplore.backends.attention.torch_paged import TorchPagedAttention
from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch
from nvexplore.sampling_params import SamplingParams
from tests.fake_flash_attn import Calls, install

HEADS, KV_HEADS, HEAD_DIM, SCALE = 4, 2, 16, 0.3
MIXES = {  # (computed, count) of each row; two blocks of 256 for some
    "prefill": ((0, 12), (0, 270), (0, 1)),
    "chunk with a cached prefix": ((256, 5), (300, 20)),
    "mixed": ((10, 1), (0, 7), (513, 1), (255, 6), (0, 1)),
    "decode": ((8, 1), (0, 1), (255, 1), (256, 1), (700, 1)),
    "padded": ((7, 1), (300, 1)),
}


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    install(monkeypatch, calls)
    return calls


def batch_of(mix: str, block_size: int) -> tuple[ForwardBatch, Tensor]:
    """A batch on blocks in random order, and where its pool [num_blocks, block_size] holds a context."""
    rows = MIXES[mix]
    counts = [-(-(computed + count) // block_size) for computed, count in rows]
    free = random.Random(0).sample(range(sum(counts) + 2), sum(counts) + 2)
    held = torch.zeros(len(free), block_size, dtype=torch.bool)
    batch = ScheduledBatch()
    for seq_id, ((computed, count), num_blocks) in enumerate(zip(rows, counts, strict=True)):
        seq = Sequence(seq_id, [0] * (computed + count), SamplingParams(), request_id=str(seq_id))
        seq.num_computed_tokens = computed
        seq.block_table = [free.pop() for _ in range(num_blocks)]
        batch.add(seq, count, is_prefill=mix not in ("decode", "padded") and count > 1)
        for position in range(computed + count):
            held[seq.block_table[position // block_size], position % block_size] = True
    return build_forward_batch(batch, block_size, num_padding=3 if mix == "padded" else 0), held


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    ("package", "block_size"),
    [(FlashAttention2, 256), (FlashAttention2, 512), (FlashAttention4, 16), (FlashAttention4, 256)],
)
def test_results_are_those_of_plain_torch(
    package: type[FlashAttention2 | FlashAttention4], block_size: int, mix: str, dtype: torch.dtype, calls: Calls
) -> None:
    """What no context holds is NaN for flash-attn 2, which leaves it out, and large for flash-attn-4."""
    calls.as_tuple = dtype is torch.bfloat16
    host, held = batch_of(mix, block_size)
    if mix in ("padded", "mixed"):
        assert (host.block_tables < 0).any(), "or nothing is shown about -1"
    trap = torch.nan if package is FlashAttention2 else 1e3
    caches = torch.randn(2, *held.shape, KV_HEADS, HEAD_DIM).to(dtype)
    caches[:, ~held] = trap
    q = torch.randn(host.num_tokens, HEADS, HEAD_DIM).to(dtype)
    found, expected = package(), TorchPagedAttention(dtype)
    out = found.forward(q, caches[0], caches[1], SCALE, found.plan(host, host.to(torch.device("cpu"))))
    reference = expected.forward(q, caches[0], caches[1], SCALE, expected.plan(host))
    assert out.shape == q.shape and out.dtype == dtype and out.isfinite().all()
    real = host.num_tokens - host.num_padding
    limit = 1e-2 if dtype is torch.bfloat16 else 2e-3
    torch.testing.assert_close(out[:real].float(), reference[:real].float(), rtol=limit, atol=limit)
    if package is FlashAttention2:
        assert (out[real:] == 0).all()
        assert calls.names == ["with_kvcache" if mix in ("decode", "padded") else "varlen"]
    else:
        assert calls.names == ["cute"]


def test_one_plan_serves_all_layers_and_leaves_the_batch_alone(calls: Calls) -> None:
    host, held = batch_of("padded", 256)
    tables = host.block_tables.clone()
    found = FlashAttention2()
    plan = found.plan(host, host)
    q = torch.randn(host.num_tokens, HEADS, HEAD_DIM).to(torch.float16)
    outs = []
    for _ in range(2):
        caches = torch.randn(2, *held.shape, KV_HEADS, HEAD_DIM).to(torch.float16)
        outs.append(found.forward(q, caches[0], caches[1], SCALE, plan))
    assert not torch.equal(*outs) and torch.equal(host.block_tables, tables) and (tables < 0).any()
    found.close()
    found.close()


class Fake:
    """A PagedAttention that remembers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Any] = []

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> Any:
        self.seen.append((host, batch))
        return f"plan of {self.name}"

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: Any) -> Tensor:
        self.seen.append(plan)
        return q + 1

    def close(self) -> None:
        self.seen.append("closed")


@pytest.mark.parametrize(("mix", "phase"), [("mixed", 0), ("prefill", 0), ("decode", 1), ("padded", 1)])
def test_each_phase_has_its_own(mix: str, phase: int) -> None:
    both = Fake("one"), Fake("other")
    combined = AttentionByPhase(*both)
    host, _ = batch_of(mix, 256)
    q = torch.zeros(1)
    out = combined.forward(q, q, q, SCALE, combined.plan(host, host))
    combined.close()
    name = both[phase].name
    assert both[phase].seen == [(host, host), f"plan of {name}", "closed"] and both[1 - phase].seen == ["closed"]
    assert out.item() == 1 and combined.name == "one+other"


def test_names_by_phase_are_of_what_runs() -> None:
    """Decode rows in a step with prompts run on what prompts run on."""
    combined = AttentionByPhase(Fake("one"), Fake("other"))
    assert names_by_phase(combined, 2, 0) == ("one", None)
    assert names_by_phase(combined, 0, 2) == (None, "other")
    assert names_by_phase(combined, 1, 2) == ("one", "one")
    assert names_by_phase(Fake("one"), 1, 2) == ("one", "one")
    assert names_by_phase(Fake("one"), 0, 0) == (None, None)
