"""Follows an engine by its records and notes what changed since somebody last asked. Knows no message and no clock."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.state import SequenceState, State
from nvexplore.notebook.timeline import Timeline

STATUS = ("waiting", "prefill", "decode", "stop", "length", "abort", "error", "finished")
"""What a sequence can be; from "stop" on it has left. A message carries the place in this list (wire.js has it too)."""


class Ended(NamedTuple):
    """A sequence that has left: how (one of STATUS), and in which step.

    Of an aborted one: before which step; of one that left unseen ("finished") too.
    """

    seq: SequenceState
    status: str
    step: int


class Fold(State):
    """The state, which also remembers who left and which sequence's tokens each block was filled from.

    start: a snapshot, or a State whose parts this one takes over: nobody may change that one any more.
    """

    def __init__(self, start: Snapshot | State) -> None:
        if isinstance(start, State):
            self.__dict__.update(start.__dict__)  # a copy of a pool of a million blocks would take a tenth of a second
        else:
            super().__init__(start)
        self.departed: list[SequenceState] = []
        # block -> the sequence that filled it, and the block's place in that one's table.
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
    """One run of an engine: its state, its last steps, and the last sequences that ended.

    born:    step from which on a sequence was known.
    written: blocks that the newest step wrote.
    changed_blocks, changed_seqs, gone: since ``settle``; gone are the ended sequences that were forgotten.
    """

    def __init__(self, start: Snapshot | State, *, max_steps: int, max_entries: int, max_finished: int) -> None:
        self.state = Fold(start)
        self.timeline = Timeline(max_steps, max_entries)
        self.max_finished = max_finished
        self.ended: OrderedDict[int, Ended] = OrderedDict()
        self.born = dict.fromkeys(self.state.sequences, start.step)
        self.written: list[int] = []
        self.settle()

    def settle(self) -> None:
        """Begin to note changes anew."""
        self.changed_blocks: set[int] = set()
        self.changed_seqs: set[int] = set()
        self.gone: list[int] = []

    def apply(self, record: StepRecord) -> None:
        """Advance by one record; one that is held already is passed over. Raises FoldError on a gap."""
        state = self.state
        if record.step < state.step:
            return
        changes = state.apply(record)
        self.changed_blocks |= changes.blocks
        self.changed_seqs |= changes.sequences
        self.written = record.planned.spans.block_id
        self.timeline.append(record)
        for seq_id in record.before.added.seq_id:
            self.born.setdefault(seq_id, record.step)
        if state.departed:
            committed = record.committed
            reasons = dict(zip(committed.finished_seq_id, committed.finish_reason, strict=True))
            self._bury(state.departed, record.step, reasons)
            state.departed = []

    def _may_precede(self, snapshot: Snapshot) -> bool:
        state = self.state
        same = (snapshot.num_blocks, snapshot.block_size) == (state.num_blocks, state.block_size)
        return same and snapshot.step >= state.step and snapshot.event >= state.event

    def is_at(self, snapshot: Snapshot) -> bool:
        """The snapshot tells nothing new."""
        place = (snapshot.step, snapshot.event) == (self.state.step, self.state.event)
        return place and self._may_precede(snapshot)

    def rebase(self, snapshot: Snapshot) -> bool:
        """Go on from a later snapshot of the same engine; False, and nothing done, if it can't be one.

        The notes of what changed are not kept: all may have.
        """
        if not self._may_precede(snapshot):
            return False
        old = self.state
        self.state = new = Fold(snapshot)
        for block, content in old.content.items():
            if new.hash[block] is not None and new.hash[block] == old.hash[block]:
                new.content.setdefault(block, content)
        told = old.event - old.num_untold
        # Between two steps nobody leaves who is not aborted; else it was in steps of which there is no record.
        why = "abort" if (snapshot.step, snapshot.told) == (old.step, told) else "finished"
        if new.step > old.step:  # the steps in between are not known
            self.timeline.clear()
        for seq_id in new.sequences:
            self.born.setdefault(seq_id, new.step)
        gone = [seq for seq in (*old.departed, *old.sequences.values()) if seq.seq_id not in new.sequences]
        self._bury(gone, new.step, {seq.seq_id: why for seq in gone})
        return True

    def _bury(self, departed: list[SequenceState], step: int, reasons: dict[int, str]) -> None:
        for seq in departed:
            seq.block_table = []
            reason = reasons.get(seq.seq_id, "abort")
            self.ended[seq.seq_id] = Ended(seq, reason if reason in STATUS else "finished", step)
            self.timeline.forget(seq.seq_id)
        while len(self.ended) > self.max_finished:
            seq_id, _ = self.ended.popitem(last=False)
            del self.born[seq_id]
            self.gone.append(seq_id)

    # One thing at a time.

    def find(self, seq_id: int) -> SequenceState | None:
        """A live sequence, or one of the last that ended."""
        if seq_id in self.state.sequences:
            return self.state.sequences[seq_id]
        ended = self.ended.get(seq_id)
        return None if ended is None else ended.seq

    def block_tokens(self, block: int) -> list[int] | None:
        """The token ids whose KV a block holds; None if it was filled before this mirror began to follow."""
        state, size = self.state, self.state.block_size
        is_cached = state.hash[block] is not None
        if not is_cached and not state.ref_count[block]:
            return []
        if block not in state.content:
            return None
        seq, index = state.content[block]
        end = (index + 1) * size
        if not is_cached:
            end = min(end, state.sequences[state.owners[block][0]].num_computed_tokens)
        return seq.token_ids[index * size : end]
