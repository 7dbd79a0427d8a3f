"""What a GPU can do at best, measured, and how fast a whole workload could be at that. Knows no engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import torch

from nvexplore.bench.graph_timer import median_seconds
from nvexplore.model_config import ModelConfig

BUFFER_BYTES: Final = 1 << 30  # far more than any cache holds
MATRIX: Final = 8192
_CALLS: Final = 8  # in a graph

Timer = Callable[[Sequence[Callable[[], Any]]], float]
"""Seconds a call, as ``median_seconds`` gives them."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What the device's memory does: a copy's bytes, read and written ones together, and those of reading alone."""

    copy_bytes_per_s: float
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time for a workload, had the device nothing to do but this, and by what; of several, each its share.

    kv_bytes:      keys and values that decode steps read; weight_bytes: weights, once in each of ``num_steps`` steps.
    prefill_flops: of all prompts; prefill_seconds: None where no rate was given.
    num_tokens:    new tokens, the first of each request included.
    """

    num_tokens: int
    num_steps: int
    kv_bytes: int
    weight_bytes: int
    prefill_flops: int
    kv_seconds: float
    weight_seconds: float
    prefill_seconds: float | None

    @property
    def seconds(self) -> float:
        return self.kv_seconds + self.weight_seconds + (self.prefill_seconds or 0.0)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """All figures, plain enough for JSON."""
        return {**asdict(self), "seconds": self.seconds, "tokens_per_s": self.tokens_per_s}


def measured_bandwidth(device: torch.device, timer: Timer = median_seconds) -> Bandwidth:
    """Copy and read buffers of 1 GiB, or of a quarter of what is free; of several ways the fastest counts."""
    from nvexplore.backends.kernels.read_sum import read_sum

    size = min(BUFFER_BYTES, _free_bytes(device) // 4) // 4
    with torch.inference_mode():
        source = torch.ones(size, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        copies = (lambda: target.copy_(source), lambda: torch.neg(source, out=target))
        reads = (lambda: read_sum(source), source.sum)
        return Bandwidth(
            copy_bytes_per_s=2 * source.nbytes / min(timer([copy] * _CALLS) for copy in copies),
            read_bytes_per_s=source.nbytes / min(timer([read] * _CALLS) for read in reads),
        )


def measured_matmul(
    device: torch.device, dtype: torch.dtype, timer: Timer = median_seconds, size: int = MATRIX
) -> float:
    """FLOPs a second of torch's product of two square matrices of ``size`` rows."""
    with torch.inference_mode():
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        return 2 * size**3 / timer([partial(torch.mm, a, b)] * 4)


def throughput_floor(
    config: ModelConfig,
    requests: tuple[Sequence[int], Sequence[int]],
    bandwidth: Bandwidth,
    *,
    dtype_bytes: int,
    kv_dtype_bytes: int | None = None,
    num_ranks: int = 1,
    matmul_flops_per_s: float | None = None,
) -> Floor:
    """The floor of requests that all come at once: their prompts' lengths, and how many new tokens each gets.

    dtype_bytes: of a weight; kv_dtype_bytes: of a key's or value's number in the pool, None: the same.
    num_ranks: devices like this one over which the layers are split.

    Prompts give the first tokens; then every step decodes one token of each request that lacks some, reading its keys
    and values so far and, once a step, all matrices. What is written, norms and activations are not counted.
    ValueError for a model with experts: how many of them a step reads depends on its tokens.
    """
    prompts, outputs = requests
    if config.moe is not None:
        raise ValueError(f"{config.architecture}: no floor is known for a model with experts")
    if len(prompts) != len(outputs):
        raise ValueError(f"{len(prompts)} prompt lengths but {len(outputs)} output lengths")
    if not prompts or min(*prompts, *outputs) < 1:
        raise ValueError("lengths of prompts and outputs must be at least 1, of one request or more")
    layer, head = _layer_weights(config, num_ranks), config.vocab_size * config.hidden_size // num_ranks
    kv_values = 2 * config.num_hidden_layers * _kv_heads(config, num_ranks) * config.head_dim
    # Step s of a request sees its prompt and s new tokens, for s = 1 up to one less than it has new tokens.
    contexts = sum((new - 1) * prompt + _sum_to(new - 1) for prompt, new in zip(prompts, outputs, strict=True))
    kv_bytes = contexts * kv_values * (dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes)
    num_steps = max(outputs) - 1
    weight_bytes = num_steps * (config.num_hidden_layers * layer + head) * dtype_bytes
    scores = sum(map(_sum_to, prompts)) * config.num_hidden_layers * config.num_attention_heads // num_ranks
    prefill_flops = 2 * (sum(prompts) * config.num_hidden_layers * layer + len(prompts) * head)
    prefill_flops += 4 * scores * config.head_dim
    return Floor(
        num_tokens=sum(outputs),
        num_steps=num_steps,
        kv_bytes=kv_bytes,
        weight_bytes=weight_bytes,
        prefill_flops=prefill_flops,
        kv_seconds=kv_bytes / bandwidth.read_bytes_per_s,
        weight_seconds=weight_bytes / bandwidth.read_bytes_per_s,
        prefill_seconds=None if matmul_flops_per_s is None else prefill_flops / matmul_flops_per_s,
    )


def nano_vllm_lengths() -> tuple[list[int], list[int]]:
    """Prompts' lengths and numbers of new tokens in nano-vLLM's own benchmark, drawn as its bench.py draws them."""
    source = random.Random(0)
    prompts = []
    for _ in range(256):
        prompts.append(source.randint(100, 1024))
        for _ in range(prompts[-1]):
            source.randint(0, 10_000)  # its ids, which decide what is drawn next
    return prompts, [source.randint(100, 1024) for _ in range(256)]


def _layer_weights(config: ModelConfig, num_ranks: int) -> int:
    """Values in one rank's matrices of one decoder layer."""
    q, kv = (heads * config.head_dim for heads in (config.num_attention_heads, _kv_heads(config, num_ranks)))
    return config.hidden_size * (2 * q // num_ranks + 2 * kv + 3 * config.intermediate_size // num_ranks)


def _kv_heads(config: ModelConfig, num_ranks: int) -> int:
    """One rank's: where there are fewer than ranks, neighbours have copies of one."""
    return max(1, config.num_key_value_heads // num_ranks)


def _sum_to(count: int) -> int:
    return count * (count + 1) // 2


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else BUFFER_BYTES // 64
