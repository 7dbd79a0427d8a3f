"""The operations on a GPU: cuBLAS for most matrices, the project's Triton kernels for all else.

Decode steps of a captured size are replayed as CUDA graphs (``cuda_graphs``); everything else is launched step by step.
Nothing here waits for the device but ``available_memory`` and, in a step with filters, ``layers.controls``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.backends.attention import PagedAttention
from nvexplore.backends.attention.by_phase import names_by_phase
from nvexplore.backends.base import Backend
from nvexplore.backends.cuda_graphs import DecodeGraphs
from nvexplore.backends.cuda_memory import measured_memory
from nvexplore.backends.graphs import release_memory
from nvexplore.backends.grouped_experts import grouped_experts
from nvexplore.backends.kernels.add_rms_norm import add_rms_norm
from nvexplore.backends.kernels.feed_ids import feed_ids
from nvexplore.backends.kernels.few_rows_linear import few_rows_linear, most_rows, takes
from nvexplore.backends.kernels.gumbel import gumbel_sample
from nvexplore.backends.kernels.launch import launches_early
from nvexplore.backends.kernels.qk_norm_rope_store import qk_norm_rope_store
from nvexplore.backends.kernels.silu_mul import silu_mul
from nvexplore.backends.ranks import add_up, embed
from nvexplore.backends.read_back import Ids, ReadBack
from nvexplore.backends.routing import route
from nvexplore.backends.staging import Staging
from nvexplore.engine.batch import Dispatch
from nvexplore.layers.attention import Attention
from nvexplore.layers.controls import apply_controls
from nvexplore.layers.embedding import Embedding, LMHead
from nvexplore.layers.linear import Linear
from nvexplore.layers.moe import MoE
from nvexplore.layers.norm import RMSNorm
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.kv_cache import DeviceMemory

if TYPE_CHECKING:
    from nvexplore.models.decoder import CausalLM
    from nvexplore.runner.decode_rows import DecodeBatch


class CudaBackend(Backend):
    """``Backend`` on one GPU, in float32, bfloat16 or float16.

    utilization: the share of the device's memory that this engine may use, all in all.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, attention: PagedAttention, *, utilization: float = 0.9
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._attention = attention
        self._utilization = utilization
        self._graphs: DecodeGraphs | None = None
        self._no_graphs = "enforce_eager"
        self._staging = Staging(device)
        self._read_back = ReadBack(device)
        # Graphs of up to so many tokens are launched early, with a kernel of our own for matrices.
        self.early_tokens = most_rows(device)
        # What other engines of this process hold is not this one's.
        self._held_before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    # --- once an engine, once a step ---

    @contextmanager
    def active(self) -> Iterator[None]:
        # Triton launches on the current device, which need not be this engine's.
        device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with torch.inference_mode(), device:
            yield

    def staging(self, size: int) -> Tensor:
        return self._staging.take(size)

    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        moved = batch.to(self.device)
        self._staging.sent()
        return replace(moved, plan=self._attention.plan(batch, moved))

    def feed(self, batch: ForwardBatch) -> None:
        feed_ids(batch.input_ids, self.last_ids)

    def keep(self, ids: Tensor) -> None:
        if self._graphs is None:
            self.last_ids = ids
        else:
            self._graphs.last_ids[: ids.shape[0]].copy_(ids)

    def begin_step(self) -> Any:
        return self._read_back.begin()

    def read_back(self, ids: Tensor, began: Any, unread: Ids | None) -> Ids:
        return self._read_back.start(ids, began, unread)

    def dispatch(self, num_prefill: int, num_decode: int, num_tokens: int | None = None) -> Dispatch:
        prefill, decode = names_by_phase(self._attention, num_prefill, num_decode)
        graphs, size, why = self._graphs, None, "prefill" if num_prefill else self._no_graphs
        if num_tokens is None or not num_prefill:
            num_tokens = num_decode
        if graphs is not None and not num_prefill:
            size = graphs.size_for(num_decode)
            why = f"more than {graphs.largest} rows"
        elif graphs is not None and graphs.prefill is not None:
            size = graphs.prefill.size_for(num_tokens, num_prefill + num_decode)
        return Dispatch(
            graph_size=size,
            padding=None if size is None else size - num_tokens,
            eager_reason=None if size is not None else why,
            prefill_backend=prefill,
            decode_backend=decode,
        )

    def capture(
        self,
        model: CausalLM,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_blocks: int,
        block_size: int,
        progress: bool,
    ) -> None:
        graphs = DecodeGraphs(self, self._attention, max_num_seqs, max_blocks, block_size)
        try:
            graphs.capture_all(model, max_num_batched_tokens, progress=progress)
        except torch.OutOfMemoryError:
            graphs.close()
            if self.ranks.size > 1:
                raise  # the others have memory, perhaps, and would wait for this rank in the middle of their graphs
            self._no_graphs = "no memory was left to capture graphs"
            warnings.warn(
                f"{self._no_graphs}, so decode steps are launched kernel by kernel: lower gpu_memory_utilization="
                f"{self._utilization:g} or max_num_seqs={max_num_seqs}, or set enforce_eager=True",
                stacklevel=2,
            )
        else:
            self._graphs, self.graph_bytes = graphs, graphs.num_bytes
            self.last_ids = graphs.last_ids

    def available_memory(self, run_largest: Callable[[], int]) -> DeviceMemory:
        return measured_memory(self.device, self._held_before, self._utilization, run_largest)

    def close(self) -> None:
        self._attention.close()
        if self._graphs is not None:
            self._graphs.close()
        self._graphs, self._no_graphs = None, "the engine is closed"
        self._staging.close()
        self._read_back.close()
        self.last_ids = torch.empty(0, dtype=torch.int64, device="cpu")

    def release(self) -> None:
        if self.device.type == "cuda":
            release_memory()

    # --- operations ---

    def embedding(self, input_ids: Tensor, layer: Embedding) -> Tensor:
        return embed(input_ids, layer, self.ranks)

    def add_rms_norm(self, x: Tensor, residual: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, norm.weight, norm.eps)

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        if layer.sums_ranks:
            return add_up(functional.linear(x, layer.weight), layer, self.ranks)
        if launches_early() and takes(x, layer.weight, splits=layer.feeds_residual):
            return few_rows_linear(x, layer.weight, layer.bias, splits=layer.feeds_residual)
        return functional.linear(x, layer.weight, layer.bias)

    def gated_linear(self, x: Tensor, layer: Linear) -> Tensor:
        if launches_early() and takes(x, layer.weight, is_gated=True):
            return few_rows_linear(x, layer.weight, layer.bias, is_gated=True)
        return super().gated_linear(x, layer)

    def qk_norm_rope_store(self, qkv: Tensor, layer: Attention, batch: ForwardBatch) -> Tensor:
        q_norm, k_norm = layer.q_norm, layer.k_norm
        taken = self._attention.offer(qkv, layer.k_cache, batch.plan)
        return qk_norm_rope_store(
            qkv,
            layer.k_cache,
            layer.v_cache,
            batch.slot_mapping,
            batch.positions,
            layer.rotary.cos_sin,
            None if q_norm is None else (q_norm.weight, q_norm.eps),
            None if k_norm is None else (k_norm.weight, k_norm.eps),
            keeps_keys=taken,
        )

    def attention(self, q: Tensor, layer: Attention, batch: ForwardBatch) -> Tensor:
        return self._attention.forward(q, layer.k_cache, layer.v_cache, layer.scale, batch.plan).flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)

    def moe(self, x: Tensor, layer: MoE) -> Tensor:
        weights, chosen = route(self.linear(x, layer.gate), layer.top_k, norm=layer.norm_topk_prob)
        out = grouped_experts(x, weights, chosen, layer.experts.gate_up_proj, layer.experts.down_proj)
        return self.ranks.sum(out) if layer.sums_ranks else out

    def logits(self, hidden: Tensor, rows: Tensor | None, head: LMHead) -> Tensor:
        return self.raw_logits(hidden, rows, head).float()

    def raw_logits(self, hidden: Tensor, rows: Tensor | None, head: LMHead) -> Tensor:
        """``logits`` in the backend's dtype: the sampler widens them as it reads."""
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        logits = functional.linear(hidden, head.weight)
        return self.ranks.gather(logits) if head.gathers_ranks else logits

    def sample(self, logits: Tensor, batch: ForwardBatch) -> Tensor:
        if batch.controls is not None:
            logits = apply_controls(logits.float(), batch.temperatures, batch.controls)
        return gumbel_sample(logits, batch.temperatures, batch.sample_keys)

    def replay(self, batch: DecodeBatch) -> Tensor:
        assert self._graphs is not None  # dispatch named a size
        ids = self._graphs.replay(batch)
        self._staging.sent()
        return ids

    def replay_prefill(self, batch: ForwardBatch, size: int) -> Tensor:
        assert self._graphs is not None and self._graphs.prefill is not None  # dispatch named a size
        graphs = self._graphs.prefill
        ids = graphs.replay(batch, size, self._staging.take(graphs.num_words(batch, size)))
        self._staging.sent()
        return ids

    def step(self, model: CausalLM, batch: ForwardBatch) -> Tensor:
        hidden = model.forward(self, batch)
        return self.draw(self.raw_logits(hidden, batch.logits_rows, model.lm_head), batch)
