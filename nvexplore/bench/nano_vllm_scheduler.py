"""nano-vllm's scheduler, block manager and sequences as they stand in a checkout of it; nothing else of it is run.

github.com/GeeeekExplorer/nano-vllm. Its package imports torch models and flash-attn, and its configuration wants a
checkpoint: the three engine modules need neither, so they are imported alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from nvexplore.bench.deciders import END_OF_SEQUENCE, TOKEN_BUDGET, Shape

PACKAGE = "nanovllm"
MODULES = ("engine.sequence", "engine.block_manager", "engine.scheduler", "sampling_params")


class NotNanoVllm(Exception):
    """The folder holds no nano-vllm, or one whose scheduler is used in another way; the message says which."""


class NanoVllm:
    """What ``LLMEngine.step`` of nano-vllm does beside the model: ``schedule``, then ``postprocess`` (which hashes).

    path: a checkout. Each object imports its own copy: the block size is an attribute of its Sequence class.
    """

    name = "nano-vllm"

    def __init__(self, path: Path, shape: Shape) -> None:
        sequence, _, scheduler, params = _import_alone(path)
        try:
            self._new_sequence, self._new_params = sequence.Sequence, params.SamplingParams
            sequence.Sequence.block_size = shape.block_size  # as its LLMEngine does
            config = SimpleNamespace(
                max_num_seqs=shape.max_num_seqs,
                max_num_batched_tokens=TOKEN_BUDGET,
                max_model_len=shape.max_model_len,
                eos=END_OF_SEQUENCE,
                kvcache_block_size=shape.block_size,
                num_kvcache_blocks=shape.num_blocks,
            )
            self._scheduler: Any = scheduler.Scheduler(config)
            self._schedule, self._postprocess = self._scheduler.schedule, self._scheduler.postprocess
        except AttributeError as error:
            raise NotNanoVllm(f"{path}: its scheduler is not used as nano-vllm's is: {error}") from None

    def add(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        params = self._new_params(max_tokens=max_tokens)
        for prompt in prompts:
            self._scheduler.add(self._new_sequence(prompt, params))

    def step(self, token_ids: list[int]) -> None:
        seqs, is_prefill = self._schedule()
        self._postprocess(seqs, token_ids, is_prefill)

    def is_prefilling(self) -> bool:
        return bool(self._scheduler.waiting)

    def completions(self) -> list[list[int]]:
        return [seq.token_ids for seq in sorted(self._scheduler.running, key=lambda seq: seq.seq_id)]


def _import_alone(path: Path) -> list[ModuleType]:
    """The engine's modules, new ones each time; ``sys.modules`` stays as it was."""
    folder = path / PACKAGE
    for name in MODULES:
        file = folder.joinpath(*name.split(".")).with_suffix(".py")
        if not file.is_file():
            raise NotNanoVllm(f"{path} is no checkout of nano-vllm: it has no {file.relative_to(path)}")
    package, config = ModuleType(PACKAGE), ModuleType(f"{PACKAGE}.config")
    package.__path__ = [str(folder)]
    config.Config = object  # type: ignore[attr-defined]  # its modules name it in annotations only
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == PACKAGE}
    sys.modules |= {PACKAGE: package, config.__name__: config}
    try:
        return [importlib.import_module(f"{PACKAGE}.{name}") for name in MODULES]
    except ImportError as error:
        raise NotNanoVllm(f"{path}: its scheduler cannot be imported by itself: {error}") from None
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            with suppress(KeyError):
                del sys.modules[name]
        sys.modules |= before
