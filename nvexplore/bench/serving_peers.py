"""The peers as servers, with their defaults but the length limit. None is imported before it is made."""

from __future__ import annotations

import atexit
import importlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from nvexplore.bench.serving import TEMPERATURE, Arrival
from nvexplore.bench.serving_arrivals import Progress, serve
from nvexplore.model_config import ModelConfig


class Peer:
    """module: what is imported; how_to_get: what to do where it is missing."""

    name: ClassVar[str]
    module: ClassVar[str]
    how_to_get: ClassVar[str]

    @classmethod
    def refusal(cls, config: ModelConfig, dtype: str, *, has_gpu: bool) -> str | None:
        """Why it cannot run such a model here, where that is known before it is loaded."""
        return None


class NanoVllm(Peer):
    """nano-vLLM: it has one model family, runs it in the checkpoint's dtype, and samples greedily never."""

    name = "nano-vllm"
    module = "nanovllm"
    how_to_get = "give a checkout of github.com/GeeeekExplorer/nano-vllm as --peer-path"

    @classmethod
    def refusal(cls, config: ModelConfig, dtype: str, *, has_gpu: bool) -> str | None:
        if not has_gpu:
            return "runs on a GPU only, and torch sees none here"
        if config.architecture != "Qwen3ForCausalLM":
            return f"runs Qwen3ForCausalLM only, not {config.architecture}"
        own = config.dtype or "float32"
        return None if dtype == own else f"runs this checkpoint in its own dtype, {own}, not in {dtype}"

    def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float) -> None:
        from nanovllm import LLM  # type: ignore[import-not-found]

        begin = time.perf_counter()
        self._llm = LLM(str(path), enforce_eager=False, max_model_len=max_model_len, gpu_memory_utilization=memory)
        self.load_seconds = time.perf_counter() - begin
        self.stages: dict[str, float] = {}

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        outputs = self._llm.generate(prompts, [self._params(count) for count in max_tokens], use_tqdm=False)
        return sum(len(output["token_ids"]) for output in outputs)

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        self._running: dict[int, Any] = {}
        return serve(self, arrivals)

    def add(self, number: int, arrival: Arrival) -> None:
        self._llm.add_request(arrival.prompt, self._params(arrival.max_tokens))
        self._running[number] = self._llm.scheduler.waiting[-1]

    def step(self) -> list[Progress]:
        self._llm.step()
        told = [Progress(i, seq.num_completion_tokens, seq.is_finished) for i, seq in self._running.items()]
        self._running = {each.number: self._running[each.number] for each in told if not each.is_finished}
        return told

    def close(self) -> None:
        # It would end once more when the process does, and fail.
        atexit.unregister(self._llm.exit)
        self._llm.exit()
        del self._llm

    @staticmethod
    def _params(max_tokens: int) -> Any:
        from nanovllm import SamplingParams

        return SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=max_tokens)


class Vllm(Peer):
    """vLLM; requests that arrive are queued with its LLMEngine."""

    name = "vllm"
    module = "vllm"
    how_to_get = "pip install vllm"

    def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float) -> None:
        # Its log would otherwise be in the midst of the results.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        from vllm import LLM  # type: ignore[import-not-found]

        begin = time.perf_counter()
        self._llm = LLM(str(path), dtype=dtype, max_model_len=max_model_len, gpu_memory_utilization=memory)
        self.load_seconds = time.perf_counter() - begin
        self.stages: dict[str, float] = {}
        self.num_cached_tokens = 0

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, [self._params(count) for count in max_tokens], use_tqdm=False)
        self.num_cached_tokens = sum(output.num_cached_tokens or 0 for output in outputs)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        return serve(self, arrivals)

    def add(self, number: int, arrival: Arrival) -> None:
        prompt = {"prompt_token_ids": arrival.prompt}
        self._llm.llm_engine.add_request(str(number), prompt, self._params(arrival.max_tokens))

    def step(self) -> list[Progress]:
        outputs = self._llm.llm_engine.step()
        return [Progress(int(o.request_id), len(o.outputs[0].token_ids), o.finished) for o in outputs]

    def close(self) -> None:
        del self._llm

    @staticmethod
    def _params(max_tokens: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=max_tokens)


class Transformers(Peer):
    """``generate`` of transformers on batches in the order given, padded on the left.

    A batch runs until its longest completion is there; what the others get beyond theirs does not count. It takes no
    requests meanwhile, so it is no StreamingServer.
    """

    name = "transformers"
    module = "transformers"
    how_to_get = 'pip install "nvexplore[run]"'
    batch_size = 64

    def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        model_type = AutoConfig.from_pretrained(path).model_type
        with suppress(ImportError):  # imported by its name before: to import is no part of loading
            importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
        self._torch = torch
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        begin = time.perf_counter()
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        self._model = model.to(self._device).train(False)
        config = self._model.generation_config
        config.do_sample, config.temperature, config.top_p, config.top_k = True, TEMPERATURE, 1.0, 0
        config.eos_token_id, config.pad_token_id = None, 0
        self.load_seconds = time.perf_counter() - begin
        self.stages: dict[str, float] = {}

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        came = 0
        for start in range(0, len(prompts), self.batch_size):
            asked = max_tokens[start : start + self.batch_size]
            came += self._generate_batch(prompts[start : start + self.batch_size], asked)
        return came

    def _generate_batch(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        width = max(map(len, prompts))
        ids = self._torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = self._torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = self._model.generate(
            ids.to(self._device), attention_mask=mask.to(self._device), max_new_tokens=max(max_tokens)
        )
        rows = out[:, width:].tolist()
        return sum(min(len(row), asked) for row, asked in zip(rows, max_tokens, strict=True))

    def close(self) -> None:
        del self._model
