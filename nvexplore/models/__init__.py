"""The supported architectures, by the name that checkpoints give them. Imports no torch.

A family that fits the shared decoder (``decoder.py``) is one more small file like ``qwen3.py``, listed here.
"""

from __future__ import annotations

from typing import Final

from nvexplore.models.architecture import Architecture
from nvexplore.models.llama import LLAMA
from nvexplore.models.qwen2 import QWEN2
from nvexplore.models.qwen3 import QWEN3
from nvexplore.models.qwen3_moe import QWEN3_MOE

ARCHITECTURES: Final[dict[str, Architecture]] = {spec.name: spec for spec in (LLAMA, QWEN2, QWEN3, QWEN3_MOE)}

__all__ = ["ARCHITECTURES", "Architecture"]
