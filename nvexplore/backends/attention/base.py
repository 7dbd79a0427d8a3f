"""What a backend needs of an attention implementation. One object serves one engine."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from nvexplore.runner.forward_batch import ForwardBatch


class PagedAttention(Protocol):
    """Attention from a step's tokens to keys and values in the paged pool."""

    name: str

    def plan(self, host: ForwardBatch, batch: ForwardBatch | None = None) -> Any:
        """Work out, once a step, what all layers need: indices, masks, splits. Opaque to everybody else.

        host: the batch as it was built; batch: the same on the device, where that is another. A batch that comes alone
        may be a graph's, whose tensors are filled anew before each ``forward``; its tables then hold no -1.
        """
        ...

    def offer(self, qkv: Tensor, k_cache: Tensor, plan: Any) -> bool:
        """Offer a layer's packed projection, before its ``forward``, which may read new keys and values there.

        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim]. True: taken, and ``forward`` must find the keys in it as
        they are in the pool, normalised and rotated.
        """
        ...

    def forward(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float, plan: Any) -> Tensor:
        """q [T, num_heads, head_dim], caches [num_blocks, block_size, num_kv_heads, head_dim] -> like q.

        Caches in a narrower format than q's are widened to it as they are read, where the implementation can.
        ``plan`` is that of the batch whose tokens q holds. ``Backend.attention`` says what a token sees.
        """
        ...

    def close(self) -> None:
        """Free buffers; may be called again."""
        ...
