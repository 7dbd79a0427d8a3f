"""Where an engine's memory goes, and the arithmetic that gave its pool so many blocks. Measures nothing itself.

A recording brings a ledger to where there is no torch: this imports none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvexplore.runner.kv_cache import DeviceMemory, KVCacheShape


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """Bytes, as measured while the engine was made; None: not measured on this device.

    device:      what the memory belongs to. total: all of it. utilization: the share this engine may use.
    weights:     of the model. step_peak: what the largest step takes on top, for a moment.
    others:      taken by other processes and engines when the pool was sized.
    pool:        keys and values of ``num_blocks`` blocks of ``block_bytes`` each.
    graphs:      what capturing CUDA graphs took.
    num_blocks_from: how the number of blocks came about, in words and numbers.
    num_ranks:   processes that share the model: all this is rank 0's, and the others' is like it.
    """

    device: str
    weights: int
    block_bytes: int
    num_blocks: int
    num_blocks_from: str
    total: int | None = None
    utilization: float | None = None
    step_peak: int | None = None
    others: int | None = None
    graphs: int | None = None
    num_ranks: int = 1

    @property
    def pool(self) -> int:
        return self.num_blocks * self.block_bytes

    def __str__(self) -> str:
        lines = [
            ("weights", self.weights, ""),
            ("KV pool", self.pool, f"{self.num_blocks:,} blocks of {self.block_bytes:,} bytes"),
            ("largest step", self.step_peak, "on top, for a moment"),
            ("CUDA graphs", self.graphs, ""),
            ("other engines and programs", self.others, "when the pool was sized"),
            ("device", self.total, self.device),
        ]
        told = [f"{name:<28}{_mib(size):>14}  {note}".rstrip() for name, size, note in lines if size is not None]
        if self.num_ranks > 1:
            told.insert(0, f"rank 0 of {self.num_ranks}; each has its share of every layer and of every block")
        return "\n".join([*told, f"num_blocks: {self.num_blocks_from}"])


def ledger_of(
    device: str,
    *,
    weights: int,
    shape: KVCacheShape,
    num_blocks: int,
    available: int | DeviceMemory | None,
    useful_blocks: int | None,
    graphs: int | None,
    num_ranks: int = 1,
) -> MemoryLedger:
    """The ledger of an engine whose pool was given ``available`` bytes; None: the caller chose ``num_blocks``."""
    size = shape.block_bytes
    common: dict[str, Any] = {"device": device, "weights": weights, "block_bytes": size, "num_blocks": num_blocks}
    common |= {"graphs": graphs, "num_ranks": num_ranks}
    if available is None:
        return MemoryLedger(**common, num_blocks_from=f"num_kvcache_blocks={num_blocks:,}")
    usable = available if isinstance(available, int) else available.available
    why = f"{usable:,} bytes available / {size:,} a block = {usable // size:,}"
    if not isinstance(available, int):
        why = f"{available}: {why}"
    fitting = usable // size
    if useful_blocks is not None and useful_blocks < fitting:
        fitting = useful_blocks
        why += f", of which {fitting:,} can be in use at a time"
    if num_blocks < fitting:
        why += f"; another rank has room for {num_blocks:,}"
    if isinstance(available, int):
        return MemoryLedger(**common, num_blocks_from=why)
    return MemoryLedger(
        **common,
        num_blocks_from=why,
        total=available.total,
        utilization=available.utilization,
        step_peak=available.peak,
        others=max(0, available.total - available.free - weights),
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
