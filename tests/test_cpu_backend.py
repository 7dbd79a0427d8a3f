"""The CPU backend's operations one by one, on poisoned memory, against plain formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nvexplore.backends import Backend, create_backend
from nvexplore.backends.attention.torch_paged import TorchPagedAttention
from nvexplore.backends.packed_linear import PackedLinears
from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers.attention import Attention
from nvexplore.layers.parameter import Placement
from nvexplore.layers.rotary import RotaryTable
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.forward_batch import build_forward_batch
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def backend() -> Backend:
    return create_backend("cpu", torch.float32)


def attention_layer(architecture: str, heads: int, kv_heads: int, head_dim: int) -> Attention:
    config = ModelConfig.from_dict(
        {
            "architectures": [architecture],
            "vocab_size": 8,
            "hidden_size": 32,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
        }
    )
    rotary = RotaryTable(config.rope, head_dim, 64, CPU)
    layer = Attention(config, rotary, Placement(torch.float32, CPU))
    for norm in (layer.q_norm, layer.k_norm):
        if norm is not None:
            norm.weight.copy_(torch.rand(head_dim) + 0.5)
    return layer


def rows(*shape: tuple[int, int], block_size: int, num_blocks: int, seed: int = 0) -> ScheduledBatch:
    """A row for each (computed, count), on distinct blocks in random order."""
    free = random.Random(seed).sample(range(num_blocks), num_blocks)
    batch = ScheduledBatch()
    for seq_id, (computed, count) in enumerate(shape):
        seq = Sequence(seq_id, [0] * (computed + count), SamplingParams(), request_id=str(seq_id))
        seq.num_computed_tokens = computed
        seq.block_table = [free.pop() for _ in range(-(-(computed + count) // block_size))]
        batch.add(seq, count, is_prefill=count > 1)
    return batch


def test_create_backend_refuses_by_name() -> None:
    with pytest.raises(ValueError, match=r"device='cuda:99': torch and triton see \d+ GPUs here"):
        create_backend("cuda:99", torch.float32)
    with pytest.raises(ValueError, match=r"device='meta': no backend for it \(available: 'cpu', 'cuda'\)"):
        create_backend("meta", torch.float32)
    with pytest.raises(ValueError, match="device='gpu': must be 'auto', 'cpu', 'cuda' or 'cuda:1'"):
        create_backend("gpu", torch.float32)
    with pytest.raises(ValueError, match=r"attention_backend='flash_attn'.*cpu \(available: auto, torch\)"):
        create_backend("cpu", torch.float32, "flash_attn")
    with pytest.raises(ValueError, match=r"dtype=torch\.float64"):
        create_backend("cpu", torch.float64)
    assert create_backend("cpu", torch.bfloat16, "torch").dtype == torch.bfloat16


def test_dispatch_names_what_runs(backend: Backend) -> None:
    assert backend.dispatch(2, 3) == Dispatch(None, None, "cpu", "torch", "torch")
    assert backend.dispatch(1, 0) == Dispatch(None, None, "cpu", "torch", None)
    assert backend.dispatch(0, 1) == Dispatch(None, None, "cpu", None, "torch")


def test_v24_slot_minus_one_is_skipped(backend: Backend) -> None:
    """Slots [2, -1, -1] in a pool of 8: only slot 2 changes, and above all not slot 7."""
    layer = attention_layer("LlamaForCausalLM", 4, 2, 16)
    decode = rows((2, 1), block_size=4, num_blocks=1)
    batch = backend.begin(build_forward_batch(decode, 4, num_padding=2))
    assert batch.slot_mapping.tolist() == [2, -1, -1]
    layer.k_cache, layer.v_cache = torch.rand(2, 4, 2, 16), torch.rand(2, 4, 2, 16)
    before = [layer.k_cache.clone(), layer.v_cache.clone()]
    q = backend.qk_norm_rope_store(torch.randn(3, 8 * 16), layer, batch)
    for old, new in zip(before, (layer.k_cache, layer.v_cache), strict=True):
        changed = (old != new).flatten(0, 1).flatten(1).any(dim=1)
        assert changed.nonzero().flatten().tolist() == [2]
    out = backend.attention(q, layer, batch)
    assert out.isfinite().all()


def test_v24_padding_changes_no_other_row(backend: Backend) -> None:
    layer = attention_layer("Qwen3ForCausalLM", 4, 2, 16)
    decode = rows((5, 1), (2, 1), (11, 1), block_size=4, num_blocks=8)
    pool = torch.randn(2, 8, 4, 2, 16)
    qkv = torch.randn(4, 8 * 16)
    results = []
    for num_padding in (0, 1):
        layer.k_cache, layer.v_cache = pool.clone()
        batch = backend.begin(build_forward_batch(decode, 4, num_padding=num_padding))
        q = backend.qk_norm_rope_store(qkv[: 3 + num_padding].clone(), layer, batch)
        out = backend.attention(q, layer, batch)[:3]
        results.append((out, layer.k_cache, layer.v_cache))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_norm_rope_and_store_follow_the_formula(backend: Backend, architecture: str) -> None:
    layer = attention_layer(architecture, 6, 3, 8)
    batch = backend.begin(build_forward_batch(rows((3, 2), (0, 4), block_size=2, num_blocks=9), 2))
    layer.k_cache, layer.v_cache = torch.full((2, 9, 2, 3, 8), torch.nan)
    qkv = torch.randn(6, 12 * 8)
    heads = qkv.double().view(6, 12, 8)
    q = backend.qk_norm_rope_store(qkv.clone(), layer, batch)
    for token, (position, slot) in enumerate(zip(batch.positions.tolist(), batch.slot_mapping.tolist(), strict=True)):
        for head in range(9):
            x = heads[token, head]
            norm = layer.q_norm if head < 6 else layer.k_norm
            if norm is not None:
                x = x / (x.square().mean() + norm.eps).sqrt() * norm.weight.double()
            turned = torch.empty(8, dtype=torch.float64)
            for i in range(4):
                angle = position * 10000.0 ** (-2 * i / 8)
                turned[i] = x[i] * math.cos(angle) - x[i + 4] * math.sin(angle)
                turned[i + 4] = x[i + 4] * math.cos(angle) + x[i] * math.sin(angle)
            where = q[token, head] if head < 6 else layer.k_cache.flatten(0, 1)[slot, head - 6]
            assert (where - turned).abs().max() < 1e-5
        assert torch.equal(layer.v_cache.flatten(0, 1)[slot], qkv.view(6, 12, 8)[token, 9:])
    assert layer.k_cache.isfinite().all(dim=-1).sum() == 6 * 3


def plain_attention(q: Tensor, keys: Tensor, values: Tensor, positions: list[int], scale: float) -> Tensor:
    """One sequence in float64, one token and one head at a time."""
    out = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[1] // keys.shape[1]
    for token, position in enumerate(positions):
        for head in range(q.shape[1]):
            k = keys[: position + 1, head // group].double()
            weights = torch.softmax(k @ q[token, head].double() * scale, dim=0)
            out[token, head] = weights @ values[: position + 1, head // group].double()
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_attention_of_any_mix_of_rows(block_size: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    """Chunks, prefix hits, decodes of very different length, in random order; all else in the pool is NaN."""
    torch.manual_seed(block_size)
    num_blocks, head_dim = 150, 16
    limit = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    attention = TorchPagedAttention(dtype)
    mixes = [
        ((10, 1), (0, 7), (3, 1), (40, 1), (5, 6), (12, 1), (0, 1)),
        ((8, 1), (9, 1), (9, 1), (8, 1)),
        ((0, 12),),
        ((30, 1),),
    ]
    for mix in mixes:
        scheduled = rows(*mix, block_size=block_size, num_blocks=num_blocks, seed=len(mix))
        batch = build_forward_batch(scheduled, block_size)
        cache = torch.full((2, num_blocks, block_size, heads[1], head_dim), torch.nan, dtype=dtype)
        q = torch.randn(batch.num_tokens, heads[0], head_dim).to(dtype)
        expected = []
        for row, seq in enumerate(scheduled.seqs):
            length = int(batch.context_lens[row])
            kv = torch.randn(2, length, heads[1], head_dim).to(dtype)
            for position in range(length):
                block = seq.block_table[position // block_size]
                cache[:, block, position % block_size] = kv[:, position]
            tokens = slice(int(batch.cu_seqlens_q[row]), int(batch.cu_seqlens_q[row + 1]))
            positions = batch.positions[tokens].tolist()
            expected.append(plain_attention(q[tokens], kv[0], kv[1], positions, 0.3))
        before = cache.clone()
        for _ in range(2):  # the second time in used buffers
            out = attention.forward(q, cache[0], cache[1], 0.3, attention.plan(batch))
            assert out.dtype == dtype
            assert (out - torch.cat(expected)).abs().max() < limit
        assert torch.equal(cache.isnan(), before.isnan())
    attention.close()
    attention.close()


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize(
    "tables", [[[3, 4, 5, 6, 7, 8, 9]], [[3, 5, 4, 6, 7, 8, 9]], [[7, 6, 5, 4, 3, 2, 1]], [[0, 1, 2, 4, 5, 6, 8]]]
)
@pytest.mark.parametrize("count", [1, 3])
def test_blocks_that_lie_side_by_side_are_not_copied(block_size: int, tables: list[list[int]], count: int) -> None:
    """A view of the pool, or a gathered copy: the same numbers, and nothing but the context is looked at."""
    torch.manual_seed(0)
    (table,) = tables
    context = 7 * block_size - (block_size > 1)
    scheduled = rows((context - count, count), block_size=block_size, num_blocks=12)
    scheduled.seqs[0].block_table = table
    batch = build_forward_batch(scheduled, block_size)
    cache = torch.full((2, 12, block_size, 2, 16), torch.nan)
    kv = torch.randn(2, context, 2, 16)
    for position in range(context):
        cache[:, table[position // block_size], position % block_size] = kv[:, position]
    attention, q = TorchPagedAttention(torch.float32), torch.randn(count, 4, 16)
    (part,) = plan = attention.plan(batch)
    assert isinstance(part.slots, slice) == (table == list(range(3, 10)))
    out = attention.forward(q, cache[0], cache[1], 0.3, plan)
    assert (out - plain_attention(q, *kv, batch.positions.tolist(), 0.3)).abs().max() < 1e-5


def test_decode_rows_of_very_different_length_are_not_padded_to_the_longest() -> None:
    attention = TorchPagedAttention(torch.float32)
    scheduled = rows((99, 1), (0, 1), (59, 1), (9, 1), (7, 1), block_size=4, num_blocks=60)
    plan = attention.plan(build_forward_batch(scheduled, 4))
    sizes = [s.stop - s.start if isinstance(s, slice) else len(s) for s in (part.slots for part in plan)]
    gathered = sum(sizes)
    assert gathered == 2 * 100 + 2 * 10 + 1
    tokens = sorted(token for part in plan for token in part.tokens.tolist())
    assert tokens == [0, 1, 2, 3, 4]


def test_add_rms_norm(backend: Backend) -> None:
    from nvexplore.layers.norm import RMSNorm

    norm = RMSNorm(16, 1e-3, placement=Placement(torch.float32, CPU))
    norm.weight.copy_(torch.rand(16))
    x, residual = torch.randn(3, 16), torch.randn(3, 16)
    total = x + residual
    expected = total * (total.square().mean(dim=1, keepdim=True) + 1e-3).rsqrt() * norm.weight
    normed, summed = backend.add_rms_norm(x.clone(), residual.clone(), norm)
    assert torch.equal(summed, total)
    torch.testing.assert_close(normed, expected)
    first, kept = backend.add_rms_norm(total.clone(), None, norm)
    assert torch.equal(kept, total)
    torch.testing.assert_close(first, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 16, 17])
def test_norms_of_few_rows_take_another_way_to_the_same_result(rows: int, dtype: torch.dtype, tmp_path: Path) -> None:
    backend = create_backend("cpu", dtype)
    config = ModelConfig.from_path(make_toy(tmp_path, "llama", rms_norm_eps=1e-3, num_layers=1))
    model = CausalLM(config, max_positions=8, placement=Placement(dtype, CPU))
    for parameter in model.parameters():
        parameter.normal_()
    backend.prepare_weights(model)
    norm = model.model.norm
    for scale in (1e-3, 1.0, 100.0):
        x, residual = (torch.randn(rows, 64).mul(scale).to(dtype) for _ in range(2))
        total = x + residual
        exact = total.double()
        expected = exact * (exact.square().mean(dim=1, keepdim=True) + 1e-3).rsqrt() * norm.weight.double()
        normed, summed = backend.add_rms_norm(x, residual, norm)
        assert torch.equal(summed, total)
        assert normed.shape == total.shape and normed.dtype == dtype
        assert (normed - expected).abs().max() <= 8 * torch.finfo(dtype).eps * expected.abs().max()
    backend.close()
    backend.close()


def test_weights_are_packed_only_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig.from_path(make_toy(tmp_path, "llama", num_layers=1))
    model = CausalLM(config, max_positions=8, placement=Placement(torch.bfloat16, CPU))
    size = sum(p.nbytes for name, p in model.named_parameters() if "norm" not in name)  # the tied head is the embedding
    for free, count in ((4 * size, 5), (4 * size - 4, 0)):
        monkeypatch.setattr("nvexplore.backends.cpu._free_memory", lambda free=free: free)
        packed: list[object] = []
        monkeypatch.setattr(PackedLinears, "pack", lambda self, layer, packed=packed: packed.append(layer))
        create_backend("cpu", torch.bfloat16).prepare_weights(model)
        assert len(packed) == count


def test_silu_mul(backend: Backend) -> None:
    gate_up = torch.randn(3, 10)
    gate, up = gate_up[:, :5], gate_up[:, 5:]
    torch.testing.assert_close(backend.silu_mul(gate_up.clone()), gate / (1 + (-gate).exp()) * up)


def test_free_memory_is_the_smaller_of_machine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nvexplore.backends import cpu

    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  5000 kB\n",
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/memory.current": "1000\n",
    }

    def read_text(path: Path) -> str:
        try:
            return files[str(path)]
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(Path, "read_text", read_text)
    assert cpu._free_memory() == 5000 << 10
    files["/sys/fs/cgroup/memory.max"] = "4000\n"
    assert cpu._free_memory() == 3000
    files["/sys/fs/cgroup/memory.max"] = "500\n"
    assert cpu._free_memory() == 0
    # What the kernel keeps of files that nobody uses any more is in "current", and makes room when it is asked to.
    stat = "/sys/fs/cgroup/memory.stat"
    for limit, current, cached, free in ((4000, 3000, 2500, 3500), (4000, 3000, 9999, 4000), (500, 1000, 600, 100)):
        files["/sys/fs/cgroup/memory.max"] = f"{limit}\n"
        files["/sys/fs/cgroup/memory.current"] = f"{current}\n"
        files[stat] = f"anon 77\nfile 12345\ninactive_file_x 1\ninactive_file {cached}\nactive_file 4\n"
        assert cpu._free_memory() == free
    files[stat] = "anon 77\n"
    assert cpu._free_memory() == 0
    files |= {"/sys/fs/cgroup/memory.max": f"{1 << 50}\n", stat: "inactive_file 8\n"}
    assert cpu._free_memory() == 5000 << 10  # the machine has less
    files.clear()
    assert cpu._free_memory() > 0
