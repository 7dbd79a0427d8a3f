"""The compiled layers against the CPU's operations and against the fused kernels, which they stand in for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from nvexplore import backends
from nvexplore.backends import create_backend
from nvexplore.backends.compiled_layers import CompiledCudaBackend, draw
from nvexplore.backends.kernels.gumbel import gumbel_sample
from nvexplore.layers.norm import RMSNorm
from nvexplore.layers.parameter import Placement
from nvexplore.runner import model_runner
from nvexplore.runner.forward_batch import build_forward_batch
from nvexplore.runner.sample_keys import sample_key
from nvexplore.toy import make_toy
from tests.kernels.backends import CPU, attention_layer, cpu_backend, gpu_backend, near, rows
from tests.kernels.fake_graphs import use_fake_graphs
from tests.kernels.places import Place
from tests.kernels.test_cuda_backend import controls
from tests.parity import engine_tokens

# On a GPU the compiler wants float32 to be rounded to 19 bits, and uses what torch itself calls deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]

ROWS = ((10, 1), (0, 7), (33, 1), (5, 6), (0, 1))


def compiled_backend(place: Place, compiler: Any = None) -> CompiledCudaBackend:
    """With the real compiler on a GPU; without one, the functions run as torch traced them."""
    compiler = compiler or ("inductor" if place.device.type == "cuda" else "eager")
    return CompiledCudaBackend(place.device, place.dtype, gpu_backend(place)._attention, compiler=compiler)


def norm(size: int, place: Place) -> RMSNorm:
    layer = RMSNorm(size, 1e-5, placement=Placement(place.dtype, place.device))
    layer.weight.copy_(torch.linspace(0.5, 1.5, size))
    return layer


@pytest.mark.parametrize("num_padding", [0, 3])
@pytest.mark.parametrize(
    ("architecture", "block_size", "heads", "head_dim"),
    [("LlamaForCausalLM", 4, (4, 2), 16), ("Qwen3ForCausalLM", 3, (6, 2), 64)],
)
def test_norm_rotation_and_store(
    architecture: str, block_size: int, heads: tuple[int, int], head_dim: int, num_padding: int, kv_place: Place
) -> None:
    """V24: the pool is NaN before; afterwards it is so everywhere but where the CPU's backend wrote."""
    scheduled = rows(*ROWS, block_size=block_size, num_blocks=40)
    host = build_forward_batch(scheduled, block_size, num_padding=num_padding)
    dtype, cpu_place = kv_place.dtype, kv_place._replace(device=CPU)
    qkv = torch.randn(host.num_tokens, (heads[0] + 2 * heads[1]) * head_dim).to(dtype)
    found = []
    for backend, where in ((compiled_backend(kv_place), kv_place), (cpu_backend(dtype), cpu_place)):
        layer = attention_layer(architecture, heads, head_dim, where)
        layer.k_cache, layer.v_cache = where.pool(2, 40, block_size, heads[1], head_dim)
        batch = backend.begin(build_forward_batch(scheduled, block_size, num_padding=num_padding))
        q = backend.qk_norm_rope_store(qkv.to(where.device).clone(), layer, batch)
        found.append((q, layer.k_cache, layer.v_cache))
    assert found[0][0].is_contiguous(), "as the attention kernels read it"
    for actual, expected in zip(*found, strict=True):
        near(actual, expected, actual.dtype)


@pytest.mark.parametrize("count", [1, 5])
def test_operations_on_rows(count: int, place: Place) -> None:
    backend, reference, here = compiled_backend(place), cpu_backend(place.dtype), Place(CPU, place.dtype)
    x, residual, gate_up = here.randn(count, 48), here.randn(count, 48), here.randn(count, 2 * 48)
    for given in (residual, None):
        actual = backend.add_rms_norm(
            x.to(place.device), None if given is None else given.to(place.device), norm(48, place)
        )
        expected = reference.add_rms_norm(x.clone(), None if given is None else given.clone(), norm(48, here))
        for one, other in zip(actual, expected, strict=True):
            assert one.dtype == place.dtype
            near(one, other, place.dtype)
    near(backend.silu_mul(gate_up.to(place.device)), reference.silu_mul(gate_up.clone()), place.dtype)


@pytest.mark.parametrize("vocab", [1, 1000, 4096, 4097, 9000])
def test_draws_are_those_of_the_fused_sampler(vocab: int, place: Place) -> None:
    """Greedy rows, mild and hot ones, and one so hot that no logit matters; keys with every bit in use."""
    temperatures = torch.tensor([0.0, 1.0, 0.3, 5.0, 1e38, 0.0], device=place.device)
    keys = torch.tensor([sample_key(7, row, 1) for row in range(6)], device=place.device)
    assert (keys < 0).any() and (keys > 2**32).any()
    logits = place.randn(6, vocab, scale=3.0)
    kept = logits.clone()
    found = draw(logits, temperatures, keys, torch.arange(logits.shape[1], device=logits.device))
    assert found.dtype == torch.int64 and torch.equal(logits, kept)
    assert found.tolist() == gumbel_sample(logits, temperatures, keys).tolist()
    if vocab >= 4096:
        assert len(set(found.tolist())) == 6, "or the rows show too little"


def test_ties_and_broken_rows(device: torch.device) -> None:
    logits = torch.full((6, 5000), -2.0, device=device)
    logits[0, [1500, 4096]] = 5.0
    logits[1, 4999] = math.nan
    logits[2, 3] = math.inf
    logits[3] = -math.inf
    logits[4, 7] = math.nan
    logits[5, :4097] = -math.inf
    temperatures = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 0.0], device=device)
    rows, ids = (torch.arange(size, device=device) for size in logits.shape)
    assert draw(logits, temperatures, rows, ids).tolist() == [1500, -1, -1, -1, -1, 4097]


def test_controls_change_the_logits_before_the_draw(device: torch.device) -> None:
    place = Place(device, torch.float32)
    host = build_forward_batch(rows(*[(2, 1)] * 5, block_size=4, num_blocks=9), 4)
    host.temperatures.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]))
    host.controls = controls([0, 2, 3], frequency=1.0, repetition=1.1, top_k=1)
    logits = place.randn(5, 300)
    logits[:, 3], logits[:, 4], logits[:, 5] = 9.0, 8.0, 7.5
    made = compiled_backend(place), gpu_backend(place)
    found = [backend.sample(logits, backend.begin(host)).tolist() for backend in made]
    assert found[0] == found[1] and found[0][:4] == [5, 3, 5, 5]


def run_all(backend: CompiledCudaBackend, count: int, size: int) -> None:
    """Every compiled function on ``count`` rows, in layers of ``size``, each twice as if in two layers."""
    place = Place(CPU, torch.float32)
    host = build_forward_batch(rows(*[(2, 1)] * count, block_size=4, num_blocks=count + 1), 4)
    batch = backend.begin(host)
    for _ in range(2):
        layer = attention_layer("Qwen3ForCausalLM", (4, 2), size, place)
        layer.k_cache, layer.v_cache = place.nans(2, count + 1, 4, 2, size)
        x = place.randn(count, size)
        backend.add_rms_norm(x.clone(), None, norm(size, place))
        backend.add_rms_norm(x.clone(), x.clone(), norm(size, place))
        backend.qk_norm_rope_store(place.randn(count, 8 * size), layer, batch)
        backend.silu_mul(place.randn(count, 2 * size))
        backend.sample(place.randn(count, 10 * size), batch)


@pytest.fixture
def interpreted() -> None:
    from nvexplore.backends.kernels.launch import IS_INTERPRETED

    if not IS_INTERPRETED:
        pytest.skip("a GPU runs the kernels here")


@pytest.mark.usefixtures("interpreted")
def test_batch_sizes_do_not_recompile() -> None:
    counter = CompileCounter()
    backend = compiled_backend(Place(CPU, torch.float32), counter)
    for count in (5, 3, 8, 2):
        run_all(backend, count, 16)
    assert counter.frame_count == 5, "one a function"
    for count in (1, 7, 1):
        run_all(backend, count, 16)
    assert counter.frame_count == 10, "and one of each for a single row"


@pytest.mark.usefixtures("interpreted")
def test_engines_of_many_shapes_share_no_limit() -> None:
    """torch stops compiling a function anew after eight times, which models of other sizes must not use up."""
    place = Place(CPU, torch.float32)
    for size in range(16, 26):
        layer = norm(size, place)
        normed, _ = compiled_backend(place).add_rms_norm(x := place.randn(3, size), None, layer)
        near(normed, cpu_backend(torch.float32).add_rms_norm(x, None, layer)[0], torch.float32)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_greedy_tokens_of_a_model_are_those_of_the_cpu(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_toy(tmp_path, architecture, num_layers=1)
    prompts = [[*range(40, 49)], [70, 71, 72]]
    limits: dict[str, Any] = {"block_size": 4, "num_kvcache_blocks": 16, "max_num_batched_tokens": 7}
    options = {
        **limits,
        "device": "cpu",
        "max_model_len": 20,
        "max_num_seqs": 3,
        "enforce_eager": architecture == "llama",
    }
    expected = engine_tokens(path, prompts, 3, **options)

    def create(device: torch.device, dtype: torch.dtype, *args: Any, **options: Any) -> CompiledCudaBackend:
        return compiled_backend(Place(CPU, dtype))

    monkeypatch.setattr(model_runner, "create_backend", create)
    use_fake_graphs(monkeypatch)
    assert engine_tokens(path, prompts, 3, **options) == expected


def test_the_option_makes_this_backend_on_a_gpu_and_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="compile_layers=True: layers are compiled for a GPU only"):
        create_backend("cpu", torch.float32, compile_layers=True)
    assert type(create_backend("cpu", torch.float32, compile_layers=False)).__name__ == "CpuBackend"
    attention: Tensor = torch.zeros(1)
    monkeypatch.setattr(backends, "resolve_device", torch.device)
    monkeypatch.setattr(backends, "create_attention", lambda *args, **options: attention)
    made = create_backend("cuda:0", torch.float32, compile_layers=True, gpu_memory_utilization=0.3)
    assert type(made) is CompiledCudaBackend and (made._attention, made._utilization) == (attention, 0.3)
    assert type(create_backend("cuda:0", torch.float32)).__name__ == "CudaBackend"
