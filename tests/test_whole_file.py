"""Files that are written on demand: whole or not at all, never over another unasked, and errors name what was given."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from nvexplore.whole_file import user_path, whole_file, write_whole


def test_a_file_is_written(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", "é") == tmp_path / "a"
    assert (tmp_path / "a").read_bytes() == "é".encode()
    with pytest.raises(FileExistsError, match=r"a is there already; say replace=True \(in a command --replace\)"):
        write_whole(str(tmp_path / "a"), b"new")
    assert (tmp_path / "a").read_bytes() == "é".encode()
    write_whole(str(tmp_path / "a"), b"new", replace=True)
    assert (tmp_path / "a").read_bytes() == b"new" and list(tmp_path.iterdir()) == [tmp_path / "a"]


def half(path: Path, error: BaseException) -> None:
    with whole_file(path, replace=True) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_leaves_what_was_there(kind: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    for name in ("a", "b"):
        with pytest.raises(kind, match="why"):
            half(tmp_path / name, kind("why"))
    assert list(tmp_path.iterdir()) == [tmp_path / "a"] and (tmp_path / "a").read_text() == "old"


def test_errors_name_what_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    long = "n" * 240  # as long as names may be, but for a few letters
    for path, kind in (
        (tmp_path / "no" / "a", FileNotFoundError),
        (tmp_path / "file" / "a", NotADirectoryError),
        (tmp_path, IsADirectoryError),
        (tmp_path / (long * 2), OSError),
    ):
        with pytest.raises(kind) as error:
            write_whole(path, b"x", replace=True)
        assert (error.value.filename, error.value.filename2) == (str(path), None)
        assert error.value.strerror == os.strerror(error.value.errno or 0)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    assert write_whole(tmp_path / long, b"x").read_bytes() == b"x"


def test_a_full_disk_is_told_with_the_path_and_another_files_error_with_its_own(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as error, whole_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.filename == str(tmp_path / "a")
    with pytest.raises(FileNotFoundError) as other, whole_file(tmp_path / "a"):
        (tmp_path / "source").read_bytes()
    assert other.value.filename == str(tmp_path / "source")
    assert list(tmp_path.iterdir()) == []


def test_through_a_link_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to(target)
    write_whole(link, b"first")  # it leads nowhere yet
    with pytest.raises(FileExistsError, match="link is there already"):
        write_whole(link, b"second")
    write_whole(link, b"second", replace=True)
    assert link.is_symlink() and target.read_bytes() == b"second" and list(target.parent.iterdir()) == [target]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"x")
    reader.join(timeout=30)
    assert got == [b"x"] and pipe.is_fifo()


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/a") == tmp_path / "a" and user_path(Path("~/a")) == tmp_path / "a"
    assert user_path("~nobody-of-that-name/a") == Path("~nobody-of-that-name/a")
