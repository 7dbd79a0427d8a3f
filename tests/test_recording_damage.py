"""Files that are no recordings, or damaged ones: the error says which file and what is wrong, whatever is in it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from nvexplore.engine.events import StepRecord
from nvexplore.explore.recording import RecordingError, load_recording, save_recording
from tests.test_recording import recorded, rewritten


def messages_of(file: Path) -> list[bytes]:
    whole, at, messages = gzip.decompress(file.read_bytes()), 0, list[bytes]()
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 4], "little")
        messages.append(whole[at + 4 : at + 4 + size])
        at += 4 + size
    return messages


def write_messages(file: Path, messages: list[bytes]) -> None:
    """With a checksum that is right, so that only their contents can be wrong."""
    file.write_bytes(gzip.compress(b"".join(len(m).to_bytes(4, "little") + m for m in messages), 1))


def another_message(file: Path, number: int, message: bytes) -> None:
    messages = messages_of(file)
    messages[number] = message
    write_messages(file, messages)


def other_requests(file: Path) -> None:
    """The first record tells of requests that nobody added."""
    messages = messages_of(file)
    record = msgspec.msgpack.decode(messages[2], type=StepRecord)
    added = msgspec.structs.replace(record.before.added, seq_id=[9, *record.before.added.seq_id[1:]])
    record = msgspec.structs.replace(record, before=msgspec.structs.replace(record.before, added=added))
    another_message(file, 2, msgspec.msgpack.encode(record))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda f: f.write_bytes(b""), "is not a recording of nvexplore"),
    "another kind": (lambda f: f.write_bytes(b"%PDF-1.7"), "is not a recording of nvexplore"),
    "gzip of another kind": (lambda f: f.write_bytes(gzip.compress(b"hello" * 9)), "is not a recording of nvexplore"),
    "cut": (lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]), r"ends early: \d+ of its 41 messages"),
    "damaged": (lambda f: f.write_bytes(f.read_bytes()[:-6] + b"\0" * 6), "is damaged"),
    "longer": (lambda f: rewritten(f, lambda h: h.update(num_items=40)), "goes on after its 40 messages"),
    "shorter": (lambda f: rewritten(f, lambda h: h.update(num_items=99)), "ends early: 41 of its 99 messages"),
    "another format": (lambda f: rewritten(f, lambda h: h.update(format="x")), "is not a recording of nvexplore"),
    "a later version": (
        lambda f: rewritten(f, lambda h: h.update(version=9, made_by="7.0")),
        r"was made by nvexplore 7\.0 in format 9 with records of version \d+; this is nvexplore .*, which reads 1 and",
    ),
    "wrong beginnings": (lambda f: rewritten(f, lambda h: h.update(begun=[[0, "x", 1.0, 2, 1.0]])), "Expected `int "),
    "a wrong header": (
        lambda f: rewritten(f, lambda h: h.update(model=3)),
        "is damaged: its header: Expected `str`",
    ),
    "cut in its last bytes": (lambda f: f.write_bytes(f.read_bytes()[:-3]), "ends early: its last bytes are missing"),
    "no record": (
        lambda f: another_message(f, 2, msgspec.msgpack.encode([1, 2])),
        "is damaged: message 1: ",
    ),
    "no message": (lambda f: another_message(f, 2, b"\xc1"), "is damaged: message 1: "),
    "a request that nobody added": (other_requests, "is damaged: message 1 does not follow: "),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    spoil, message = BAD[what]
    file = save_recording(recorded()[1], tmp_path / "run")
    assert len(load_recording(file).recorder) == 40
    spoil(file)
    with pytest.raises(RecordingError, match=message) as error:
        load_recording(file)
    assert str(file) in str(error.value)


def test_records_that_do_not_follow(tmp_path: Path) -> None:
    file = save_recording(recorded()[1], tmp_path / "run")
    messages = messages_of(file)
    del messages[5]
    write_messages(file, messages)
    with pytest.raises(RecordingError, match="damaged: message 4 does not follow: record of step 4 does not follow"):
        load_recording(file)


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_byte_is_told_as_damage_or_harmless(seed: int, tmp_path: Path) -> None:
    """Also one that no checksum tells: whatever it makes of a message, the error is one that says which file."""
    file, rng, outcomes = save_recording(recorded()[1], tmp_path / "run"), random.Random(seed), set[bool | None]()
    good, messages = file.read_bytes(), messages_of(file)
    for cut in range(1, 30):
        file.write_bytes(good[:-cut])
        with pytest.raises(RecordingError, match=r"run\.nvx ends early"):
            load_recording(file)
    for _ in range(150):
        number = rng.randrange(len(messages))
        changed = bytearray(messages[number])
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        write_messages(file, [*messages[:number], bytes(changed), *messages[number + 1 :]])
        try:
            load_recording(file)
        except RecordingError as error:
            outcomes.add(str(error).startswith(f"{file} "))
        else:
            outcomes.add(None)  # a time, say
    assert outcomes == {None, True}
