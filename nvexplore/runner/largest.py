"""The steps that take the most memory. They are run once, before the KV pool is made, to see how much it may have."""

from __future__ import annotations

from collections.abc import Iterator

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams


def largest_batches(
    max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int, block_table: list[int]
) -> Iterator[ScheduledBatch]:
    """Yield the longest prefill, then the most rows to sample; all rows share ``block_table``.

    Block table: blocks for ``max_model_len`` tokens.
    """
    prefill, left = ScheduledBatch(), max_num_batched_tokens
    for number in range(max_num_seqs):
        count = min(left, max_model_len)
        if not count:
            break
        prefill.add(_sequence(number, count, block_table), count, is_prefill=True)
        left -= count
    yield prefill
    rows = ScheduledBatch()
    for number in range(min(max_num_seqs, max_num_batched_tokens)):
        rows.add(_sequence(number, 1, block_table), 1, is_prefill=True)
    yield rows


def _sequence(number: int, num_tokens: int, block_table: list[int]) -> Sequence:
    seq = Sequence(number, [0] * num_tokens, SamplingParams(), request_id=f"warm-up {number}")
    seq.block_table = block_table
    return seq
