"""The operations in plain torch on the CPU: what every other backend is compared with."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.base import Backend
from nvexplore.backends.packed_linear import PackedLinears
from nvexplore.backends.ranks import add_up, embed
from nvexplore.backends.routing import route
from nvexplore.engine.batch import Dispatch
from nvexplore.layers.attention import Attention
from nvexplore.layers.embedding import Embedding, LMHead
from nvexplore.layers.linear import Linear
from nvexplore.layers.moe import MoE
from nvexplore.layers.norm import RMSNorm
from nvexplore.layers.sampler import sample, uniforms_of
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.kv_cache import as_stored

if TYPE_CHECKING:
    from nvexplore.models.decoder import CausalLM

_FEW_ROWS: Final = 16
_CONTAINER: Final = Path("/sys/fs/cgroup")
_POOL_LIMIT: Final = 1 << 30  # bytes: a KV pool on the CPU shares memory with everything else


@dataclass(slots=True)
class _Plan:
    """What all layers of a step share: where keys and values go, the attention's own plan, the rotation.

    kept:  [K] int64 tokens that are stored, or None where all are; slots: [K] int64 where to.
    angles: cosines and signed sines [T, 1, head_dim], as ``_rotate`` takes them, by the identity of their table.
    """

    kept: Tensor | None
    slots: Tensor
    attention: object
    angles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class CpuBackend(Backend):
    """``Backend`` in plain torch, in float32, bfloat16 or float16."""

    device = torch.device("cpu")

    def __init__(self, dtype: torch.dtype, attention: PagedAttention) -> None:
        self.dtype = dtype
        self._attention = attention
        self._linears = PackedLinears(dtype)
        self._doubled: dict[int, Tensor] = {}  # norm weights, twice in a row, for ``add_rms_norm``

    def prepare_weights(self, model: CausalLM) -> None:
        norms = [module for module in model.modules() if isinstance(module, RMSNorm)]
        self._doubled = {id(norm): torch.cat((norm.weight, norm.weight)) for norm in norms}
        layers = [layer for layer in model.modules() if isinstance(layer, (Linear, LMHead))]
        if sum(layer.weight.nbytes for layer in layers) <= _free_memory() // 4:
            for layer in layers:
                self._linears.pack(layer)

    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        slots = batch.slot_mapping.long()
        kept = None
        if (slots < 0).any():
            # -1 as an index would be the pool's last slot.
            kept = (slots >= 0).nonzero().flatten()
            slots = slots[kept]
        return replace(batch, plan=_Plan(kept, slots, self._attention.plan(batch)))

    def dispatch(self, num_prefill: int, num_decode: int, num_tokens: int | None = None) -> Dispatch:
        name = self._attention.name
        return Dispatch(
            eager_reason="cpu",
            prefill_backend=name if num_prefill else None,
            decode_backend=name if num_decode else None,
        )

    def whole_memory(self) -> int:
        return _whole_memory()

    def available_memory(self, run_largest: Callable[[], int]) -> int:
        return min(_POOL_LIMIT, _free_memory() // 2)

    def close(self) -> None:
        self._attention.close()
        self._linears.clear()
        self._doubled.clear()

    def embedding(self, input_ids: Tensor, layer: Embedding) -> Tensor:
        return embed(input_ids, layer, self.ranks)

    def add_rms_norm(self, x: Tensor, residual: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        residual = x if residual is None else residual.add_(x)
        doubled = self._doubled.get(id(norm))
        if doubled is None or residual.shape[0] > _FEW_ROWS:
            return _rms_norm(residual, norm), residual
        # The mean of (x, -x) is 0 and its mean square that of x, so its LayerNorm begins with the RMSNorm of x. For few
        # rows the time is that of starting operations: LayerNorm is one, RMSNorm eight.
        mirrored = torch.cat((residual, -residual), dim=-1)
        normed = functional.layer_norm(mirrored, doubled.shape, doubled, None, norm.eps)
        return normed[:, : residual.shape[1]], residual

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        if not layer.sums_ranks:
            return self._linears.linear(x, layer, layer.bias)
        return add_up(self._linears.linear(x, layer), layer, self.ranks)

    def qk_norm_rope_store(self, qkv: Tensor, layer: Attention, batch: ForwardBatch) -> Tensor:
        plan: _Plan = batch.plan
        num_heads, num_kv_heads, head_dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
        heads = qkv.view(-1, num_heads + 2 * num_kv_heads, head_dim)
        qk, v = heads[:, : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, :num_heads], qk[:, num_heads:]
            qk = torch.cat((_rms_norm(q, layer.q_norm), _rms_norm(k, layer.k_norm)), dim=1)
        qk = _rotate(qk, *self._angles(layer.rotary.cos_sin, batch))
        k = qk[:, num_heads:]
        if plan.kept is not None:
            k, v = k[plan.kept], v[plan.kept]
        _store(layer.k_cache, plan.slots, k)
        _store(layer.v_cache, plan.slots, v)
        return qk[:, :num_heads]

    def attention(self, q: Tensor, layer: Attention, batch: ForwardBatch) -> Tensor:
        plan: _Plan = batch.plan
        out = self._attention.forward(q, layer.k_cache, layer.v_cache, layer.scale, plan.attention)
        return out.flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def moe(self, x: Tensor, layer: MoE) -> Tensor:
        weights, chosen = route(self.linear(x, layer.gate), layer.top_k, norm=layer.norm_topk_prob)
        gate_up, down = layer.experts.gate_up_proj, layer.experts.down_proj
        out = torch.zeros_like(x)
        # One expert at a time, with all tokens that chose it; those that no token chose cost nothing.
        for expert in sorted(set(chosen.flatten().tolist())):
            tokens, places = (chosen == expert).nonzero(as_tuple=True)
            inner = self.silu_mul(functional.linear(x[tokens], gate_up[expert]))
            result = functional.linear(inner, down[expert])
            out.index_add_(0, tokens, result.mul_(weights[tokens, places, None]))
        return self.ranks.sum(out) if layer.sums_ranks else out

    def logits(self, hidden: Tensor, rows: Tensor | None, head: LMHead) -> Tensor:
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        logits = self._linears.linear(hidden, head).float()
        return self.ranks.gather(logits) if head.gathers_ranks else logits

    def sample(self, logits: Tensor, batch: ForwardBatch) -> Tensor:
        return sample(logits, batch.temperatures, uniforms_of(batch.sample_keys), batch.controls)

    def _angles(self, table: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        known: dict[int, tuple[Tensor, Tensor]] = batch.plan.angles
        if id(table) not in known:
            cos, sin = table.index_select(0, batch.positions)[:, None].chunk(2, dim=-1)
            known[id(table)] = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return known[id(table)]


def _store(cache: Tensor, slots: Tensor, values: Tensor) -> None:
    """Write values [K, num_kv_heads, head_dim] to the slots [K] int64 of a pool, in its format."""
    values = as_stored(values, cache.dtype)
    if cache.dtype.itemsize == 1:
        # torch copies no 8-bit floats by index; bytes it does.
        cache, values = cache.view(torch.uint8), values.view(torch.uint8)
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, values)


def _rms_norm(x: Tensor, norm: RMSNorm) -> Tensor:
    weight = norm.weight
    return functional.rms_norm(x, weight.shape, weight, norm.eps)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn value i of each head [T, heads, head_dim] together with value i + head_dim / 2, in float32.

    The first half becomes first * cos - second * sin, the second half second * cos + first * sin: each value times
    its cosine, plus the other one of its pair times a sine that is negative in the first half.
    """
    values = heads.float()
    partners = values.roll(values.shape[-1] // 2, dims=-1)
    return torch.addcmul(values * cos, partners, sin).to(heads.dtype)


def _free_memory() -> int:
    """Return the bytes that may still be taken of the machine's memory, or of the container's share."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        # Counts what the kernel would give back from its caches, which SC_AVPHYS_PAGES does not.
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    return min(free, _free_of_share(free))


def _free_of_share(unlimited: int) -> int:
    """Return the bytes that are left of the container's share, or ``unlimited``."""
    try:
        limit, used = (int((_CONTAINER / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return unlimited
    try:
        # Files that were read and are not in use any more are counted as used, and make room: a checkpoint's, say.
        lines = (_CONTAINER / "memory.stat").read_text().splitlines()
        cached = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, StopIteration):
        cached = 0
    return max(0, min(limit, limit - used + cached))


def _whole_memory() -> int:
    """Return the bytes of the machine's memory, or of the container's share, whoever has them now."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int((_CONTAINER / "memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return whole
