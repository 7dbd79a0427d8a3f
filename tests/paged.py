"""Drives a ``ModelRunner`` by hand: sequences with block tables in random order, in a pool full of NaN."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.model_config import ModelConfig
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.sampling_params import SamplingParams

torch.set_num_threads(1)


class Paged:
    """A runner, its free blocks in random order, and what a scheduler would do with them."""

    def __init__(self, path: Path, *, block_size: int = 4, num_blocks: int = 96, **options: Any) -> None:
        options = {
            "device": "cpu",
            "max_num_batched_tokens": 256,
            "max_num_seqs": 16,
            "max_model_len": 128,
            **options,
        }
        config = ModelConfig.from_path(path)
        self.runner = ModelRunner(path, config, block_size=block_size, num_kvcache_blocks=num_blocks, **options)
        self.block_size = block_size
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Forget everything: every slot holds NaN, so whatever is read without having been written shows."""
        self.runner.kv_cache.pool.fill_(torch.nan)
        self.free = list(range(self.runner.num_blocks))
        random.Random(seed).shuffle(self.free)
        self.num_seqs = 0

    def seq(self, ids: list[int], *, prefix: Sequence | None = None, temperature: float = 0) -> Sequence:
        """Make a sequence; the whole blocks it has in common with ``prefix`` come from there, already computed."""
        seq = Sequence(
            self.num_seqs,
            list(ids),
            SamplingParams(temperature=temperature),
            request_id=f"r{self.num_seqs}",
        )
        self.num_seqs += 1
        if prefix is not None:
            while (len(seq.block_table) + 1) * self.block_size < len(ids):
                end = (len(seq.block_table) + 1) * self.block_size
                if prefix.num_computed_tokens < end or ids[:end] != prefix.token_ids[:end]:
                    break
                seq.block_table.append(prefix.block_table[len(seq.block_table)])
            seq.num_computed_tokens = seq.num_cached_tokens = len(seq.block_table) * self.block_size
        return seq

    def batch(self, *rows: tuple[Sequence, int]) -> ScheduledBatch:
        """Schedule the next ``count`` tokens of each sequence, with the blocks that takes."""
        batch = ScheduledBatch()
        for seq, count in rows:
            while len(seq.block_table) * self.block_size < seq.num_computed_tokens + count:
                seq.block_table.append(self.free.pop())
            batch.add(seq, count, is_prefill=seq.num_computed_tokens < seq.num_prompt_tokens)
        return batch

    def logits(self, *rows: tuple[Sequence, int]) -> list[Tensor]:
        """Run the rows; return the logits of all their tokens, a tensor [count, vocab] a row."""
        out = self.runner.forward_logits(self.batch(*rows), all_positions=True)
        self.commit(*rows)
        return list(out.split([count for _, count in rows]))

    def step(self, *rows: tuple[Sequence, int]) -> list[int]:
        """Run the rows and append the sampled tokens, as an engine does."""
        batch = self.batch(*rows)
        ids = self.runner.run(batch)
        self.commit(*rows)
        sampled = [seq for seq, samples in zip(batch.seqs, batch.samples, strict=True) if samples]
        for seq, token_id in zip(sampled, ids, strict=True):
            seq.token_ids.append(token_id)
        return ids

    @staticmethod
    def commit(*rows: tuple[Sequence, int]) -> None:
        for seq, count in rows:
            seq.num_computed_tokens += count


@cache
def hugging_face(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The same checkpoint in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def reference_logits(path: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """transformers' logits [len(ids), vocab], float32, from one pass without any cache."""
    with torch.inference_mode():
        logits: Tensor = hugging_face(path, dtype)(torch.tensor([ids]), use_cache=False).logits[0]
        return logits.float()


def token_ids(count: int, seed: int = 0, vocab_size: int = 256) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(vocab_size) for i in range(count)]


def difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; NaN where either has one, which is below no limit."""
    assert actual.shape == expected.shape
    return float((actual - expected).abs().max())
