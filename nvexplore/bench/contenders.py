"""nvexplore and its peers as the benchmark sees them: load once, run a workload, say when the first token was there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from nvexplore.bench.workload import Run, Workload
from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams


class Nvexplore:
    """The engine as ``LLM.generate`` drives it: whole steps, scheduling and sampling included, nobody watching."""

    name = "nvexplore"

    def __init__(self, path: Path, dtype: str, largest: Workload) -> None:
        tokens = largest.prompt_len + largest.new_tokens
        self._llm = LLM(
            path,
            dtype=dtype,
            max_num_seqs=largest.batch,
            # All prompts in one step, as the peer has them; and no hits, which would skip the second run's prefill.
            max_num_batched_tokens=largest.batch * largest.prompt_len,
            enable_prefix_caching=False,
            max_model_len=tokens,
            num_kvcache_blocks=largest.batch * -(-tokens // 16),
            block_size=16,
        )
        self.vocab_size = self._llm.model_config.vocab_size

    def run(self, workload: Workload) -> Run:
        engine = self._llm.engine
        params = SamplingParams(temperature=0, max_tokens=workload.new_tokens, ignore_eos=True)
        started = time.perf_counter()
        seqs = [engine.add_request(prompt, params) for prompt in workload.prompts(self.vocab_size)]
        while not all(seq.num_completion_tokens for seq in seqs):
            engine.step()
        first = time.perf_counter()
        while engine.has_unfinished:
            engine.step()
        return Run([seq.completion_token_ids for seq in seqs], first - started, time.perf_counter() - first)

    def close(self) -> None:
        self._llm.close()


class Transformers:
    """``generate`` of transformers with its defaults, greedy, through any end-of-sequence id."""

    name = "transformers"

    def __init__(self, path: Path, dtype: str, largest: Workload) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        self._model.train(False)
        config = self._model.generation_config
        config.do_sample, config.temperature, config.top_p, config.top_k = False, None, None, None
        config.eos_token_id, config.pad_token_id = None, 0
        self.vocab_size: int = self._model.config.vocab_size

    def run(self, workload: Workload) -> Run:
        from transformers import StoppingCriteriaList

        ids = torch.tensor(workload.prompts(self.vocab_size), device=self._model.device)
        times: list[float] = []

        def note_time(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            times.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

        started = time.perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=workload.new_tokens,
            # Asked once after every token: the cheapest way to see when the first was there.
            stopping_criteria=StoppingCriteriaList([note_time]),
        )
        return Run(out[:, workload.prompt_len :].tolist(), times[0] - started, times[-1] - times[0])

    def close(self) -> None:
        del self._model


PEERS = {"transformers": Transformers}
