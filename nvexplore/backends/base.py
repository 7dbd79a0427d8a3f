"""The contract between models and devices: the operations a decoder is written in.

A model calls these and nothing else, so a device, a kernel or a fusion arrives as another backend and no
model changes. T tokens, N rows (sequences) and R sampled rows are those of the ``ForwardBatch``; tensors have
the backend's dtype unless said otherwise. Every backend supports ragged rows, prefill chunks with and without
cached context, decode rows, all of them in one batch, and rows of padding. It knows nothing of requests or
scheduling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nvexplore.backends.ranks import Ranks
from nvexplore.backends.read_back import Ids
from nvexplore.engine.batch import Dispatch
from nvexplore.layers.attention import Attention
from nvexplore.layers.embedding import Embedding, LMHead
from nvexplore.layers.linear import Linear
from nvexplore.layers.moe import MoE
from nvexplore.layers.norm import RMSNorm
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.kv_cache import DeviceMemory

if TYPE_CHECKING:
    from nvexplore.models.decoder import CausalLM, DecoderLayer
    from nvexplore.runner.decode_rows import DecodeBatch


class Backend(ABC):
    """The operations of a decoder on one device in one dtype; called while it is ``active``.

    Arguments may be overwritten where a method says so; a caller uses what is returned.
    """

    device: torch.device
    dtype: torch.dtype
    last_ids: Tensor
    """[at least R] int64, those sampled last: see ``feed``."""
    graph_bytes: int | None = None
    """What captured graphs take of the device's memory; None: there are none."""
    ranks: Ranks = Ranks()
    """This process among those that share the model."""

    # --- once an engine, once a step ---

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything on the backend is called within it; torch's own state is as before afterwards."""
        with torch.inference_mode():
            yield

    def prepare_weights(self, model: CausalLM) -> None:  # noqa: B027 - most backends use weights as they are
        """Repack a model's loaded weights, once, before the first step. A backend may keep what it makes."""

    @abstractmethod
    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        """Bring a batch to the device and set its ``plan``: what all layers of this step share."""

    @abstractmethod
    def dispatch(self, num_prefill: int, num_decode: int, num_tokens: int | None = None) -> Dispatch:
        """Say how a step with so many rows of each kind, and tokens, would be run, without touching the device.

        num_tokens: None where that is not known: then a step with prefill rows is one of many tokens.
        """

    @abstractmethod
    def available_memory(self, run_largest: Callable[[], int]) -> int | DeviceMemory:
        """Return the bytes that a KV pool may take now.

        run_largest: runs the largest steps that there can be, for a backend that measures what they take, in a pool
                     of their own, which is gone afterwards; returns the bytes of that.
        """

    def whole_memory(self) -> int | None:
        """Return the bytes that not even a pool of a size asked for may exceed, or None: the attempt will show."""
        return None

    def staging(self, size: int) -> Tensor:
        """Return [size] int32 on the CPU to build a step's batch in; good until the next call."""
        return torch.empty(size, dtype=torch.int32, device="cpu")

    def capture(  # noqa: B027 - most backends run every step as it comes
        self,
        model: CausalLM,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_blocks: int,
        block_size: int,
        progress: bool,
    ) -> None:
        """Prepare for steps within these limits; ``max_blocks``: of a sequence."""

    def close(self) -> None:  # noqa: B027 - a backend without memory of its own has nothing to free
        """Free what the backend holds; may be called again."""

    def release(self) -> None:  # noqa: B027 - the CPU's memory goes back by itself
        """Give what has been freed back to the device, once ``close`` was called and weights and pool are gone."""

    # --- operations ---

    @abstractmethod
    def embedding(self, input_ids: Tensor, layer: Embedding) -> Tensor:
        """Look up ids [T] (int32) -> [T, hidden]."""

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """Return (norm(x + residual), x + residual), both [T, hidden]; without a residual (norm(x), x).

        May overwrite ``x`` and ``residual``; x may be what ``linear`` left in parts.
        """

    @abstractmethod
    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        """[T, in of this rank] -> [T, out of this rank], summed over ranks where ``layer.sums_ranks``.

        Where ``layer.feeds_residual``, a backend may leave a sum in parts, for its ``add_rms_norm``: [parts, T, out].
        """

    @abstractmethod
    def qk_norm_rope_store(self, qkv: Tensor, layer: Attention, batch: ForwardBatch) -> Tensor:
        """Turn the packed projection into queries, and keys and values in the cache.

        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], queries, keys, values; may be overwritten.
        Queries and keys are normalised over each head where the layer has norms, then rotated by
        ``batch.positions``. Keys and values go to ``batch.slot_mapping``; a slot of -1 is skipped.
        Returns the queries [T, num_heads, head_dim].
        """

    @abstractmethod
    def attention(self, q: Tensor, layer: Attention, batch: ForwardBatch) -> Tensor:
        """Attend from q [T, num_heads, head_dim] to the paged cache -> [T, num_heads * head_dim].

        All keys and values, those of this step too, are in the cache, and are read through ``batch.block_tables``; what
        is as it is there may be read elsewhere.
        A token at position p sees positions 0..p of its sequence and no slot beyond ``context_lens``,
        whatever that holds. Rows of padding give finite values that nobody uses.
        """

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * n] -> silu(first half) * second half, [T, n]."""

    @abstractmethod
    def moe(self, x: Tensor, layer: MoE) -> Tensor:
        """Send each token of x [T, hidden] to its experts -> [T, hidden], summed over ranks where it must be.

        A softmax over all experts gives their probabilities; the ``top_k`` greatest are a token's experts, and
        their probabilities the weights of the sum of their outputs, scaled to sum to 1 only with
        ``norm_topk_prob``. A token's result does not depend on where the others go.
        """

    @abstractmethod
    def logits(self, hidden: Tensor, rows: Tensor | None, head: LMHead) -> Tensor:
        """Multiply some rows of hidden [T, hidden] by the head -> [R, vocab] float32, all of the vocabulary.

        rows: [R] int32, or None for all T.
        """

    @abstractmethod
    def sample(self, logits: Tensor, batch: ForwardBatch) -> Tensor:
        """Choose a token id for each row of logits [R, vocab] float32 -> [R] int64.

        Temperature 0 is the argmax (the first on ties); otherwise a draw from softmax(logits / temperature)
        that depends on the row, its temperature and its ``sample_keys`` alone. Where the batch has ``controls``, they
        change their rows first (``layers.controls``). A row without a finite maximum (NaN, +inf, or all -inf) gives
        -1, which ends its request. The logits are kept as they are.
        """

    # --- compositions, which a backend may replace by something faster ---

    def gated_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """``silu_mul`` of ``linear``: [T, in] -> [T, out / 2]."""
        return self.silu_mul(self.linear(x, layer))

    def decoder_layer(
        self, layer: DecoderLayer, hidden: Tensor, residual: Tensor | None, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Run one layer on hidden [T, hidden]; a backend with a fused layer overrides this."""
        return layer.forward(self, hidden, residual, batch)

    # --- ids from step to step ---

    def draw(self, logits: Tensor, batch: ForwardBatch) -> Tensor:
        """``sample`` on rank 0, of which all ranks learn: they could not do without agreeing on every id."""
        if self.ranks.rank == 0:
            return self.ranks.share(self.sample(logits, batch))
        return self.ranks.share(torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device))

    def feed(self, batch: ForwardBatch) -> None:
        """Put the ids kept last in the place of the negative ones of a begun batch's ``input_ids``."""
        ids, last = batch.input_ids, self.last_ids
        stands_in = ids < 0
        # A row for which no token could be chosen has -1, and ends; what is computed for it is dropped.
        ids.copy_(torch.where(stands_in, last[(-1 - ids).clamp(min=0)].clamp(min=0).to(ids.dtype), ids))

    def keep(self, ids: Tensor) -> None:
        """Keep a step's sampled ids [R] for the next one to be fed with."""
        self.last_ids = ids

    def begin_step(self) -> Any:
        """A moment on the device's clock, for ``read_back``; None where there is no such clock."""
        return None

    def read_back(self, ids: Tensor, began: Any, unread: Ids | None) -> Ids:
        """Send sampled ids on their way to the host. unread: those of the step before, if nobody has read them."""
        return Ids(ids)

    def replay(self, batch: DecodeBatch) -> Tensor:
        """Run a decode step as the graph of its size: sampled ids [size] int64, those of padding included.

        Only for a size that ``dispatch`` has named. It is fed, and its ids are kept, as above; they are good until the
        next step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no graphs")

    def replay_prefill(self, batch: ForwardBatch, size: int) -> Tensor:
        """``replay`` for a step with prompt tokens that has not begun: sampled ids [R] int64."""
        raise NotImplementedError(f"{type(self).__name__} has no graphs")

    def step(self, model: CausalLM, batch: ForwardBatch) -> Tensor:
        """Run a begun batch from token ids to sampled ids [R] int64."""
        hidden = model.forward(self, batch)
        return self.draw(self.logits(hidden, batch.logits_rows, model.lm_head), batch)
