"""Recordings as files: what a recorder keeps, to be looked at later, elsewhere, without model, GPU or torch.

A file is gzip of messages, each behind its length: a header, then snapshots and records as they came. Their version is
the records' own; the texts of the tokens in them are in the header, so that no tokenizer is needed. A recording holds
the prompts and completions of its requests, unless it is redacted.
"""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from nvexplore import __version__
from nvexplore.engine.events import RECORD_VERSION, Snapshot, StepRecord
from nvexplore.explore.lifecycle import Beginning
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.redact import redacted
from nvexplore.explore.state import FoldError
from nvexplore.explore.token_texts import TokenTexts
from nvexplore.whole_file import user_path, whole_file

FORMAT = "nvexplore recording"
VERSION = 1
SUFFIX = ".nvx"
_LENGTH = 4  # bytes before each message


class RecordingError(ValueError):
    """A file that cannot be read as a recording; the message says which and why."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first message. made_by: the version of nvexplore; num_items: the messages after this one.

    tokens: what each token of the recording says, in UTF-8, which a character may need several for; None: not known.
    memory: the engine's ledger, a field a key, or None. redacted: what requests say was taken out.
    begun: what was known of requests from before the first step of the recording; earlier files know nothing.
    """

    format: str = FORMAT
    version: int = VERSION
    record_version: int = RECORD_VERSION
    made_by: str = __version__
    created: str
    model: str
    num_items: int
    tokens: dict[int, bytes] | None
    memory: dict[str, Any] | None
    redacted: bool = False
    begun: list[Beginning] = []


@dataclass(frozen=True)
class Recording:
    """What a file holds. decode: token ids -> text, or None; created: when it was saved, in UTC."""

    recorder: Recorder
    model: str
    created: str
    decode: TokenTexts | None
    memory: dict[str, Any] | None
    redacted: bool


def save_recording(
    recorder: Recorder,
    path: str | Path,
    *,
    model: str = "",
    token_bytes: Callable[[int], bytes] | None = None,
    memory: dict[str, Any] | None = None,
    replace: bool = False,
    redact: bool = False,
) -> Path:
    """Write what ``recorder`` keeps to ``path`` and return it, with .nvx where it had no suffix.

    token_bytes: what a token says; None: the recording shows ids. redact: without what requests say, and without the
    model's folder (see ``explore.redact``). The file appears whole or not at all.
    Raises ValueError where nothing is recorded, FileExistsError where the file is there and not to be replaced, and
    OSError (IsADirectoryError where it is a folder), which names the path.
    """
    path = path_to_save(path)
    with recorder.lock:
        segments, begun = recorder.segments, recorder.begun
    if not segments:
        raise ValueError("nothing is recorded yet: there is nothing to save")
    items: list[Snapshot | StepRecord] = []
    for snapshot, records in segments:
        items += [snapshot, *records]
    if redact:
        items, token_bytes = list(redacted(items)), None
    ids = sorted({token_id for item in items for token_id in _token_ids(item)})
    header = Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=_model_name(model, redact=redact),
        num_items=len(items),
        tokens=None if token_bytes is None else {token_id: token_bytes(token_id) for token_id in ids},
        memory=memory,
        redacted=redact,
        begun=begun,
    )
    # Without name and time in it, equal recordings are equal files.
    with whole_file(path, replace=replace) as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        for item in (header, *items):
            message = msgspec.msgpack.encode(item)
            file.write(len(message).to_bytes(_LENGTH, "little") + message)
    return path


def load_recording(path: str | Path) -> Recording:
    """Read a file that ``save_recording`` has written, by the name that it was given there.

    Raises RecordingError, or OSError where it cannot be opened.
    """
    path = path_to_load(path)
    with path.open("rb") as raw:
        if raw.read(2) != b"\x1f\x8b":
            raise RecordingError(f"{path} is not a recording of nvexplore")
        raw.seek(0)
        try:
            with gzip.GzipFile(fileobj=raw) as file:
                header = _header(file, path)
                recorder = Recorder(max_steps=header.num_items + 1024)
                for number, item in enumerate(_items(file, header.num_items, path)):
                    try:
                        recorder.push(item)
                    except (FoldError, ValueError, LookupError) as error:
                        raise RecordingError(f"{path} is damaged: message {number} does not follow: {error}") from None
                recorder.recall(header.begun)
        except (gzip.BadGzipFile, zlib.error) as error:
            raise RecordingError(f"{path} is damaged: {error}") from None
    decode = None if header.tokens is None else TokenTexts(header.tokens)
    return Recording(recorder, header.model, header.created, decode, header.memory, header.redacted)


def path_to_save(path: str | Path) -> Path:
    """Where ``save_recording`` writes: with .nvx where there was no suffix. IsADirectoryError where it is a folder."""
    path = user_path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path if path.suffix else path.with_suffix(SUFFIX)


def path_to_load(path: str | Path) -> Path:
    """What ``load_recording`` reads: with .nvx where there was no suffix, if only that file is there."""
    path = user_path(path)
    if path.is_file() or path.suffix or not path.name:
        return path
    return named if (named := path.with_suffix(SUFFIX)).is_file() else path


def _model_name(model: str, *, redact: bool) -> str:
    """The model as a header has it; redacted: of a folder its own name alone.

    A folder below the current one looks like a name on the Hub: it gets ./ in front while it can be told.
    """
    if "/" in model and not model.startswith((".", "~", "/")) and Path(model).is_dir():
        model = f"./{model}"
    is_folder = Path(model).is_absolute() or model.startswith((".", "~")) or model.count("/") > 1
    return Path(model).name if redact and is_folder else model


def _header(file: gzip.GzipFile, path: Path) -> Header:
    try:
        message = _message(file)
        marks = msgspec.msgpack.decode(message, type=dict[str, Any])
    except (EOFError, msgspec.DecodeError):
        raise RecordingError(f"{path} is not a recording of nvexplore") from None
    if marks.get("format") != FORMAT:
        raise RecordingError(f"{path} is not a recording of nvexplore")
    versions = marks.get("version"), marks.get("record_version")
    if versions != (VERSION, RECORD_VERSION):
        raise RecordingError(
            f"{path} was made by nvexplore {marks.get('made_by')} in format {versions[0]} with records of version "
            f"{versions[1]}; this is nvexplore {__version__}, which reads {VERSION} and {RECORD_VERSION}"
        )
    try:
        return msgspec.msgpack.decode(message, type=Header)
    except msgspec.ValidationError as error:
        raise RecordingError(f"{path} is damaged: its header: {error}") from None


def _items(file: gzip.GzipFile, count: int, path: Path) -> Iterator[Snapshot | StepRecord]:
    decoder = msgspec.msgpack.Decoder(Snapshot | StepRecord)
    for number in range(count):
        try:
            yield decoder.decode(_message(file))
        except EOFError:
            raise RecordingError(f"{path} ends early: {number:,} of its {count:,} messages are there") from None
        except msgspec.DecodeError as error:
            raise RecordingError(f"{path} is damaged: message {number}: {error}") from None
    try:
        goes_on = file.read(1)
    except EOFError:  # cut in what gzip itself writes last, so that nothing tells whether the messages are whole
        raise RecordingError(f"{path} ends early: its last bytes are missing") from None
    if goes_on:
        raise RecordingError(f"{path} goes on after its {count:,} messages")


def _message(file: gzip.GzipFile) -> bytes:
    length = file.read(_LENGTH)
    message = file.read(int.from_bytes(length, "little"))
    if len(length) < _LENGTH or len(message) < int.from_bytes(length, "little"):
        raise EOFError
    return message


def _token_ids(item: Snapshot | StepRecord) -> Iterator[int]:
    rows = item.sequences.token_ids if isinstance(item, Snapshot) else item.before.added.token_ids
    for row in rows:
        yield from row
    if isinstance(item, StepRecord):
        yield from item.committed.token_id
