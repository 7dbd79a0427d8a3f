"""Paged attention as cases: decode steps and prefills, by the project's kernels and by what else is installed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.attention.choice import Facts, choose, installed_packages
from nvexplore.bench.kernel_bench import Case, Work
from nvexplore.bench.kernel_inputs import batch_of, num_blocks, randn
from nvexplore.model_config import ModelConfig

Makers = Mapping[str, Callable[[], PagedAttention]]
"""Attention implementations by what ``Case.by`` calls them, made when they are run: a package may fail to load."""


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What is attended: ``rows`` of (cached tokens, new tokens), in blocks of each of ``block_sizes`` in turn."""

    name: str
    text: str
    rows: Sequence[tuple[int, int]]
    block_sizes: Sequence[int]

    @property
    def is_decode(self) -> bool:
        return all(count == 1 for _, count in self.rows)


def full_size_inputs() -> list[AttentionInputs]:
    """256 sequences of 1,000 tokens on average, a few very long ones, prompts, and prompts with a cached prefix."""
    source = random.Random(0)
    lengths = [source.randint(100, 1900) for _ in range(256)]
    decode, prefill, fresh = "decode_attention", "prefill_attention", "fresh_attention"
    return [
        AttentionInputs(decode, "256 x 100-1,900", [(length - 1, 1) for length in lengths], (16, 64, 256)),
        AttentionInputs(decode, "4 x 32,768", [(32_767, 1)] * 4, (16, 256)),
        AttentionInputs(fresh, "8 x 8,192", [(0, 8192)] * 8, (16, 256)),
        AttentionInputs(prefill, "8 x 1,024 after 7,168", [(7168, 1024)] * 8, (16, 256)),
    ]


def attention_cases(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    inputs: Sequence[AttentionInputs],
    makers_for: Callable[[int], Makers],
) -> list[Case]:
    """The cases. makers_for: who can attend to blocks of a size."""
    cases = []
    for each in inputs:
        for block_size in each.block_sizes:
            for by, make_attention in makers_for(block_size).items():
                make = partial(_attention, make_attention, config, device, dtype, each.rows, block_size)
                text = f"{each.text}, blocks of {block_size}"
                cases.append(Case(each.name, by, text, "read" if each.is_decode else "matmul", make))
    return cases


def installed_makers(device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int) -> Makers:
    """Ours on a GPU, and each flash-attn package that is there and takes these sizes."""
    makers: dict[str, Callable[[], PagedAttention]] = {"triton": partial(_own, device)}
    for package in sorted(installed_packages()):
        capability = torch.cuda.get_device_capability(device)
        facts = Facts(device.type, dtype, block_size, head_dim, capability, frozenset({package}))
        try:
            choose("attention_backend", "flash_attn", "decode", facts)
        except ValueError:
            continue
        makers[_PEERS[package][0]] = _PEERS[package][1]
    return makers


def _own(device: torch.device) -> PagedAttention:
    from nvexplore.backends.attention.triton_paged import TritonPagedAttention

    return TritonPagedAttention.on(device)


def _flash_attn_2() -> PagedAttention:
    from nvexplore.backends.attention.flash_attn import FlashAttention2

    return FlashAttention2()


def _flash_attn_4() -> PagedAttention:
    from nvexplore.backends.attention.flash_attn import FlashAttention4

    return FlashAttention4()


_PEERS: Final[dict[str, tuple[str, Callable[[], PagedAttention]]]] = {
    "flash_attn_2": ("flash-attn 2", _flash_attn_2),
    "flash_attn_4": ("flash-attn-4", _flash_attn_4),
}


def _attention(
    make_attention: Callable[[], PagedAttention],
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    rows: Sequence[tuple[int, int]],
    block_size: int,
) -> Work:
    """Attention of one layer over a pool that the rows fill."""
    attention = make_attention()
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    host = batch_of(rows, block_size)
    plan = attention.plan(host, host.to(device))
    blocks = num_blocks(rows, block_size)
    k_cache, v_cache = randn(device, dtype, 2, blocks, block_size, kv_heads, head_dim)
    q = randn(device, dtype, host.num_tokens, heads, head_dim)
    qkv = randn(device, dtype, host.num_tokens, (heads + 2 * kv_heads) * head_dim)

    def attend() -> torch.Tensor:
        attention.offer(qkv, k_cache, plan)
        return attention.forward(q, k_cache, v_cache, head_dim**-0.5, plan)

    contexts = sum(computed + count for computed, count in rows)
    # Keys and values once, queries and results, then int32: a context's blocks, its length, the row's first token.
    values = 2 * contexts * kv_heads * head_dim + 2 * host.num_tokens * heads * head_dim
    num_bytes = values * dtype.itemsize + (blocks + 2 * len(rows)) * 4
    # Token i of a row sees computed + i + 1 keys: a multiply-add a value, for its score and for its result.
    seen = sum(count * computed + count * (count + 1) // 2 for computed, count in rows)
    return Work(attend, num_bytes, 4 * seen * heads * head_dim)
