"""Block tables of a step's rows as one array, without turning every table's numbers over again in every step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf
from typing import Final

import numpy as np
import numpy.typing as npt

# Tables kept: more than any batch has rows. A table of a request that left stays until all are dropped.
_MOST: Final = 4096
_MINUS_ONE: Final = b"\xff"  # each byte of -1


class BlockTables:
    """Lays block tables out as rows of int32; remembers the bytes of each, since most are the same step after step."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[int], bytes]] = {}

    def rows(self, seq_ids: SequenceOf[int], tables: SequenceOf[list[int]], num_padding: int) -> npt.NDArray[np.int32]:
        """Return [len(tables) + num_padding, widest], padded with -1 and at least one block wide; not writable.

        What is remembered is compared with the table itself, so it does not matter who changed it and why.
        """
        if len(self._known) > _MOST:
            self._known.clear()
        known, parts = self._known, []
        for seq_id, table in zip(seq_ids, tables, strict=True):
            entry = known.get(seq_id)
            if entry is None or entry[0] != table:
                entry = known[seq_id] = list(table), array("i", table).tobytes()
            parts.append(entry[1])
        width = max(map(len, parts), default=0) or 4
        parts = [part if len(part) == width else part.ljust(width, _MINUS_ONE) for part in parts]
        parts.append(_MINUS_ONE * (width * num_padding))
        return np.frombuffer(b"".join(parts), np.int32).reshape(len(tables) + num_padding, width // 4)
