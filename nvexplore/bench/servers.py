"""nvexplore and its peers as servers of whole prompts. Each is imported only when it is asked for."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from nvexplore.bench.serving import TEMPERATURE, Server


class Nvexplore:
    """``LLM.generate`` with its defaults; ``options`` are EngineConfig's."""

    name = "nvexplore"

    def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float, **options: Any) -> None:
        from nvexplore.llm import LLM

        begin = time.perf_counter()
        self._llm = LLM(path, dtype=dtype, max_model_len=max_model_len, gpu_memory_utilization=memory, **options)
        self.load_seconds = time.perf_counter() - begin

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        from nvexplore.sampling_params import SamplingParams

        params = [SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=count) for count in max_tokens]
        return sum(len(output.token_ids) for output in self._llm.generate(prompts, params, use_tqdm=False))

    def close(self) -> None:
        self._llm.close()


class NanoVllm:
    """nano-vLLM with its defaults but the length limit; it refuses temperatures below 1e-10."""

    name = "nano-vllm"

    def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float) -> None:
        from nanovllm import LLM  # type: ignore[import-not-found]

        begin = time.perf_counter()
        self._llm = LLM(str(path), enforce_eager=False, max_model_len=max_model_len, gpu_memory_utilization=memory)
        self.load_seconds = time.perf_counter() - begin

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        from nanovllm import SamplingParams

        params = [SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=count) for count in max_tokens]
        return sum(len(output["token_ids"]) for output in self._llm.generate(prompts, params, use_tqdm=False))

    def close(self) -> None:
        self._llm.exit()


class Vllm:
    """vLLM with its defaults but the length limit."""

    name = "vllm"

    def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float) -> None:
        from vllm import LLM  # type: ignore[import-not-found]

        begin = time.perf_counter()
        self._llm = LLM(str(path), dtype=dtype, max_model_len=max_model_len, gpu_memory_utilization=memory)
        self.load_seconds = time.perf_counter() - begin

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        from vllm import SamplingParams

        params = [SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=count) for count in max_tokens]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def close(self) -> None:
        del self._llm


SERVERS: dict[str, Any] = {"nvexplore": Nvexplore, "nano-vllm": NanoVllm, "vllm": Vllm}


def make_server(
    name: str, path: Path, *, dtype: str, max_model_len: int, memory: float, peer_path: str | None = None
) -> Server:
    """Load ``path`` into the engine ``name``. peer_path: a folder with its sources, where it is not installed."""
    if peer_path and peer_path not in sys.path:
        sys.path.insert(0, peer_path)
    server: Server = SERVERS[name](path, dtype=dtype, max_model_len=max_model_len, memory=memory)
    return server
