"""How a step's tensors lie in one int32 buffer, so that a device needs one copy a step. Knows no sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

# Types other than int32 are bit patterns in the int32 buffer; 64-bit ones come first, where they are aligned. Block
# tables come last: where the others lie depends on the number of rows and tokens alone.
FIELDS: Final[dict[str, torch.dtype]] = {
    "sample_keys": torch.int64,
    "input_ids": torch.int32,
    "positions": torch.int32,
    "slot_mapping": torch.int32,
    "cu_seqlens_q": torch.int32,
    "cu_seqlens_k": torch.int32,
    "context_lens": torch.int32,
    "order": torch.int32,
    "logits_rows": torch.int32,
    "temperatures": torch.float32,
    "tiles": torch.int32,
    "table_width": torch.int32,
    "block_tables": torch.int32,
}
Shapes = Mapping[str, tuple[int, ...]]


_ALIGNED: Final = 4  # int32 are 16 bytes: a kernel may count on that for every field, whatever the sizes before it


def unpack(packed: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return the fields as views of ``packed``."""
    views, begins = dict[str, Tensor](), offsets(shapes)
    for name, dtype in FIELDS.items():
        part = packed[begins[name] : begins[name] + _length(shapes[name], dtype)]
        views[name] = (part if dtype is torch.int32 else part.view(dtype)).view(shapes[name])
    return views


def offsets(shapes: Shapes) -> dict[str, int]:
    """Where each field begins, in int32."""
    begins, offset = dict[str, int](), 0
    for name, dtype in FIELDS.items():
        begins[name] = offset
        offset += -(-_length(shapes[name], dtype) // _ALIGNED) * _ALIGNED
    return begins


def packed_size(shapes: Shapes) -> int:
    """How many int32 the fields take."""
    last = next(reversed(FIELDS))
    return offsets(shapes)[last] + _length(shapes[last], FIELDS[last])


def decode_shapes(num_rows: int, table_width: int) -> Shapes:
    """The shapes of a batch whose rows have one token each, all of them sampled."""
    shapes = dict.fromkeys(FIELDS, (num_rows,))
    ends = {"cu_seqlens_q": (num_rows + 1,), "cu_seqlens_k": (num_rows + 1,)}
    return {**shapes, **ends, "tiles": (2, 0), "table_width": (1,), "block_tables": (num_rows, table_width)}


def _length(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * (dtype.itemsize // 4)
