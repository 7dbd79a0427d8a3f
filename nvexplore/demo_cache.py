"""A folder in a cache that is made once: all of it or nothing, even with several processes at it.

It knows locks, temporary folders, renames and a manifest of file sizes. It does not know what the folder
holds.

    <cache>/<name>/                 the finished folder with its manifest
    <cache>/.<name>.lock            held while one process makes it
    <cache>/.tmp-<host>-<random>/   what that process has so far; renamed when complete
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

Report = Callable[[str], None]

MANIFEST: Final = "nvexplore_manifest.json"
_LEFTOVER_SECONDS: Final = 24 * 3600.0


def cached_folder(target: Path, make: Callable[[Path, Path], None], *, format_number: int, report: Report) -> None:
    """Make the folder `target` unless it is there, complete and of format `format_number`.

    `make(scratch, folder)` fills `folder`; `scratch` is another folder on the same disk that goes away
    afterwards. When it raises, KeyboardInterrupt included, nothing stays behind. Raises OSError for what the
    disk refuses.
    """
    if is_complete(target, format_number):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.parent / f".{target.name}.lock", report) as is_locked:
        if is_complete(target, format_number):
            return  # another process made it while this one waited
        _remove_leftovers(target.parent, is_locked=is_locked)
        if target.exists():
            report(f"the copy in {target} is damaged or out of date, making it again")
        temporary = target.parent / f"{_temporary_prefix()}{uuid.uuid4().hex[:8]}"
        try:
            # Path.mkdir, not tempfile.mkdtemp: the cache may be shared, so the umask decides who reads it.
            for folder in (temporary, temporary / "scratch", temporary / "made"):
                folder.mkdir()
            make(temporary / "scratch", temporary / "made")
            _seal(temporary / "made", format_number)
            _put_in_place(temporary / "made", target, temporary / "replaced", format_number)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def is_complete(folder: Path, format_number: int) -> bool:
    """Whether `folder` is of that format and holds every file of its manifest in the recorded size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest["format"] == format_number and all(
            (folder / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _seal(folder: Path, format_number: int) -> None:
    """Record the sizes of all files in a manifest and push everything to disk."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    manifest = json.dumps({"format": format_number, "files": files}, indent=2)
    (folder / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
    mode = (folder / MANIFEST).stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)  # safetensors makes files that only their owner may read
        _fsync(path)
    _fsync(folder)


def _put_in_place(made: Path, target: Path, replaced: Path, format_number: int) -> None:
    """Rename `made` to `target`; where another process was faster, its folder stays and ours is discarded."""
    if is_complete(target, format_number):
        return
    with suppress(FileNotFoundError):  # the usual case, or another process has just moved it away
        target.rename(replaced)
    try:
        made.rename(target)
    except OSError:
        if not is_complete(target, format_number):
            raise
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_prefix() -> str:
    return f".tmp-{platform.node()}-"


def _remove_leftovers(cache: Path, *, is_locked: bool) -> None:
    """Remove temporary folders of processes that were killed.

    Who holds the lock knows that no other process of this machine is at work. Folders of other machines (a
    lock may not reach across a network file system), and all folders where there are no locks, count as dead
    after a day.
    """
    for folder in cache.glob(".tmp-*"):
        try:
            is_old = time.time() - folder.stat().st_mtime > _LEFTOVER_SECONDS
        except FileNotFoundError:
            continue  # its owner has just removed it
        if is_old or (is_locked and folder.name.startswith(_temporary_prefix())):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[bool]:
    """Hold the lock file `path`; yields False where the platform or the file system has no locks.

    The system releases it when the process ends, however it ends. The file itself stays: removing it would
    let two processes lock two different files of that name.
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    with path.open("a") as file:
        is_locked = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that is making it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            is_locked = False
        yield is_locked
