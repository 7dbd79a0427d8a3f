"""Writes what the browser reads: frames (everything) and deltas (what changed). Knows no Jupyter and no clock.

widgets/store.js reads these messages; widgets/README.md lists what is in them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from nvexplore.notebook.mirror import STATUS, Mirror

MESSAGE_VERSION = 1
MOST_OWNERS = 32767
"""A larger ref count is told as this one: a block's word has 15 bits for it."""
Message = dict[str, Any]
_CODE = {status: code for code, status in enumerate(STATUS)}


def nothing(seq: int) -> Message:
    """The frame before any engine was seen."""
    numbers = ("run", "step", "event", "block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens")
    empty = dict.fromkeys(numbers, 0)
    return {
        "version": MESSAGE_VERSION,
        "full": True,
        "seq": seq,
        "time": 0.0,
        "max_steps": 512,
        "names": [],
        **empty,
    }


class Writer:
    """Tells about one run, whose number sets its messages apart from an earlier run's; knows what was told already."""

    def __init__(self, mirror: Mirror, run: int) -> None:
        self.mirror, self.run = mirror, run
        self._tables: dict[int, list[int]] = {}
        self._queues: tuple[list[int], list[int]] = ([], [])
        self._next_column = mirror.state.step
        self.count_words()

    def count_words(self) -> None:
        """Make the words of all blocks anew; the mirror has jumped to another state."""
        state = self.mirror.state
        has_hash = np.fromiter((h is not None for h in state.hash), bool, state.num_blocks)
        # Of each block: ref count * 2 + (1 if its hash is kept). Up to date but for the mirror's changed blocks.
        self._words = (2 * np.minimum(state.ref_count, MOST_OWNERS) + has_hash).astype("<u2")

    @property
    def has_news(self) -> bool:
        """A step was made that no message has told."""
        return self._next_column < self.mirror.state.step

    def frame(self, seq: int, *, settle: bool = False) -> Message:
        """Everything. settle: every browser gets it, so that the next delta builds on it."""
        mirror, state = self.mirror, self.mirror.state
        self._update_words()
        known = [*state.sequences, *mirror.ended]
        rows, tables = self._rows(known, {})
        columns = mirror.timeline.columns
        message = self._head(seq, full=True) | {
            "block_size": state.block_size,
            "num_blocks": state.num_blocks,
            "max_num_seqs": state.max_num_seqs,
            "max_num_batched_tokens": state.max_num_batched_tokens,
            "max_steps": mirror.timeline.max_steps,
            "names": self._names(known),
            "rows": rows,
            "tables": tables,
            "words": self._words.tobytes(),
            "written": _u32(mirror.written),
            "waiting": _u32(state.waiting),
            "running": _u32(state.running),
            **self._columns(columns[0].step if columns else state.step),
        }
        if settle:
            self._tables = {seq_id: list(seq.block_table) for seq_id, seq in state.sequences.items()}
            self._settle()
        return message

    def delta(self, seq: int) -> Message:
        """What changed since the last delta or settled frame."""
        mirror, state = self.mirror, self.mirror.state
        self._update_words()
        changed = [seq_id for seq_id in mirror.changed_seqs if mirror.find(seq_id) is not None]
        message = self._head(seq, full=False)
        message["names"] = self._names(seq_id for seq_id in changed if seq_id not in self._tables)
        message["gone"] = mirror.gone
        message["rows"], message["tables"] = self._rows(changed, self._tables)
        message["written"] = _u32(mirror.written)
        if 3 * len(mirror.changed_blocks) > state.num_blocks:  # a word is 2 bytes, a block id 4
            message["words"] = self._words.tobytes()
        else:
            blocks = np.fromiter(mirror.changed_blocks, "<u4", len(mirror.changed_blocks))
            message["block_ids"], message["words"] = blocks.tobytes(), self._words[blocks].tobytes()
        queues = (state.waiting, state.running)
        for name, queue, told in zip(("waiting", "running"), queues, self._queues, strict=True):
            if queue != told:
                message[name] = _u32(queue)
        message |= self._columns(self._next_column)
        for seq_id in changed:
            live = state.sequences.get(seq_id)
            table = [] if live is None else live.block_table
            if self._tables.get(seq_id) != table:
                self._tables[seq_id] = list(table)
        for seq_id in mirror.gone:
            self._tables.pop(seq_id, None)
        self._settle()
        return message

    def _settle(self) -> None:
        state = self.mirror.state
        self._queues = (list(state.waiting), list(state.running))
        self._next_column = state.step
        self.mirror.settle()

    def _head(self, seq: int, *, full: bool) -> Message:
        state = self.mirror.state
        head = {"version": MESSAGE_VERSION, "full": full, "run": self.run, "seq": seq}
        return head | {"step": state.step, "event": state.event, "time": state.time}

    def _update_words(self) -> None:
        state, words = self.mirror.state, self._words
        for block in self.mirror.changed_blocks:
            words[block] = 2 * min(state.ref_count[block], MOST_OWNERS) + (state.hash[block] is not None)

    def _names(self, seq_ids: Iterable[int]) -> list[tuple[int, str]]:
        found = ((seq_id, self.mirror.find(seq_id)) for seq_id in seq_ids)
        return [(seq_id, sendable(seq.request_id)) for seq_id, seq in found if seq is not None]

    def _rows(self, seq_ids: Iterable[int], told: dict[int, list[int]]) -> tuple[bytes, bytes]:
        """Each sequence's numbers, and what its block table has beyond the one that was told."""
        rows, tables = array("i"), array("I")
        live, ended, born = self.mirror.state.sequences, self.mirror.ended, self.mirror.born
        for seq_id in seq_ids:
            seq = live.get(seq_id)
            status, end = ("", -1) if seq is not None else ended[seq_id][1:]
            seq = seq or ended[seq_id].seq
            had, has = told.get(seq_id, []), seq.block_table
            keep = len(had)
            if has != had:  # most tables of a step are as they were
                keep = keep if has[:keep] == had else 0
                tables.extend(has[keep:])
            lengths = seq.num_prompt_tokens, len(seq.token_ids), seq.num_cached_tokens, seq.num_computed_tokens
            code, life = _CODE[status or seq.status], (seq.num_preemptions, born[seq_id], end)
            rows.extend((seq_id, code, *lengths, *life, keep, len(has) - keep))
        return rows.tobytes(), tables.tobytes()

    def _columns(self, step: int) -> Message:
        columns = list(self.mirror.timeline.since(step))
        heads = array("i", chain.from_iterable(column.head for column in columns))
        return {"steps": heads.tobytes(), "entries": b"".join(column.packed for column in columns)}


def sendable(text: str) -> str:
    """Text that survives the way to the browser: what is not valid Unicode (lone surrogates) becomes "?"."""
    return text.encode("utf-8", "replace").decode()


def _u32(values: list[int]) -> bytes:
    return array("I", values).tobytes()
