"""A small reader of GGUF files: metadata, tensor table, and four tensor types as float32.

It knows the container format only (versions 2 and 3, little-endian), as described in
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. It does not know any model: what a key or a tensor
name means is its caller's business.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_DIMS: Final = 4

# GGUF value types that are one fixed-size number, by their id.
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9

# Names of ggml's tensor types, so that an unsupported one is refused by the name its users know.
_TYPE_NAMES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

# One block of each readable type: how many values it holds, and how its bytes are laid out.
_BLOCKS: Final[dict[str, tuple[int, np.dtype[Any]]]] = {
    "F32": (1, np.dtype("<f4")),
    "F16": (1, np.dtype("<f2")),
    "Q4_1": (32, np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("nibbles", "u1", 16)])),
    "Q8_0": (32, np.dtype([("scale", "<f2"), ("values", "i1", 32)])),
}


class GGUFError(ValueError):
    """The file is not a GGUF file that this reader can read; the message says where and why."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table: shape is outermost first, `offset` and `num_bytes` are bytes in the file.

    `num_bytes` is None for a type that this reader cannot read.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    num_bytes: int | None


class GGUFFile:
    """An open GGUF file: `metadata` by key, `tensors` by name, and `load` for the values.

    A context manager; arrays from `load` stay valid after it is closed.
    Raises GGUFError for a file that is not GGUF, of another version or truncated, and OSError for one that
    cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            self._size = file.seek(0, 2)
            if self._size == 0:
                raise GGUFError(f"{self.path}: the file is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._position = 0
        try:
            self.metadata, self.tensors = self._read_header()
        except BaseException:
            self.close()
            raise

    def load(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor `name` as a new float32 array of its shape.

        Raises KeyError for a name that is not in the file and GGUFError for a type this reader does not know.
        """
        info = self.tensors[name]
        if info.num_bytes is None:
            raise GGUFError(
                f"{self.path}: tensor {name!r} has type {info.type}, this reader knows only "
                f"{', '.join(sorted(_BLOCKS))}"
            )
        block = _BLOCKS[info.type][1]
        blocks = np.frombuffer(self._map, block, info.num_bytes // block.itemsize, info.offset)
        return _dequantise(info.type, blocks).reshape(info.shape)

    def close(self) -> None:
        """Unmap the file; a second call does nothing."""
        self._map.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_header(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if (magic := self._map[:4]) != _MAGIC:
            raise GGUFError(f"{self.path}: not a GGUF file, it starts with {magic!r} instead of {_MAGIC!r}")
        self._position = 4
        version = self._number("I")
        if version not in _VERSIONS:
            # A big-endian file shows its version in the upper bytes.
            hint = " (a big-endian file?)" if version >= 1 << 16 else ""
            raise GGUFError(f"{self.path}: GGUF version {version} is not supported{hint}, only 2 and 3 are")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._number("I"), key)
        rows = [self._tensor_row() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise GGUFError(f"{self.path}: general.alignment is {alignment!r}, expected a positive number")
        start = -(-self._position // alignment) * alignment
        return metadata, {row[0]: self._tensor_info(*row, data_start=start) for row in rows}

    def _tensor_row(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dims = self._string(), self._number("I")
        if num_dims > _MAX_DIMS:
            raise GGUFError(f"{self.path}: tensor {name!r} has {num_dims} dimensions, at most 4 are allowed")
        # GGUF lists the fastest-changing dimension first, numpy and torch list it last.
        shape = tuple(self._number("Q") for _ in range(num_dims))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _tensor_info(
        self, name: str, shape: tuple[int, ...], type_id: int, offset: int, *, data_start: int
    ) -> TensorInfo:
        type_name = _TYPE_NAMES.get(type_id, f"number {type_id}")
        num_bytes = None
        if type_name in _BLOCKS:
            block_size, block = _BLOCKS[type_name]
            num_values = 1
            for dim in shape:
                num_values *= dim
            if (row_length := shape[-1] if shape else 1) % block_size:
                raise GGUFError(
                    f"{self.path}: tensor {name!r} has rows of {row_length} values, {type_name} needs a "
                    f"multiple of {block_size}"
                )
            num_bytes = num_values // block_size * block.itemsize
            self._require(data_start + offset, num_bytes, f"tensor {name!r}")
        return TensorInfo(name, shape, type_name, data_start + offset, num_bytes)

    def _value(self, type_id: int, key: str) -> Any:
        if type_id in _SCALARS:
            return self._number(_SCALARS[type_id])
        if type_id == _STRING:
            return self._string()
        if type_id != _ARRAY:
            raise GGUFError(f"{self.path}: key {key!r} has the unknown value type {type_id}")
        item_type, count = self._number("I"), self._number("Q")
        if item_type == _STRING:
            return [self._string() for _ in range(count)]
        if item_type not in _SCALARS:
            raise GGUFError(f"{self.path}: key {key!r} is an array of the unsupported value type {item_type}")
        code = _SCALARS[item_type]
        end = self._require(self._position, count * struct.calcsize("<" + code), f"array {key!r}")
        values = list(struct.unpack_from(f"<{count}{code}", self._map, self._position))
        self._position = end
        return values

    def _string(self) -> str:
        length = self._number("Q")
        end = self._require(self._position, length, "string")
        raw = self._map[self._position : end]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise GGUFError(f"{self.path}: the string at byte {self._position} is not UTF-8") from error
        self._position = end
        return text

    def _number(self, code: str) -> Any:
        end = self._require(self._position, struct.calcsize("<" + code), "number")
        (value,) = struct.unpack_from("<" + code, self._map, self._position)
        self._position = end
        return value

    def _require(self, start: int, num_bytes: int, what: str) -> int:
        """The byte after the `num_bytes` at `start`; GGUFError where the file ends before it."""
        if (end := start + num_bytes) > self._size:
            raise GGUFError(
                f"{self.path}: the file is truncated, the {what} at byte {start} ends at byte {end} "
                f"but the file has {self._size} bytes"
            )
        return end


def _dequantise(type_name: str, blocks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The values of `blocks` in float32, flat; the arithmetic is ggml's, so results equal llama.cpp's."""
    values: npt.NDArray[np.float32]
    if type_name in ("F32", "F16"):
        values = blocks.astype(np.float32)
    elif type_name == "Q8_0":
        values = blocks["values"] * blocks["scale"].astype(np.float32)[:, None]
    else:
        # Q4_1: byte j holds value j in its low half and value j + 16 in its high half.
        nibbles = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1)
        scale, minimum = (blocks[field].astype(np.float32)[:, None] for field in ("scale", "minimum"))
        values = nibbles * scale + minimum
    return values.reshape(-1)
