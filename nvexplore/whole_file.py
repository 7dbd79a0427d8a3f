"""A file that somebody asks for appears whole or not at all, and never in the place of another unasked."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def user_path(path: str | Path) -> Path:
    """The path with ~ resolved; one that stands for nobody's home stays as it is."""
    return Path(os.path.expanduser(path))


@contextmanager
def whole_file(path: Path, *, replace: bool = False) -> Iterator[BinaryIO]:
    """A file to write bytes to, which is ``path`` once the block has ended without an error.

    Through a link its target is written. What is no regular file, a pipe say, is written to as it is.
    Raises IsADirectoryError, FileExistsError where a file is there and not to be replaced, and OSError; they name
    ``path`` as it was given, whatever the file was called meanwhile.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.is_file() and not replace:
        raise FileExistsError(f"{path} is there already; say replace=True (in a command --replace) to write over it")
    target = Path(os.path.realpath(path))
    temporary = target if path.exists() and not path.is_file() else target.with_name(f".nvexplore-{uuid4().hex}")
    try:
        try:
            with temporary.open("wb" if temporary is target else "xb") as file:
                yield file
            if temporary is not target:
                temporary.replace(target)
        except BaseException:
            if temporary is not target:
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        # Another file's error is not about this one; a full disk's names none.
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # Python makes it the kind of the number


def write_whole(path: str | Path, content: bytes | str, *, replace: bool = False) -> Path:
    """Write ``content`` (a text in UTF-8) as ``whole_file`` does, and return the path."""
    path = user_path(path)
    with whole_file(path, replace=replace) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path
