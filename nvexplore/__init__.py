"""nvexplore: look into a paged-KV LLM inference engine, one batch at a time.

Importing it loads neither torch nor Jupyter; ``LLM`` does when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.output import StepOutput
from nvexplore.engine.sequence import Sequence, SequenceStatus
from nvexplore.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nvexplore.config import EngineConfig
    from nvexplore.generation import GenerationOutput, TextDelta
    from nvexplore.llm import LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Engine",
    "EngineConfig",
    "EngineLimits",
    "GenerationOutput",
    "SamplingParams",
    "Sequence",
    "SequenceStatus",
    "Snapshot",
    "StepOutput",
    "StepRecord",
    "TextDelta",
]
_LAZY = {
    "LLM": "nvexplore.llm",
    "GenerationOutput": "nvexplore.generation",
    "TextDelta": "nvexplore.generation",
    "EngineConfig": "nvexplore.config",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'nvexplore' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext nvexplore``."""
    from nvexplore.notebook.extension import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext nvexplore``."""
    from nvexplore.notebook.extension import unload_ipython_extension as unload

    unload(shell)
