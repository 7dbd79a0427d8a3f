"""The paged pool of keys and values, and how many blocks it gets. Knows nothing of who owns a block."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from nvexplore.layers.attention import Attention

_MOST_SLOTS: Final = 2**31 - 1  # slots are int32 numbers on their way to the device
_NARROW: Final = {"fp8": torch.float8_e4m3fn}  # what keys and values may be stored in beside the model's own format


def resolve_kv_dtype(kv_cache_dtype: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of keys and values in the pool; "auto" is ``dtype``, the one that the model computes in."""
    if kv_cache_dtype == "auto":
        return dtype
    if kv_cache_dtype not in _NARROW:
        raise ValueError(f"kv_cache_dtype={kv_cache_dtype!r} is not supported (supported: auto, {', '.join(_NARROW)})")
    return _NARROW[kv_cache_dtype]


def as_stored(x: Tensor, kv_dtype: torch.dtype) -> Tensor:
    """Return values as a pool of ``kv_dtype`` keeps them, like x in shape.

    float8_e4m3fn keeps 4 significant bits, and multiples of 2**-9 below 2**-6. It has no infinity: values beyond its
    greatest, 448, become that. NaN stays NaN.
    """
    if x.dtype == kv_dtype:
        return x
    greatest = torch.finfo(kv_dtype).max
    return x.clamp(-greatest, greatest).to(kv_dtype)


class DeviceMemory(NamedTuple):
    """What decides how much of a device's memory a pool may take; all in bytes but ``utilization``.

    total:       the device's; utilization: the share of it that this engine may use, all in all.
    weights:     what this engine holds already; peak: what its largest step takes on top, for a moment.
    free:        what nobody holds at present, not even this engine.
    """

    total: int
    utilization: float
    weights: int
    peak: int
    free: int

    @property
    def available(self) -> int:
        """Bytes for the pool: this engine's share less its own needs, and no more than is there.

        Other processes and engines are not charged to this one, whatever they take or give back meanwhile: they
        matter only where they leave less than its share.
        """
        return max(0, min(int(self.total * self.utilization) - self.weights - self.peak, self.free - self.peak))

    def __str__(self) -> str:
        return (
            f"{self.utilization:g} of {self.total:,} bytes, less {self.weights:,} of weights and {self.peak:,} for a "
            f"step; {self.free:,} are free"
        )


class KVCacheShape(NamedTuple):
    """What one rank stores for each token: 2 * num_layers * num_kv_heads * head_dim values of ``dtype``.

    dtype: the pool's, see ``resolve_kv_dtype``.
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(
        cls, layers: list[Attention], block_size: int, dtype: torch.dtype, kv_cache_dtype: str = "auto"
    ) -> KVCacheShape:
        """The shape for a model's layers; dtype: what it computes in, kv_cache_dtype: see ``resolve_kv_dtype``."""
        kv_dtype = resolve_kv_dtype(kv_cache_dtype, dtype)
        return cls(len(layers), block_size, layers[0].num_kv_heads, layers[0].head_dim, kv_dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers, keys and values."""
        return 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def num_blocks(self, available: int | DeviceMemory, *, useful_blocks: int | None) -> int:
        """Return how many blocks fit in ``available`` bytes, at most ``useful_blocks``; none is an error."""
        origin = ""
        if isinstance(available, DeviceMemory):
            origin, available = f" ({available})", available.available
        fitting = available // self.block_bytes
        if fitting <= 0:
            raise ValueError(
                f"no room for the KV cache: one block takes {self.block_bytes:,} bytes (keys and values of "
                f"{self.num_layers} layers x {self.block_size} tokens x {self.num_kv_heads} KV heads x "
                f"{self.head_dim} x {self.dtype}), {max(0, available):,} bytes are available{origin}. Free memory, "
                "choose a smaller block_size, dtype or kv_cache_dtype, or set num_kvcache_blocks"
            )
        return fitting if useful_blocks is None else min(fitting, useful_blocks)


class KVCache:
    """One tensor: pool [2, layers, num_blocks, block_size, num_kv_heads, head_dim], keys then values.

    Layers hold views of it, so that one layer's share can be passed on alone. whole: all bytes that there are, where
    that is known: it would not fail but end the process. What does not fit is a ValueError.
    """

    def __init__(self, shape: KVCacheShape, num_blocks: int, device: torch.device, whole: int | None = None) -> None:
        if num_blocks <= 0:
            raise ValueError(f"num_kvcache_blocks={num_blocks}: must be at least 1")
        if whole is not None and num_blocks * shape.block_bytes > whole:
            raise _no_room(shape, num_blocks, f"there are {whole:,}", whole)
        if num_blocks * shape.block_size > _MOST_SLOTS:
            most = _MOST_SLOTS // shape.block_size
            raise ValueError(
                f"num_kvcache_blocks={num_blocks}: must be at most {most} with block_size={shape.block_size}, since "
                "slots are numbered in 32 bits"
            )
        self.num_blocks = num_blocks
        try:
            self.pool = _zeros(shape, num_blocks, device)
        except RuntimeError as error:  # that of the device's memory is one too
            if device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError):
                raise
            free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
            there = "the machine does not give so many" if free is None else f"{free:,} are free"
            raise _no_room(shape, num_blocks, there, free) from None

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one layer's (keys, values), views [num_blocks, block_size, num_kv_heads, head_dim]."""
        return self.pool[0, index], self.pool[1, index]

    def bind(self, layers: list[Attention]) -> None:
        """Give each attention layer its views, in order."""
        for index, layer in enumerate(layers):
            layer.k_cache, layer.v_cache = self.layer(index)

    def unbind(self, layers: list[Attention]) -> None:
        """Take them away again: the layers hold nothing of the pool, which may go."""
        for layer in layers:
            layer.k_cache = layer.v_cache = self.pool.new_empty(0)


def _zeros(shape: KVCacheShape, num_blocks: int, device: torch.device) -> Tensor:
    """Zeros, not what the memory held: some kernels read the unwritten end of a block, if without effect."""
    sizes = (2, shape.num_layers, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    return torch.zeros(sizes, dtype=shape.dtype, device=device)


def _no_room(shape: KVCacheShape, num_blocks: int, there: str, most: int | None) -> ValueError:
    size = shape.block_bytes
    limit = "" if most is None else f": must be at most {most // size}"
    return ValueError(
        f"num_kvcache_blocks={num_blocks}: needs {num_blocks * size:,} bytes, {size:,} a block of "
        f"block_size={shape.block_size} tokens, and {there}{limit}"
    )
