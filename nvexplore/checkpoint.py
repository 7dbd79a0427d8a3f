"""Finds the folder of a model: the demo model, a folder, or a name on the Hugging Face Hub. Loads nothing."""

from __future__ import annotations

import os
from pathlib import Path

# What a checkpoint needs; leaves out the .bin and .pth twins that many repositories carry.
HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def resolve_checkpoint(model: str | Path) -> Path:
    """The folder of ``model``: "demo", "random:qwen3-tiny", a path, or "org/name" (fetched into the Hub's cache).

    Raises FileNotFoundError or ValueError saying what was looked for, TypeError for what is neither text nor path.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model={model!r}: must be a text or a path, not {type(model).__name__}")
    if not str(model).strip():
        raise ValueError(f"model={model!r}: must be 'demo', a folder, or a Hub name like 'org/name'")
    if model == "demo":
        from nvexplore.demo import demo_model_path

        return demo_model_path()
    if isinstance(model, str) and model.startswith("random:"):
        from nvexplore.random_model import random_model_path

        return random_model_path(model.removeprefix("random:"))
    try:
        path = Path(model).expanduser()
    except RuntimeError as error:  # ~ of somebody who is not there
        raise FileNotFoundError(f"model={str(model)!r}: no such folder: {error}") from None
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{path} has no config.json: it is not a Hugging Face checkpoint folder")
        return path
    name = str(model)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1 or not all(name.split("/")):
        raise FileNotFoundError(f"model={name!r}: no such folder, and neither 'demo' nor a Hub name like 'org/name'")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"model={name!r}: no such folder here, and the Hub did not give it: {reason}"
        ) from error
