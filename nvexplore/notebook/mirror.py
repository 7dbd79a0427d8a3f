"""What the browser is told about an engine: the fold of its records, as frames (all of it) and deltas (what changed).

widgets/store.js reads these messages; widgets/README.md tells what is in them. Knows no Jupyter and no clock.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import SequenceState, State
from nvexplore.notebook.timeline import Timeline

MESSAGE_VERSION = 1
STATUS = ("waiting", "prefill", "decode", "stop", "length", "abort", "finished")
"""Codes of a row's status; from "stop" on the sequence has left. store.js has the same list."""
MOST_OWNERS = 32767
"""A larger ref count is told as this one: a block's word has 15 bits for it."""
_CODE = {status: code for code, status in enumerate(STATUS)}
Message = dict[str, Any]


class _Fold(State):
    """The state, which also remembers who left and which sequence's tokens each block was filled from."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.departed: list[SequenceState] = []
        self.content: dict[int, tuple[SequenceState, int]] = {
            block: (seq, index) for seq in self.sequences.values() for index, block in enumerate(seq.block_table)
        }

    def left(self, seq_id: int) -> None:
        self.departed.append(self.sequences[seq_id])
        super().left(seq_id)

    def block_event(self, kind: str, block: int, seq_id: int, hash_: int | None) -> None:
        super().block_event(kind, block, seq_id, hash_)
        if kind == "allocated":
            seq = self.sequences[seq_id]
            self.content[block] = (seq, len(seq.block_table) - 1)


class Mirror:
    """One run's state and what the browser has of it. ``run`` tells this run's messages from an earlier one's."""

    def __init__(
        self, snapshot: Snapshot, run: int, *, max_steps: int, max_entries: int, max_finished: int
    ) -> None:
        self.run = run
        self.state: State = _Fold(snapshot)
        self.timeline = Timeline(max_steps, max_entries)
        self.ended: OrderedDict[int, tuple[SequenceState, int, int]] = OrderedDict()  # status code, step
        self.max_finished = max_finished
        self._born = dict.fromkeys(self.state.sequences, snapshot.step)
        self._words = _words(snapshot)
        self._unsynced: set[int] = set()  # blocks whose word is out of date
        self._written: list[int] = []
        # What the browser has.
        self._dirty_blocks: set[int] = set()
        self._dirty_seqs: set[int] = set()
        self._gone: list[int] = []
        self._tables: dict[int, list[int]] = {}
        self._queues: tuple[list[int], list[int]] = ([], [])
        self._next_column = snapshot.step

    def apply(self, record: StepRecord) -> None:
        """Advance by one record; one that is held already is passed over. Raises FoldError on a gap."""
        state = self.state
        if record.step < state.step:
            return
        changes = state.apply(record)
        self._dirty_blocks |= changes.blocks
        self._unsynced |= changes.blocks
        self._dirty_seqs |= changes.sequences
        self._written = record.planned.spans.block_id
        self.timeline.append(record)
        for seq_id in record.before.added.seq_id:
            self._born[seq_id] = record.step
        assert isinstance(state, _Fold)
        if state.departed:
            committed = record.committed
            reasons = dict(zip(committed.finished_seq_id, committed.finish_reason, strict=True))
            self._bury(state.departed, record.step, reasons)
            state.departed = []

    def rebase(self, snapshot: Snapshot) -> bool:
        """Go on from a later snapshot of the same engine; False, and nothing done, if it can't be one."""
        old = self.state
        pool = (old.num_blocks, old.block_size)
        if snapshot.step < old.step or snapshot.event < old.event or pool != (snapshot.num_blocks, snapshot.block_size):
            return False
        assert isinstance(old, _Fold)
        new = _Fold(snapshot)
        for block, content in old.content.items():
            if new.hash[block] is not None and new.hash[block] == old.hash[block]:
                new.content.setdefault(block, content)
        if new.step > old.step:  # the steps in between are not known
            self.timeline.clear()
        self.state, self._words = new, _words(snapshot)
        self._unsynced.clear()
        for seq_id in new.sequences:
            self._born.setdefault(seq_id, new.step)
        self._bury([seq for seq_id, seq in old.sequences.items() if seq_id not in new.sequences], new.step, {})
        return True

    def _bury(self, departed: list[SequenceState], step: int, reasons: dict[int, str]) -> None:
        for seq in departed:
            seq.block_table = []
            code = _CODE.get(reasons.get(seq.seq_id, "abort"), _CODE["finished"])
            self.ended[seq.seq_id] = (seq, code, step)
            self.timeline.forget(seq.seq_id)
        while len(self.ended) > self.max_finished:
            seq_id, _ = self.ended.popitem(last=False)
            del self._born[seq_id]
            self._gone.append(seq_id)

    # What a browser is told.

    def frame(self, seq: int, *, settle: bool = False) -> Message:
        """Everything. settle: every browser gets it, so that the next delta builds on it."""
        self._sync_words()
        state, live = self.state, self.state.sequences
        rows, tables = self._rows(chain(live, self.ended), {})
        first = self.timeline.columns[0].step if self.timeline.columns else state.step
        message = self._head(seq, full=True) | {
            "block_size": state.block_size,
            "num_blocks": state.num_blocks,
            "max_num_seqs": state.max_num_seqs,
            "max_num_batched_tokens": state.max_num_batched_tokens,
            "max_steps": self.timeline.max_steps,
            "names": self._names(chain(live, self.ended)),
            "rows": rows,
            "tables": tables,
            "words": self._words.tobytes(),
            "written": _u32(self._written),
            "waiting": _u32(state.waiting),
            "running": _u32(state.running),
            **self._columns(first),
        }
        if settle:
            self._tables = {seq_id: list(s.block_table) for seq_id, s in live.items()}
            self._settle()
        return message

    def delta(self, seq: int) -> Message:
        """What changed since the last delta or settled frame."""
        state = self.state
        self._sync_words()
        message = self._head(seq, full=False)
        changed = [s for s in self._dirty_seqs if s in state.sequences or s in self.ended]
        new = [s for s in changed if s not in self._tables]
        message["names"] = self._names(new)
        message["gone"] = self._gone
        message["rows"], message["tables"] = self._rows(changed, self._tables)
        message["written"] = _u32(self._written)
        if 3 * len(self._dirty_blocks) > state.num_blocks:  # a word is 2 bytes, its block id 4
            message["words"] = self._words.tobytes()
        else:
            blocks = np.fromiter(self._dirty_blocks, "<u4", len(self._dirty_blocks))
            message["block_ids"], message["words"] = blocks.tobytes(), self._words[blocks].tobytes()
        for name, queue, sent in zip(("waiting", "running"), (state.waiting, state.running), self._queues, strict=True):
            if queue != sent:
                message[name] = _u32(queue)
        message |= self._columns(self._next_column)
        for seq_id in changed:
            if seq_id in state.sequences:
                self._tables[seq_id] = list(state.sequences[seq_id].block_table)
            else:
                self._tables[seq_id] = []
        for seq_id in self._gone:
            self._tables.pop(seq_id, None)
        self._settle()
        return message

    @property
    def has_news(self) -> bool:
        """Something happened that no browser was told."""
        return self._next_column < self.state.step

    def _settle(self) -> None:
        self._dirty_blocks, self._dirty_seqs, self._gone = set(), set(), []
        self._queues = (list(self.state.waiting), list(self.state.running))
        self._next_column = self.state.step

    def _head(self, seq: int, *, full: bool) -> Message:
        state = self.state
        version = {"version": MESSAGE_VERSION, "full": full, "run": self.run, "seq": seq}
        return version | {"step": state.step, "event": state.event, "time": state.time}

    def _sync_words(self) -> None:
        state, words = self.state, self._words
        for block in self._unsynced:
            words[block] = 2 * min(state.ref_count[block], MOST_OWNERS) + (state.hash[block] is not None)
        self._unsynced = set()

    def _find(self, seq_id: int) -> tuple[SequenceState, int, int]:
        if seq_id in self.state.sequences:
            seq = self.state.sequences[seq_id]
            return seq, _CODE[seq.status], -1
        return self.ended[seq_id]

    def _names(self, seq_ids: Iterable[int]) -> list[tuple[int, str]]:
        return [(seq_id, sendable(self._find(seq_id)[0].request_id)) for seq_id in seq_ids]

    def _rows(self, seq_ids: Iterable[int], sent: dict[int, list[int]]) -> tuple[bytes, bytes]:
        rows, tables = array("i"), array("I")
        for seq_id in seq_ids:
            seq, code, ended = self._find(seq_id)
            had, has = sent.get(seq_id, []), seq.block_table
            keep = len(had) if has[: len(had)] == had else 0
            tables.extend(has[keep:])
            lengths = (seq.num_prompt_tokens, len(seq.token_ids), seq.num_cached_tokens, seq.num_computed_tokens)
            rows.extend((seq_id, code, *lengths, seq.num_preemptions, self._born[seq_id], ended, keep, len(has) - keep))
        return rows.tobytes(), tables.tobytes()

    def _columns(self, step: int) -> Message:
        columns = list(self.timeline.since(step))
        heads = array("i", chain.from_iterable(column.head for column in columns))
        return {"steps": heads.tobytes(), "entries": b"".join(column.packed for column in columns)}

    # What is asked one thing at a time.

    def block_tokens(self, block: int) -> list[int] | None:
        """The token ids whose KV a block holds; None if this run never saw it being filled."""
        state, size = self.state, self.state.block_size
        assert isinstance(state, _Fold)
        seq, index = state.content.get(block, (None, 0))
        if seq is None or (state.ref_count[block] == 0 and state.hash[block] is None):
            return None if state.ref_count[block] or state.hash[block] is not None else []
        end = (index + 1) * size
        if state.hash[block] is None:
            end = min(end, state.sequences[state.owners[block][0]].num_computed_tokens)
        return seq.token_ids[index * size : end]

    def find_sequence(self, seq_id: int) -> SequenceState | None:
        """A live sequence, or one of the last that ended."""
        known = seq_id in self.state.sequences or seq_id in self.ended
        return self._find(seq_id)[0] if known else None


def sendable(text: str) -> str:
    """Text that survives the way to the browser: what is not valid Unicode (lone surrogates) becomes "?"."""
    return text.encode("utf-8", "replace").decode()


def _words(snapshot: Snapshot) -> np.ndarray[Any, np.dtype[np.uint16]]:
    has_hash = np.fromiter((h is not None for h in snapshot.hash), bool, snapshot.num_blocks)
    return (2 * np.minimum(snapshot.ref_count, MOST_OWNERS) + has_hash).astype("<u2")


def _u32(values: list[int]) -> bytes:
    return array("I", values).tobytes()
