"""The GGUF reader against files built here byte by byte, and what it says about files it cannot read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvexplore.gguf import GGUFError, GGUFFile

STRING, ARRAY, UINT32, INT32, FLOAT32, BOOL, UINT64 = 8, 9, 4, 5, 6, 7, 10
F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, value_type: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", value_type) + payload


def gguf(
    keys: list[bytes],
    tensors: Sequence[tuple[str, tuple[int, ...], int, bytes]] = (),
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """The bytes of a GGUF file; a tensor is (name, dims with the fastest first, type, data)."""
    table, data = b"", b""
    for name, dims, type_id, payload in tensors:
        data += b"\0" * (-len(data) % alignment)
        table += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, len(data))
        data += payload
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + table
    return header + b"\0" * (-len(header) % alignment) + data


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write_file


def test_metadata_of_every_kind_is_read(write: Any) -> None:
    keys = [
        key("a.text", STRING, text("grüß \N{SLIGHTLY SMILING FACE}")),
        key("a.number", UINT32, struct.pack("<I", 7)),
        key("a.float", FLOAT32, struct.pack("<f", 0.25)),
        key("a.flag", BOOL, b"\1"),
        key("a.big", UINT64, struct.pack("<Q", 1 << 40)),
        key("a.words", ARRAY, struct.pack("<IQ", STRING, 2) + text("Ġt he") + text("")),
        key("a.kinds", ARRAY, struct.pack("<IQ3i", INT32, 3, 1, -2, 3)),
    ]
    with GGUFFile(write(gguf(keys))) as file:
        assert file.metadata == {
            "a.text": "grüß \N{SLIGHTLY SMILING FACE}",
            "a.number": 7,
            "a.float": 0.25,
            "a.flag": True,
            "a.big": 1 << 40,
            "a.words": ["Ġt he", ""],
            "a.kinds": [1, -2, 3],
        }
        assert file.tensors == {}


def test_plain_tensors_keep_values_shape_and_alignment(write: Any) -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3) / 7
    tensors = [
        ("one", (1,), F32, struct.pack("<f", 5.0)),  # 4 bytes, so that the next starts after a gap
        ("matrix", (3, 2), F32, values.tobytes()),
        ("half", (3, 2), F16, values.astype("<f2").tobytes()),
    ]
    keys = [key("general.alignment", UINT32, struct.pack("<I", 64))]
    with GGUFFile(write(gguf(keys, tensors, alignment=64))) as file:
        assert file.tensors["matrix"].shape == (2, 3)
        assert file.tensors["matrix"].offset % 64 == 0
        assert file.load("one").tolist() == [5.0]
        np.testing.assert_array_equal(file.load("matrix"), values)
        np.testing.assert_array_equal(file.load("half"), values.astype(np.float16).astype(np.float32))
        matrix = file.load("matrix")
    assert matrix.dtype == np.float32
    assert matrix[1, 2] == values[1, 2], "an array outlives its file"


@given(
    scale=st.floats(-100, 100, width=16),
    minimum=st.floats(-100, 100, width=16),
    nibbles=st.lists(st.integers(0, 15), min_size=64, max_size=64),
)
def test_q4_1_is_scale_times_nibble_plus_minimum(
    scale: float, minimum: float, nibbles: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = b""
    for block in (nibbles[:32], nibbles[32:]):
        packed = bytes(low | high << 4 for low, high in zip(block[:16], block[16:], strict=True))
        data += struct.pack("<ee", scale, minimum) + packed
    path = tmp_path_factory.getbasetemp() / "q4_1.gguf"
    path.write_bytes(gguf([], [("t", (32, 2), Q4_1, data)]))
    with GGUFFile(path) as file:
        loaded = file.load("t")
    expected = [np.float32(np.float32(n) * np.float32(scale)) + np.float32(minimum) for n in nibbles]
    assert loaded.shape == (2, 32)
    assert loaded.reshape(-1).tolist() == [float(value) for value in expected]


def test_q8_0_is_scale_times_value(write: Any) -> None:
    values = [*range(-128, -112), *range(112, 128)]
    data = struct.pack("<e32b", 0.125, *values) + struct.pack("<e32b", -2.0, *values)
    with GGUFFile(write(gguf([], [("t", (64,), Q8_0, data)]))) as file:
        assert file.load("t").tolist() == [v * 0.125 for v in values] + [v * -2.0 for v in values]


def test_an_unknown_quantisation_is_named_only_when_it_is_asked_for(write: Any) -> None:
    tensors = [("fine", (1,), F32, struct.pack("<f", 1.5)), ("odd", (32,), Q4_0, b"\0" * 18)]
    with GGUFFile(write(gguf([], tensors))) as file:
        assert file.load("fine").tolist() == [1.5]
        assert file.tensors["odd"].type == "Q4_0"
        with pytest.raises(GGUFError, match=r"'odd' has type Q4_0, .* knows only F16, F32, Q4_1, Q8_0"):
            file.load("odd")
    with GGUFFile(write(gguf([], [("odd", (32,), 250, b"")]))) as file:
        with pytest.raises(GGUFError, match="type number 250"):
            file.load("odd")
        with pytest.raises(KeyError):
            file.load("missing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\3\4 a zip file", r"not a GGUF file, it starts with b'PK\\x03\\x04'"),
        (b"GG", "not a GGUF file"),
        (gguf([], version=1), "version 1 is not supported, only 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf([key("k", 13, b"")]), "'k' has the unknown value type 13"),
        (
            gguf([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]),
            "'k' is an array of the unsupported value type 9",
        ),
        (gguf([struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 0)]), "not UTF-8"),
        (gguf([key("general.alignment", UINT32, struct.pack("<I", 0))]), "alignment is 0"),
        (gguf([], [("t", (1, 1, 1, 1, 1), F32, b"1234")]), "5 dimensions"),
        (gguf([], [("t", (33,), Q4_1, b"\0" * 40)]), "rows of 33 values, Q4_1 needs a multiple of 32"),
        (gguf([key("k", ARRAY, struct.pack("<IQ", INT32, 1 << 60))]), "truncated, the array 'k' at byte"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(content: bytes, message: str, write: Any) -> None:
    path = write(content)
    with pytest.raises(GGUFError, match=message) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


def test_every_truncation_is_noticed_and_says_where_and_how_long(write: Any) -> None:
    keys = [key("a", STRING, text("value")), key("b", ARRAY, struct.pack("<IQ2i", INT32, 2, 1, 2))]
    whole = gguf(keys, [("t", (32,), Q4_1, bytes(range(20)))])
    with GGUFFile(write(whole)) as file:
        assert file.load("t").shape == (32,)
    for size in range(4, len(whole)):
        with pytest.raises(GGUFError, match=rf"truncated, .* ends at byte \d+ but the file has {size} bytes"):
            GGUFFile(write(whole[:size]))
