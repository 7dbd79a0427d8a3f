"""The GPU's backend with torch.compile in place of the project's fused kernels, as nano-vLLM does it.

Norms, rotation, SiLU * mul and the sampler are plain functions here, which the compiler fuses; attention, and keys
and values into the pool, stay Triton kernels. The functions compute as the kernels do, in float32 and rounded once, and
draw from the same random numbers, so an engine says the same with either.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.cuda import CudaBackend
from nvexplore.backends.kernels.gumbel import ROUNDS
from nvexplore.backends.kernels.store_kv import store_kv
from nvexplore.layers.attention import Attention
from nvexplore.layers.controls import apply_controls
from nvexplore.layers.norm import RMSNorm
from nvexplore.runner.forward_batch import ForwardBatch

# How ``kernels.gumbel`` counts: a program takes 4096 tokens, and each counter gives numbers for four of them, which lie
# a quarter apart.
_PROGRAM: Final = 4096
_QUARTER: Final = _PROGRAM // 4
_LOW: Final = 0xFFFFFFFF  # the lower half of an int64
# Philox4x32 (Salmon et al., SC11): multipliers, and what the keys grow by.
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_STEPS: Final = (0x9E3779B9, 0xBB67AE85)


class CompiledCudaBackend(CudaBackend):
    """``CudaBackend`` whose small operations are compiled when they first run: once for one row, once for more.

    compiler: what torch.compile calls a backend.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        attention: PagedAttention,
        *,
        utilization: float = 0.9,
        compiler: Any = "inductor",
    ) -> None:
        super().__init__(device, dtype, attention, utilization=utilization)
        self.early_tokens = 0  # what is compiled knows nothing of it
        functions = (rms_norm, add_rms_norm, norm_rope, silu_mul, draw)
        # Loaded and not counted: torch 2.11's compiler takes what is counted, times a large constant, for an int32.
        self._token_ids: Tensor | None = None
        self._compiled = {function.__name__: _compiled(function, compiler) for function in functions}

    def add_rms_norm(self, x: Tensor, residual: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self._compiled["rms_norm"](x, norm), x
        normed, total = self._compiled["add_rms_norm"](x, residual, norm)
        return normed, total

    def qk_norm_rope_store(self, qkv: Tensor, layer: Attention, batch: ForwardBatch) -> Tensor:
        q: Tensor
        q, k = self._compiled["norm_rope"](qkv, batch.positions, layer)
        v = qkv.view(qkv.shape[0], -1, layer.head_dim)[:, layer.num_heads + layer.num_kv_heads :]
        store_kv(k, v, layer.k_cache, layer.v_cache, batch.slot_mapping)
        return q

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out: Tensor = self._compiled["silu_mul"](gate_up)
        return out

    def sample(self, logits: Tensor, batch: ForwardBatch) -> Tensor:
        if batch.controls is not None:
            logits = apply_controls(logits.float(), batch.temperatures, batch.controls)
        vocab = logits.shape[1]
        if self._token_ids is None or self._token_ids.shape[0] != vocab:
            self._token_ids = torch.arange(vocab, device=logits.device)
        ids: Tensor = self._compiled["draw"](logits, batch.temperatures, batch.sample_keys, self._token_ids)
        return ids


def _compiled(function: Callable[..., Any], compiler: Any) -> Callable[..., Any]:
    """Compile a copy of ``function`` for any number of rows.

    torch keeps what it compiled by code object, and no more than a few versions: engines of different shapes in one
    process would use them up. Layers are arguments as modules, so their sizes are constants to the compiler.
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    compiled: Callable[..., Any] = torch.compile(copy, dynamic=True, fullgraph=True, backend=compiler)
    return compiled


def rms_norm(x: Tensor, norm: RMSNorm) -> Tensor:
    """``norm`` of each row of x [T, size]."""
    return _normed(x.float(), norm).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual), all [T, size]."""
    total = x.float() + residual.float()
    return _normed(total, norm).to(x.dtype), total.to(x.dtype)


def norm_rope(qkv: Tensor, positions: Tensor, layer: Attention) -> tuple[Tensor, Tensor]:
    """Queries [T, num_heads, head_dim] and keys of the packed projection, normalised where ``layer`` does, rotated."""
    heads = qkv.view(qkv.shape[0], -1, layer.head_dim)
    q = heads[:, : layer.num_heads].float()
    k = heads[:, layer.num_heads : layer.num_heads + layer.num_kv_heads].float()
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _normed(q, layer.q_norm), _normed(k, layer.k_norm)
    cos, sin = layer.rotary.cos_sin.index_select(0, positions)[:, None].chunk(2, dim=-1)
    return _rotated(q, cos, sin).to(qkv.dtype), _rotated(k, cos, sin).to(qkv.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 * n] -> silu(first half) * second half, [T, n]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)


def draw(logits: Tensor, temperatures: Tensor, sample_keys: Tensor, token_ids: Tensor) -> Tensor:
    """``kernels.gumbel.gumbel_sample`` in torch: the same ids from the same keys, in one pass when compiled.

    token_ids: [vocab] int64, 0 and up.
    """
    r = (_random_bits(sample_keys[:, None], token_ids).float() + 0.5) * 2.0**-32
    # As in the kernel: exact where r is small and wins, and never infinite.
    series = r * (1.0 + r * (0.5 + r * (0.33333333 + r * 0.25)))
    exponential = torch.where(r < 0.01, series, -torch.log((1.0 - r).clamp(min=3e-8)))
    wide = logits.float()
    # Without a temperature the noise is times 0, and the score the logit itself.
    score = wide - temperatures[:, None].clamp(max=1e30) * torch.log(exponential)
    score = torch.where(wide.isnan() | (wide == torch.inf), torch.inf, score)
    return torch.where(score.amax(dim=-1).isfinite(), score.argmax(dim=-1), -1)


def _normed(x: Tensor, norm: RMSNorm) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + norm.eps) * norm.weight.float()


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _random_bits(keys: Tensor, ids: Tensor) -> Tensor:
    """32 random bits for each key [R, 1] int64 and token id [vocab] int64 -> [R, vocab] int64, by Philox4x32.

    The product of two 32-bit numbers wraps around in int64 but keeps all its bits, so halves are cut out of it.
    """
    counter = ids // _PROGRAM * _QUARTER + ids % _QUARTER
    a, b, c, d = counter, torch.zeros_like(counter), torch.zeros_like(counter), torch.zeros_like(counter)
    low, high = keys & _LOW, (keys >> 32) & _LOW
    for _ in range(ROUNDS.value):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = ((second >> 32) & _LOW) ^ b ^ low, ((first >> 32) & _LOW) ^ d ^ high
        b, d = second & _LOW, first & _LOW
        low, high = (low + _STEPS[0]) & _LOW, (high + _STEPS[1]) & _LOW
    quarter = ids % _PROGRAM // _QUARTER
    return torch.where(quarter < 2, torch.where(quarter == 0, a, b), torch.where(quarter == 2, c, d))
