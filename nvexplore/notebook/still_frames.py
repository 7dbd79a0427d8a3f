"""What becomes of a frame that can't be sent or saved as it is. widgets/wire.js reads it.

A large one tells its blocks as runs. One that is still too large for a notebook's file is saved in part, and says what
was left out; a page that is open gets all of it. Where a front end delivers no binary parts they are sent as text.
"""

from __future__ import annotations

from base64 import b64encode

import numpy as np
from numpy.typing import NDArray

from nvexplore.notebook.messages import Message

LARGE = 200_000
"""Bytes of a frame that is sent as it is."""
MAX_SAVED = 1_000_000
"""Bytes of a frame that a notebook keeps, for each engine; in its file they take a third more."""
ROW, KEPT, GROWN = 11, 9, 10


def size_of(message: Message) -> int:
    """Bytes of its binary parts."""
    return sum(len(part) for part in message.values() if isinstance(part, bytes))


def compact(frame: Message) -> Message:
    """The same frame; of a large one words and tables as ``word_runs`` and ``table_runs`` where these are less.

    A run is [first value, number of values], both u32: of equal words, of block ids that follow each other.
    """
    if size_of(frame) <= LARGE:
        return frame
    packed = dict(frame)
    for name, dtype, runs_name, step in (("words", "<u2", "word_runs", 0), ("tables", "<u4", "table_runs", 1)):
        runs = runs_of(np.frombuffer(frame[name], dtype), step)
        if len(runs) < len(frame[name]):
            del packed[name]
            packed[runs_name] = runs
    return packed


def runs_of(values: NDArray[np.unsignedinteger], step: int) -> bytes:
    """[first value, length] of each stretch of ``values`` in which each is the one before it plus ``step``."""
    starts = np.flatnonzero(np.diff(values.astype(np.int64)) != step) + 1
    starts = np.concatenate([[0], starts])[: len(values)]
    lengths = np.diff(np.append(starts, len(values)))
    return np.stack([values[starts], lengths], axis=1).astype("<u4").tobytes()


def saved(frame: Message) -> Message:
    """A compact frame as it is kept in a notebook: without the blocks if it is too large with them.

    ``left_out`` then says what is missing. Without blocks the pool has none, and no sequence holds any.
    """
    size = size_of(frame)
    if size <= MAX_SAVED:
        return frame
    kept = {name: part for name, part in frame.items() if name not in ("words", "tables", "word_runs", "table_runs")}
    rows = np.frombuffer(frame["rows"], "<i4").reshape(-1, ROW).copy()
    rows[:, [KEPT, GROWN]] = 0
    many = f"the map of {frame['num_blocks']:,} blocks and the block tables"
    limit = f"{size / 1e6:.1f} MB, and {MAX_SAVED / 1e6:.1f} MB are saved at most"
    kept |= {"rows": rows.tobytes(), "words": b"", "tables": b"", "written": b"", "num_blocks": 0}
    if size_of(kept) > MAX_SAVED:  # thousands of sequences at each of hundreds of steps
        kept |= {"steps": b"", "entries": b""}
        many += ", and the steps"
    return kept | {"left_out": f"{many} were left out of the saved notebook: with them it takes {limit}"}


def as_text(frame: Message) -> Message:
    """The same with its binary parts in base64, for a front end that delivers none."""
    return {name: text_of(part) if isinstance(part, bytes) else part for name, part in frame.items()}


def divided(message: Message) -> tuple[Message, list[bytes]]:
    """What of a message is plain, and its binary parts in the order of the names in ``buffers``."""
    buffers = {name: part for name, part in message.items() if isinstance(part, bytes)}
    content = {name: part for name, part in message.items() if name not in buffers}
    return content | {"buffers": list(buffers)}, list(buffers.values())


def with_texts(content: Message, buffers: list[bytes]) -> tuple[Message, list[bytes]]:
    """The same message with its binary parts in base64, in ``texts``."""
    return (content | {"texts": list(map(text_of, buffers))}, []) if buffers else (content, buffers)


def text_of(part: bytes) -> str:
    """Bytes in base64."""
    return b64encode(part).decode()
