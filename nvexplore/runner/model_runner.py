"""Runs scheduled batches through a model: weights, KV pool and backend of one engine.

Implements the engine's ``Runner``. Knows nothing of queues, and leaves torch's defaults, threads and random
state as they are.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from nvexplore.backends import create_backend
from nvexplore.checks import check_int
from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch
from nvexplore.runner.kv_cache import KVCache, KVCacheShape
from nvexplore.runner.weights import Progress, load_weights
from nvexplore.sampling_params import SamplingParams

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class NonFiniteLogitsError(ArithmeticError):
    """The logits of these requests are not numbers (NaN or infinite): no token can be chosen for them.

    request_ids, seq_ids: the requests, in row order.
    """

    def __init__(self, seqs: list[Sequence]) -> None:
        self.request_ids = [seq.request_id for seq in seqs]
        self.seq_ids = [seq.seq_id for seq in seqs]
        super().__init__(f"logits of request {', '.join(map(repr, self.request_ids))} are NaN or infinite")


class ModelRunner:
    """A model on one device with its paged KV pool.

    num_blocks, block_size: the pool's; vocab_size: token ids are below it; dtype: of weights and KV.
    model, kv_cache, backend: to look at; they are gone after ``close``.
    """

    def __init__(
        self,
        path: str | Path,
        model_config: ModelConfig,
        *,
        device: str | torch.device,
        dtype: str | torch.dtype = "auto",
        block_size: int,
        num_kvcache_blocks: int | None = None,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        attention_backend: str = "auto",
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Load the checkpoint in ``path``, make the pool, run one token; a ValueError names what is wrong."""
        check_int("block_size", block_size, minimum=1)
        check_int("max_num_seqs", max_num_seqs, minimum=1)
        check_int("max_num_batched_tokens", max_num_batched_tokens, minimum=1)
        model_config.check_max_model_len(max_model_len)
        if num_kvcache_blocks is not None:
            check_int("num_kvcache_blocks", num_kvcache_blocks, minimum=1)
        self.block_size = block_size
        self.vocab_size = model_config.vocab_size
        self.dtype = resolve_dtype(dtype, model_config)
        self._seed = seed
        self._closed = False
        self.backend = create_backend(device, self.dtype, attention_backend)
        device = self.backend.device
        self.model = CausalLM(model_config, max_positions=max_model_len, placement=Placement(self.dtype, device))
        load_weights(self.model, path, progress)
        self.backend.prepare_weights(self.model)
        layers = [layer.self_attn for layer in self.model.decoder_layers()]
        shape = KVCacheShape.of(layers, block_size, self.dtype)
        if num_kvcache_blocks is None:
            # What the largest batch of the longest sequences can hold; more would only be prefix cache.
            useful = max_num_seqs * -(-max_model_len // block_size)
            num_kvcache_blocks = shape.num_blocks(self.backend.available_memory(), useful_blocks=useful)
        self.kv_cache = KVCache(shape, num_kvcache_blocks, device)
        self.kv_cache.bind(layers)
        self.num_blocks = num_kvcache_blocks
        self._warm_up()

    def run(self, batch: ScheduledBatch) -> list[int]:
        """Compute the batch; return one token id for each row whose ``samples`` is True, in row order.

        Raises NonFiniteLogitsError for rows without a usable maximum.
        """
        self._check_open()
        if not batch.seqs:
            return []
        with torch.inference_mode():
            begun = self._begin(batch)
            if begun.num_samples:
                ids: list[int] = self.backend.step(self.model, begun).tolist()
            else:
                self.model.forward(self.backend, begun)
                ids = []
        if any(token_id < 0 for token_id in ids):
            sampled = (seq for seq, samples in zip(batch.seqs, batch.samples, strict=True) if samples)
            raise NonFiniteLogitsError([seq for seq, i in zip(sampled, ids, strict=True) if i < 0])
        return ids

    def forward_logits(self, batch: ScheduledBatch, *, all_positions: bool = False) -> Tensor:
        """Compute the batch, KV too; return float32 logits [n, vocab] of the sampled rows, or of all."""
        self._check_open()
        with torch.inference_mode():
            begun = self._begin(batch)
            hidden = self.model.forward(self.backend, begun)
            rows = None if all_positions else begun.logits_rows
            return self.backend.logits(hidden, rows, self.model.lm_head)

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        """Say how ``run`` would run this batch; touches no device."""
        num_prefill = sum(batch.is_prefill)
        return self.backend.dispatch(num_prefill, len(batch.is_prefill) - num_prefill)

    def close(self) -> None:
        """Free the weights and the pool; may be called again. A closed runner runs nothing more."""
        if not self._closed:
            self._closed = True
            self.backend.close()
            del self.model, self.kv_cache

    def _begin(self, batch: ScheduledBatch) -> ForwardBatch:
        return self.backend.begin(build_forward_batch(batch, self.block_size, seed=self._seed))

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this model runner is closed")

    def _warm_up(self) -> None:
        """Run one token in block 0: the first step pays for no set-up, and broken weights show at once."""
        seq = Sequence(0, [0], SamplingParams(temperature=0), request_id="warm-up")
        seq.block_table = [0]
        batch = ScheduledBatch()
        batch.add(seq, 1, is_prefill=True)
        self.run(batch)


def resolve_dtype(dtype: str | torch.dtype, config: ModelConfig) -> torch.dtype:
    """Return the dtype of weights and KV; "auto" is the checkpoint's own, or float32 where it names none.

    Warns of float16 for a bfloat16 checkpoint: the numbers in it may be larger than float16's greatest, 65504.
    """
    name = str(dtype).removeprefix("torch.")
    name = (config.dtype or "float32") if name == "auto" else name
    if name not in _DTYPES:
        raise ValueError(f"dtype={name!r} is not supported (supported: auto, {', '.join(_DTYPES)})")
    if (name, config.dtype) == ("float16", "bfloat16"):
        warnings.warn(
            "dtype='float16' for a bfloat16 checkpoint: values above 65504 become infinite and the request fails "
            "with NaN logits; dtype='auto' avoids it",
            stacklevel=2,
        )
    return _DTYPES[name]
