"""The kernels that walk along rows, as cases: norms, SiLU, keys and values, the sampler, block tables.

Each is an operation of a backend where there is one, so the compiled layers are timed on the same inputs, and a test
can ask the CPU's backend what must come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from nvexplore.backends.base import Backend
from nvexplore.backends.kernels.spread_tables import spread_tables
from nvexplore.backends.kernels.store_kv import store_kv
from nvexplore.bench.kernel_bench import Case, Work
from nvexplore.bench.kernel_inputs import batch_of, randn, weights
from nvexplore.layers.attention import Attention
from nvexplore.layers.norm import RMSNorm
from nvexplore.layers.parameter import Placement
from nvexplore.layers.rotary import RotaryTable
from nvexplore.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class RowSizes:
    """rows: of decode steps and prefills; samples: rows of logits; tables: block tables as (rows, widest)."""

    rows: Sequence[int] = (256, 16_384)
    samples: int = 256
    tables: tuple[int, int] = (256, 256)


def row_cases(config: ModelConfig, backends: Mapping[str, Backend], sizes: RowSizes) -> list[Case]:
    """The cases; backends by what ``Case.by`` calls them, ours first: kernels of its alone run on its device."""
    by_own, own = next(iter(backends.items()))
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    qkv, kv = _qkv_size(config), _kv_size(config)
    # One for all, as a model has one for all its layers: to the compiler its length is a constant.
    rotary = RotaryTable(config.rope, config.head_dim, max(sizes.rows), own.device)
    cases = []

    def add(name: str, inputs: str, by: str, make: Callable[[], Work]) -> None:
        cases.append(Case(name, by, inputs, "copy", make))

    for rows in sizes.rows:
        for by, backend in backends.items():
            add("add_rms_norm", f"{rows:,} x {hidden:,}", by, partial(_add_rms_norm, backend, config, rows))
    for rows in sizes.rows:
        for by, backend in backends.items():
            make = partial(_qk_norm_rope_store, backend, config, rotary, rows)
            add("qk_norm_rope_store", f"{rows:,} x {qkv:,}", by, make)
    for rows in sizes.rows:
        add("store_kv", f"{rows:,} x 2 x {kv:,}", by_own, partial(_store_kv, own, config, rows))
    for rows in sizes.rows:
        for by, backend in backends.items():
            add("silu_mul", f"{rows:,} x 2 x {inner:,}", by, partial(_silu_mul, backend, inner, rows))
    for by, backend in backends.items():
        add("gumbel", f"{sizes.samples:,} x {vocab:,}", by, partial(_sample, backend, vocab, sizes.samples))
    tables, widest = sizes.tables
    add("spread_tables", f"{tables:,} x {widest:,}", by_own, partial(_spread_tables, own.device, tables, widest))
    return cases


def _add_rms_norm(backend: Backend, config: ModelConfig, rows: int) -> Work:
    size, item = config.hidden_size, backend.dtype.itemsize
    norm = _norm(backend, size, config.rms_norm_eps)
    x, residual = randn(backend.device, backend.dtype, 2, rows, size)
    # Read: x, the residual, the weight. Written: the sum, its norm.
    return Work(lambda: backend.add_rms_norm(x, residual, norm), (4 * rows * size + size) * item)


def _qk_norm_rope_store(backend: Backend, config: ModelConfig, rotary: RotaryTable, rows: int) -> Work:
    """A prompt of ``rows`` tokens in blocks of one slot: all positions differ, and slots lie in random order."""
    device, dtype, item = backend.device, backend.dtype, backend.dtype.itemsize
    # What the projections of the layer would be is of no account here, so they are made small.
    layer = Attention(replace(config, hidden_size=1), rotary, Placement(dtype, device))
    layer.q_norm = layer.k_norm = None
    if config.qk_norm:
        layer.q_norm, layer.k_norm = (_norm(backend, config.head_dim, config.rms_norm_eps) for _ in range(2))
    pool = (rows, 1, config.num_key_value_heads, config.head_dim)
    layer.k_cache, layer.v_cache = torch.zeros(2, *pool, device=device, dtype=dtype)
    batch = backend.begin(batch_of([(0, rows)], 1))
    qkv = randn(device, dtype, rows, _qkv_size(config))
    norms = 2 * config.head_dim if config.qk_norm else 0
    # Queries, keys and values are read and written; a slot and a position are int32. The angles stay in the cache.
    num_bytes = (2 * rows * _qkv_size(config) + norms) * item + rows * 2 * 4
    return Work(lambda: (backend.qk_norm_rope_store(qkv, layer, batch), layer.k_cache, layer.v_cache), num_bytes)


def _store_kv(backend: Backend, config: ModelConfig, rows: int) -> Work:
    device, dtype = backend.device, backend.dtype
    heads = (config.num_key_value_heads, config.head_dim)
    k, v = randn(device, dtype, 2, rows, *heads)
    k_cache, v_cache = torch.zeros(2, rows, 1, *heads, device=device, dtype=dtype)
    slots = batch_of([(0, rows)], 1).slot_mapping.to(device)

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        store_kv(k, v, k_cache, v_cache, slots)
        return k_cache, v_cache

    return Work(call, 4 * rows * _kv_size(config) * dtype.itemsize + rows * 4)


def _silu_mul(backend: Backend, size: int, rows: int) -> Work:
    gate_up = randn(backend.device, backend.dtype, rows, 2 * size)
    return Work(lambda: backend.silu_mul(gate_up), 3 * rows * size * backend.dtype.itemsize)


def _sample(backend: Backend, vocab: int, rows: int) -> Work:
    batch = backend.begin(batch_of([(0, 1)] * rows, 1))
    logits = randn(backend.device, backend.dtype, rows, vocab)
    # Of a row also its temperature (float32), its key and its id (int64).
    return Work(lambda: backend.sample(logits, batch), rows * (vocab * backend.dtype.itemsize + 4 + 8 + 8))


def _spread_tables(device: torch.device, rows: int, widest: int) -> Work:
    """Tables as wide as they may be."""
    source = torch.arange(rows * widest, dtype=torch.int32, device=device)
    width = torch.full((1,), widest, dtype=torch.int32, device=device)
    out = torch.zeros(rows, widest, dtype=torch.int32, device=device)

    def call() -> torch.Tensor:
        spread_tables(source, width, out)
        return out

    return Work(call, 2 * rows * widest * 4 + 4)


def _norm(backend: Backend, size: int, eps: float) -> RMSNorm:
    norm = RMSNorm(size, eps, placement=Placement(backend.dtype, backend.device))
    norm.weight.copy_(weights(backend.device, backend.dtype, size))
    return norm


def _kv_size(config: ModelConfig) -> int:
    return config.num_key_value_heads * config.head_dim


def _qkv_size(config: ModelConfig) -> int:
    return config.num_attention_heads * config.head_dim + 2 * _kv_size(config)
