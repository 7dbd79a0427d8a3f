"""The GPU's backend against the CPU's, operation by operation, on the same ragged batches."""

from __future__ import annotations

import math

import pytest
import torch

from nvexplore.backends.cuda_graphs import ladder
from nvexplore.engine.batch import Dispatch
from nvexplore.layers.controls import Controls
from nvexplore.layers.embedding import Embedding, LMHead
from nvexplore.layers.norm import RMSNorm
from nvexplore.layers.parameter import Placement
from nvexplore.runner.forward_batch import build_forward_batch
from tests.kernels.backends import CPU, attention_layer, cpu_backend, gpu_backend, near, rows
from tests.kernels.places import Place

MIXES = {
    "mixed": ((10, 1), (0, 7), (33, 1), (5, 6), (0, 1)),
    "decode": ((8, 1), (0, 1), (35, 1)),
    "prefill": ((0, 12), (4, 3)),
    "padded": ((7, 1), (11, 1)),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    ("architecture", "block_size", "heads", "head_dim"),
    [("LlamaForCausalLM", 4, (4, 2), 16), ("Qwen3ForCausalLM", 3, (6, 2), 64)],
)
def test_a_step_of_attention(
    architecture: str, block_size: int, heads: tuple[int, int], head_dim: int, mix: str, kv_place: Place
) -> None:
    """V24: norm, rotation, store, then attention over what was stored; prompts twice with one plan, as two layers do.

    The pool is NaN where no context is; both backends leave it NaN there, in its last block above all. Where the pool
    has 8 bits, both attend over what one of them stored: keys apart by a rounding may be kept an eighth apart.
    """
    num_blocks, num_padding = 40, 3 if mix == "padded" else 0
    scheduled = rows(*MIXES[mix], block_size=block_size, num_blocks=num_blocks)
    host = build_forward_batch(scheduled, block_size, num_padding=num_padding)
    shape = num_blocks, block_size, heads[1], head_dim
    pools = torch.full((2, *shape), torch.nan)
    for seq in scheduled.seqs:
        for position in range(seq.num_computed_tokens):
            block = seq.block_table[position // block_size]
            pools[:, block, position % block_size] = torch.randn(2, heads[1], head_dim)
    dtype, cpu_place = kv_place.dtype, kv_place._replace(device=CPU)
    qkv = torch.randn(host.num_tokens, (heads[0] + 2 * heads[1]) * head_dim).to(dtype)
    found: list[tuple[torch.Tensor, ...]] = []
    for backend, where in ((gpu_backend(kv_place), kv_place), (cpu_backend(dtype), cpu_place)):
        layer = attention_layer(architecture, heads, head_dim, where)
        layer.k_cache, layer.v_cache = pools.to(where.kv_dtype).to(where.device).clone()
        batch = backend.begin(build_forward_batch(scheduled, block_size, num_padding=num_padding))
        for _ in range(2 if mix == "prefill" else 1):
            q = backend.qk_norm_rope_store(qkv.to(where.device).clone(), layer, batch)
            stored = layer.k_cache.clone(), layer.v_cache.clone()
            if found and where.narrow:
                layer.k_cache.copy_(found[0][2])
                layer.v_cache.copy_(found[0][3])
            out = backend.attention(q, layer, batch)
        found.append((q, out, *stored))
    assert found[0][1].shape == (host.num_tokens, heads[0] * head_dim)
    for actual, expected in zip(*found, strict=True):
        near(actual, expected, actual.dtype)
    assert found[0][2][-1].float().isnan().all() and found[0][3][-1].float().isnan().all()


def test_operations_on_rows(place: Place) -> None:
    backend, reference = gpu_backend(place), cpu_backend(place.dtype)
    x, residual, gate_up = place.randn(5, 48), place.randn(5, 48), place.randn(5, 2 * 48)
    norms = []
    for device in (place.device, CPU):
        norms.append(RMSNorm(48, 1e-5, placement=Placement(place.dtype, device)))
        norms[-1].weight.copy_(torch.linspace(0.5, 1.5, 48))
    for given in (residual, None):
        copies = [None if given is None else given.clone(), None if given is None else given.cpu().clone()]
        actual = backend.add_rms_norm(x.clone(), copies[0], norms[0])
        expected = reference.add_rms_norm(x.cpu().clone(), copies[1], norms[1])
        for one, other in zip(actual, expected, strict=True):
            near(one, other, place.dtype)
    near(backend.silu_mul(gate_up.clone()), reference.silu_mul(gate_up.cpu().clone()), place.dtype)


def test_embedding_and_logits(place: Place) -> None:
    backend, reference = gpu_backend(place), cpu_backend(place.dtype)
    weights = torch.randn(100, 32).to(place.dtype)
    ids, hidden, chosen = torch.tensor([3, 99, 0, 3], dtype=torch.int32), place.randn(4, 32), [3, 0]
    layers = []
    for device in (place.device, CPU):
        placement = Placement(place.dtype, device)
        embedding = Embedding(100, 32, placement=placement)
        embedding.weight.copy_(weights)
        layers.append((embedding, LMHead(100, 32, placement=placement, tied_to=embedding)))
    assert torch.equal(backend.embedding(ids.to(place.device), layers[0][0]).cpu(), weights[ids.long()])
    for rows_wanted in (None, chosen):
        index = None if rows_wanted is None else place.ints(rows_wanted)
        actual = backend.logits(hidden, index, layers[0][1])
        expected = reference.logits(hidden.cpu(), None if index is None else index.cpu(), layers[1][1])
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-2, atol=0.1 if place.dtype.itemsize == 2 else 1e-4)


def controls(rows_asking: list[int], **values: float) -> Controls:
    """Penalties, filters and one banned token for each of these rows."""
    count = len(rows_asking)

    def full(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((count,), values.get(name, default), dtype=dtype)

    numbers = torch.arange(count)
    return Controls(
        rows=torch.tensor(rows_asking),
        repetition=full("repetition", 1, torch.float32),
        frequency=full("frequency", 0, torch.float32),
        presence=full("presence", 0, torch.float32),
        top_k=full("top_k", 0, torch.int64),
        top_p=full("top_p", 1, torch.float64),
        min_p=full("min_p", 0, torch.float64),
        seen_rows=numbers,
        seen_ids=torch.full((count,), 3),
        seen_counts=torch.full((count,), 2),
        banned_rows=numbers,
        banned_ids=torch.full((count,), 4),
    )


def test_sampling_with_controls(device: torch.device) -> None:
    """Greedy rows choose what the CPU's do, drawn ones what a filter leaves; a row of NaN is marked, and no other."""
    place = Place(device, torch.float32)
    backend, reference = gpu_backend(place), cpu_backend(torch.float32)
    host = build_forward_batch(rows(*[(2, 1)] * 6, block_size=4, num_blocks=9), 4)
    logits = torch.randn(6, 300)
    logits[:, 3], logits[:, 4], logits[:, 5] = 9.0, 8.0, 7.5
    logits[2, 100] = math.nan
    host.temperatures.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, 1.0]))
    host.controls = controls([0, 2, 3], frequency=1.0, repetition=1.1, top_k=1)
    found = backend.sample(logits.to(device), backend.begin(host)).tolist()
    expected = reference.sample(logits, reference.begin(host)).tolist()
    assert found[:5] == expected[:5] == [5, 3, -1, 5, 3]
    assert 0 <= found[5] < 300


def test_dispatch_names_what_runs(device: torch.device) -> None:
    backend = gpu_backend(Place(device, torch.float32))
    assert backend.dispatch(2, 3) == Dispatch(None, None, "prefill", "triton", "triton")
    assert backend.dispatch(0, 3) == Dispatch(None, None, "enforce_eager", None, "triton")
    backend.close()
    backend.close()
    assert backend.dispatch(0, 1).eager_reason == "the engine is closed"


@pytest.mark.parametrize("largest", [1, 2, 3, 6, 8, 12, 17, 37, 64, 65, 100, 200, 512])
def test_n12_graphs_of_every_batch_size(largest: int) -> None:
    """nano-vllm PR#216: sizes stopped at a multiple of 16, so that a larger batch had none."""
    sizes = ladder(largest)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == largest
    for rows_of_step in range(1, largest + 1):
        size = min(size for size in sizes if size >= rows_of_step)
        assert size - rows_of_step < max(8, 16 if rows_of_step > 64 else 8)
