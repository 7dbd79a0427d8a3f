"""Runs scheduled batches through a model: weights, KV pool and backend of one engine.

Implements the engine's ``Runner``. Knows nothing of queues, and leaves torch's defaults, threads and random
state as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvexplore.backends import create_backend
from nvexplore.backends.ranks import Ranks
from nvexplore.checks import check_int
from nvexplore.engine.batch import Dispatch, Launched, Sampled, ScheduledBatch
from nvexplore.half_made import closed_if_it_fails
from nvexplore.layers.controls import Controls
from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.block_tables import BlockTables
from nvexplore.runner.decode_rows import DecodeBatch, DecodeRows
from nvexplore.runner.dtype import resolve_dtype
from nvexplore.runner.execution import Execution
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch
from nvexplore.runner.kv_cache import DeviceMemory, KVCache, KVCacheShape
from nvexplore.runner.launched import LaunchedBatch
from nvexplore.runner.memory_ledger import ledger_of
from nvexplore.runner.stopwatch import Stopwatch
from nvexplore.runner.warm_up import run_largest, run_one_token
from nvexplore.runner.weights import Progress, load_weights
from nvexplore.runner.wishes import wishes_of
from nvexplore.runner.with_logprobs import run_with_logprobs


class ModelRunner:
    """A model on one device with its paged KV pool.

    num_blocks, block_size: the pool's; vocab_size: token ids are below it; dtype: of weights and KV.
    model, kv_cache, backend: to look at; they are gone after ``close``. memory: where it goes.
    execution: what runs the steps once they are laid out.
    load_times: seconds by stage: "weights", "memory" (measured, with kernels compiled), "warm_up", "capture".
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
        enforce_eager: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
        loaded: Callable[[], None] | None = None,
        **backend_options: Any,
    ) -> None:
        """Load the checkpoint in ``path``, make the pool, run one token; a ValueError names what is wrong.

        ranks: the processes that make runners of the same model at this moment, each with its share of it.
        loaded: called once this one's share is loaded; on rank 0 it waits until those of all are.
        backend_options: what ``create_backend`` takes beside these.
        """
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
        self._tables = BlockTables()
        self._closed = False
        self._end: Callable[[], None] = lambda: None
        ranks = Ranks() if ranks is None else ranks
        self.backend = create_backend(
            device, self.dtype, block_size=block_size, head_dim=model_config.head_dim, ranks=ranks, **backend_options
        )
        device = self.backend.device
        clock = Stopwatch()
        self.load_times = clock.seconds
        longest, limits = -(-max_model_len // block_size), (max_num_batched_tokens, max_num_seqs, max_model_len)
        # No local variable here holds weights: this call stands in the traceback of what fails within.
        with closed_if_it_fails(partial(self._drop, releases=ranks.size == 1)):
            placement = Placement(self.dtype, device, ranks.rank, ranks.size)
            self.model = CausalLM(model_config, max_positions=max_model_len, placement=placement)
            load_weights(self.model, path, progress)
            self.backend.prepare_weights(self.model)
            self.execution = Execution(self.model, self.backend)
            clock.lap("weights")
            if loaded is not None:
                loaded()
                ranks.least(0)  # at once: while all are known to be here, they find each other
            shape = KVCacheShape.of(
                self.model.attentions(), block_size, self.dtype, backend_options.get("kv_cache_dtype", "auto")
            )
            # What the largest batch of the longest sequences can hold: on a CPU more would only be prefix cache.
            useful = max_num_seqs * longest if device.type == "cpu" else None
            available: int | DeviceMemory | None = None
            if num_kvcache_blocks is None:
                available = self.backend.available_memory(
                    lambda: run_largest(self.run, self.model, shape, device, *limits)
                )
                # What the scheduler hands out, every rank must have.
                num_kvcache_blocks = ranks.least(shape.num_blocks(available, useful_blocks=useful))
            self.kv_cache = KVCache(shape, num_kvcache_blocks, device, self.backend.whole_memory())
            self.kv_cache.bind(self.model.attentions())
            self.num_blocks = num_kvcache_blocks
            max_rows = min(max_num_seqs, max_num_batched_tokens)
            self._rows = DecodeRows(block_size=block_size, seed=seed, max_rows=max_rows, max_blocks=longest)
            clock.lap("memory")
            self._warm_up()
            clock.lap("warm_up")
            if not enforce_eager:
                with self.backend.active():
                    self.backend.capture(
                        self.model,
                        max_num_seqs=max_rows,
                        max_num_batched_tokens=max_num_batched_tokens,
                        max_blocks=longest,
                        block_size=block_size,
                        progress=progress is not None,
                    )
            clock.lap("capture")
            self.memory = ledger_of(
                str(device),
                weights=sum({p.data_ptr(): p.nbytes for p in self.model.parameters()}.values()),
                shape=shape,
                num_blocks=num_kvcache_blocks,
                available=available,
                useful_blocks=useful,
                graphs=self.backend.graph_bytes,
                num_ranks=ranks.size,
            )

    def run(self, batch: ScheduledBatch) -> list[int] | Sampled:
        """Compute the batch; return one token id for each row whose ``samples`` is True, in row order.

        -1 for a row whose logits have no finite maximum. A ``Sampled`` where there is more to tell.
        """
        self._check_open()
        return self.launch(batch, None).wait() if batch.seqs else []

    def launch(self, batch: ScheduledBatch, previous: Launched | None) -> LaunchedBatch:
        """Give the batch to the device; what comes of it is waited for later. See ``OverlappingRunner``."""
        self._check_open()
        assert previous is None or isinstance(previous, LaunchedBatch)
        wishes = wishes_of(batch, self.vocab_size)
        controls = None if wishes is None else wishes.controls
        backend = self.backend
        with self.backend.active():
            if wishes is not None and (wishes.logprobs or wishes.prompts):
                told = run_with_logprobs(self.execution, self._build(batch, controls, None), batch, wishes)
                return LaunchedBatch(batch, None, told)
            size = self.dispatch(batch).graph_size
            laid: ForwardBatch | DecodeBatch
            if size is not None and batch.num_decodes == len(batch.seqs):
                laid, is_fed = self._rows.build(batch, size, backend.staging, controls, previous), False
            else:
                laid = self._build(batch, controls, previous, None if size is not None else backend.staging)
                is_fed = previous is not None and _needs_ids(batch)
            began = backend.begin_step()
            ids = self.execution.run(laid, size, is_fed=is_fed)
            reading = backend.read_back(ids, began, None if previous is None else previous.ids)
            return LaunchedBatch(batch, reading, check=self.execution.check)

    def lead(self, execution: Execution, end: Callable[[], None]) -> None:
        """From now on run steps by ``execution``, which makes other ranks run them too; ``close`` calls ``end``."""
        self.execution, self._end = execution, end

    def forward_logits(self, batch: ScheduledBatch, *, all_positions: bool = False) -> Tensor:
        """Compute the batch, KV too; return float32 logits [n, vocab] of the sampled rows, or of all."""
        self._check_open()
        with self.backend.active():
            self.execution.forward(self._build(batch, None, None))
            logits = self.execution.logits("all" if all_positions else "sampled")
            self.execution.forget()
            return logits

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        """Say how ``run`` would run this batch; touches no device."""
        num_prefill = sum(batch.is_prefill)
        found = self.backend.dispatch(num_prefill, len(batch.is_prefill) - num_prefill, batch.num_tokens)
        if found.graph_size is not None and any(
            seq.logprobs is not None or seq.lacks_prompt_logprobs for seq in batch.seqs
        ):
            # A graph keeps no logits that are read while it may run again.
            return found._replace(graph_size=None, padding=None, eager_reason="log probabilities")
        return found

    def close(self) -> None:
        """Free the weights and the pool; may be called again. A closed runner runs nothing more."""
        if not self._closed:
            self._closed = True
            self._end()
            self._drop()

    def _drop(self, *, releases: bool = True) -> None:
        """releases: give what is free then back to the device, which waits for it, and so for the other ranks."""
        self._closed = True
        self.backend.close()
        for name in ("model", "kv_cache", "execution"):
            self.__dict__.pop(name, None)  # a runner that was never made has not all of them
        if releases:
            self.backend.release()

    def _build(
        self,
        batch: ScheduledBatch,
        controls: Controls | None,
        previous: LaunchedBatch | None,
        buffer: Callable[[int], Tensor] | None = None,
    ) -> ForwardBatch:
        return build_forward_batch(
            batch,
            self.block_size,
            seed=self._seed,
            controls=controls,
            tables=self._tables,
            buffer=buffer,
            previous=previous,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this model runner is closed")

    def _warm_up(self) -> None:
        run_one_token(self.run)


def _needs_ids(batch: ScheduledBatch) -> bool:
    """Whether some row begins with a token that the step before is about to yield."""
    return any(
        start + count > len(seq.token_ids)
        for seq, start, count in zip(batch.seqs, batch.starts, batch.counts, strict=True)
    )
