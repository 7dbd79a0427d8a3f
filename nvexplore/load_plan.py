"""What an LLM is about to load, and where: whatever can be refused before a weight is read. Computes nothing."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvexplore.checkpoint import resolve_checkpoint
from nvexplore.config import EngineConfig

if TYPE_CHECKING:
    import torch

    from nvexplore.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """Made by ``LoadPlan.of``.

    path: the checkpoint's folder. config: the options, with what depends on the device filled in.
    max_model_len: tokens of a request, at most.
    """

    path: Path
    config: EngineConfig
    device: torch.device
    model_config: ModelConfig
    max_model_len: int

    @classmethod
    def of(cls, model: str | Path, options: dict[str, Any]) -> LoadPlan:
        """Of a model's name and ``EngineConfig``'s options.

        Raises ImportError (what to install), TypeError/ValueError (an option, or what the model and this machine do not
        allow together), FileNotFoundError (the model).
        """
        asked = EngineConfig.of(**options)
        try:
            import torch  # noqa: F401
            from transformers import AutoTokenizer  # noqa: F401

            from nvexplore.backends import resolve_device
            from nvexplore.runner import tensor_parallel
        except ModuleNotFoundError as error:
            raise ImportError(f'LLM needs {error.name}: pip install "nvexplore[run]"') from error
        from nvexplore.model_config import ModelConfig

        device = resolve_device(asked.device)
        config = asked.on(device.type)
        path = resolve_checkpoint(model)
        model_config = ModelConfig.from_path(path)
        max_model_len = config.model_len(model_config)
        plan = cls(path=path, config=config, device=device, model_config=model_config, max_model_len=max_model_len)
        plan._check_backend()
        if config.tensor_parallel_size > 1:
            tensor_parallel.check_split(model_config, config.tensor_parallel_size, device)
        return plan

    def _check_backend(self) -> None:
        """ValueError for what computes that this device does not have, or not for this model."""
        from nvexplore.backends import choose_attention
        from nvexplore.runner.dtype import resolve_dtype

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the runner resolves it again, and warns then
            dtype = resolve_dtype(self.config.dtype, self.model_config)
        assert self.config.block_size is not None  # ``on`` has filled it in
        options = self.config.backend_options()
        del options["gpu_memory_utilization"]  # memory is the runner's to look at
        head_dim = self.model_config.head_dim
        choose_attention(self.device, dtype, block_size=self.config.block_size, head_dim=head_dim, **options)
