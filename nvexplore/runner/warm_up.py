"""The steps that a runner runs while it is made: the largest, in a pool that is gone afterwards, and one token."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nvexplore.engine.batch import Sampled, ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.kv_cache import KVCache, KVCacheShape
from nvexplore.runner.largest import largest_batches
from nvexplore.sampling_params import SamplingParams

Run = Callable[[ScheduledBatch], list[int] | Sampled]


class NonFiniteLogitsError(ArithmeticError):
    """A model that was just loaded gives logits that are NaN or infinite, so it could say nothing."""


def run_largest(
    run: Run,
    model: CausalLM,
    shape: KVCacheShape,
    device: torch.device,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
) -> int:
    """Run the largest steps within these limits; return the bytes of the pool that they ran in.

    No layer has anything of it afterwards.
    """
    layers = model.attentions()
    num_blocks = -(-max_model_len // shape.block_size)
    try:
        cache = KVCache(shape, num_blocks, device)
    except ValueError as error:  # nobody asked for so many blocks, but for so long a sequence
        raise ValueError(f"max_model_len={max_model_len}: one sequence of it has no room: {error}") from None
    cache.bind(layers)
    try:
        for batch in largest_batches(max_num_batched_tokens, max_num_seqs, max_model_len, list(range(num_blocks))):
            run(batch)
    finally:
        cache.unbind(layers)
    return cache.pool.nbytes


def run_one_token(run: Run) -> None:
    """Run one token in block 0: the first step pays for no set-up, and broken weights show at once."""
    seq = Sequence(0, [0], SamplingParams(temperature=0), request_id="warm-up")
    seq.block_table = [0]
    batch = ScheduledBatch()
    batch.add(seq, 1, is_prefill=True)
    if run(batch) == [-1]:
        raise NonFiniteLogitsError("the model's logits are NaN or infinite already for its first token")
