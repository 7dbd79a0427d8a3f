"""Which tokens each block of the pool has held, learnt from the records once, to be asked about any kept step.

A prefix is a chain of nodes, one a full block; two blocks that hold the same prefix at different times share a node.
Of blocks that were filled before it was recorded, and that nobody held then, the content is not known.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from operator import attrgetter
from weakref import WeakKeyDictionary

from nvexplore.engine.events import BlockEvents, Snapshot, StepRecord
from nvexplore.explore.prefixes import UNKNOWN, Filled, Live, Node
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State

__all__ = ["UNKNOWN", "Contents", "Node", "contents_of"]

FIRST_PRUNING = 65_536
_number = attrgetter("number")


class Contents:
    """Follows the records of one recorder; ``contents_of`` gives its own. May be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._next_step = self._next_event = -1
        self._size = 0
        self._live: dict[int, Live] = {}
        self._filled: dict[int, list[Filled]] = {}
        self._hits: dict[int, list[int]] = {}
        self._old_hits: dict[int, tuple[int, int]] = {}  # the number of an entry, and hits of it no longer in _hits
        self._nodes: dict[int, Node] = {}  # the newest node of each hash
        self._node_of: dict[tuple[Node | None, tuple[int, ...], object], Node] = {}  # the same by what they hold
        self._num_filled, self._num_hits, self._prune_at = 0, 0, FIRST_PRUNING
        self._has_gaps = False

    def follow(self, recorder: Recorder) -> None:
        """Learn the records that have come since the last call."""
        segments = recorder.segments
        with self._lock:
            for snapshot, records in segments:
                if snapshot.step + len(records) <= self._next_step:
                    continue
                if (snapshot.step, snapshot.event) > (self._next_step, self._next_event):
                    self._start(snapshot)
                for record in records[self._next_step - snapshot.step :]:
                    self._see(record)
            if self._num_filled + self._num_hits > self._prune_at and segments:
                self._prune(segments[0][0].event)

    def content(self, block: int, event: int, hash_: int | None = None) -> Filled | None:
        """What ``block`` was last filled with before event number ``event``; None if unknown, or if not ``hash_``."""
        with self._lock:
            filled = self._filled.get(block, [])
            at = bisect_left(filled, event, key=_number) if filled and filled[-1].number >= event else len(filled)
            found = filled[at - 1] if at else None
        return None if found is None or (hash_ is not None and found.hash != hash_) else found

    def cached(self, state: State) -> dict[int, Filled]:
        """block -> its content, of the blocks that are in the cache in ``state`` and whose content is known."""
        found = {}
        event, filled = state.event, self._filled
        with self._lock:
            for block, hash_ in enumerate(state.hash):
                if hash_ is None or block not in filled:
                    continue
                content: Filled | None = filled[block][-1]
                if content is None or content.number >= event or content.hash != hash_:
                    content = self.content(block, event, hash_)
                if content is not None:
                    found[block] = content
        return found

    def num_hits(self, block: int, filled: Filled, event: int) -> int:
        """How often requests had shared ``block`` since it was ``filled``, before event ``event``."""
        with self._lock:
            hits = self._hits.get(block, [])
            number, num_old = self._old_hits.get(block, (-1, 0))
            num_new = bisect_left(hits, event) - bisect_left(hits, filled.number)
            return num_new + (num_old if number == filled.number else 0)

    # Following.

    def _start(self, snapshot: Snapshot) -> None:
        """Go on from a state whose beginning is not known, but for what live sequences hold."""
        columns, self._size = snapshot.sequences, snapshot.block_size
        self._has_gaps = self._next_step >= 0
        self._live = {}
        for seq_id, token_ids, table in zip(columns.seq_id, columns.token_ids, columns.block_table, strict=True):
            seq = self._live[seq_id] = Live(list(token_ids), UNKNOWN)
            seq.table = list(table)
            for index, block in enumerate(table):
                hash_ = snapshot.hash[block]
                if hash_ is None:
                    break
                content = self.content(block, snapshot.event, hash_)
                if content is None:
                    node = self._node(seq, index, hash_)
                    number, step = snapshot.event - 1, snapshot.step - 1
                    content = self._fill(block, Filled(number, hash_, node, seq_id, step, seq.last[1]))
                seq.follow(content.node, content.number)
        self._next_step, self._next_event = snapshot.step, snapshot.event

    def _see(self, record: StepRecord) -> None:
        before, planned, committed = record.before, record.planned, record.committed
        live, added = self._live, before.added
        for seq_id, token_ids, params in zip(added.seq_id, added.token_ids, added.sampling_params, strict=True):
            if seq_id not in live:  # the snapshot may tell of it too
                live[seq_id] = Live(list(token_ids), UNKNOWN)
            live[seq_id].salt = (params.get("cache_salt"),)
        for events in (before.blocks, planned.blocks):
            if events.number:
                self._blocks(events, record.step)
        if self._nodes:  # or nothing has ever been cached
            for seq_id, end in zip(planned.seq_id, planned.context_len, strict=True):
                self._fill_up(live[seq_id], end // self._size)
        for seq_id in before.aborted_seq_id:
            live.pop(seq_id, None)
        for seq_id, token_id in zip(committed.seq_id, committed.token_id, strict=True):
            live[seq_id].token_ids.append(token_id)
        if committed.blocks.number:
            self._blocks(committed.blocks, record.step)
        for seq_id in committed.finished_seq_id:
            del live[seq_id]
        self._next_step, self._next_event = record.step + 1, record.event

    def _blocks(self, events: BlockEvents, step: int) -> None:
        live, filled = self._live, self._filled
        for number, kind, block, seq_id, hash_ in zip(
            events.number, events.kind, events.block_id, events.seq_id, events.hash, strict=True
        ):
            if seq_id not in live:  # an eviction
                continue
            seq = live[seq_id]
            table = seq.table
            if kind == "allocated":
                table.append(block)
            elif kind == "freed":
                if table:
                    table.pop()
                if len(seq.chain) > len(table):
                    seq.chain.pop()
                    seq.entries.pop()
            elif kind == "hit":
                if len(seq.chain) == len(table) and block in filled:
                    self._share(seq, filled[block][-1])
                table.append(block)
                self._hits.setdefault(block, []).append(number)
                self._num_hits += 1
            elif hash_ is not None:
                index = table.index(block)
                self._fill_up(seq, index)
                node, before = self._node(seq, index, hash_), seq.entries[index - 1] if index else -1
                if index == len(seq.chain):
                    seq.follow(node, number)
                seq.chain[index], seq.entries[index] = node, number
                self._fill(block, Filled(number, hash_, node, seq_id, step, before))

    def _share(self, seq: Live, filled: Filled) -> None:
        """Go on with a block's node, unless the block was filled anew while nobody recorded."""
        node, index = filled.node, len(seq.chain)
        is_same = not self._has_gaps or (node.parent is seq.last[0] and node.token_ids == self._tokens(seq, index))
        if is_same:
            seq.follow(node, filled.number)

    def _fill(self, block: int, filled: Filled) -> Filled:
        self._filled.setdefault(block, []).append(filled)
        self._num_filled += 1
        filled.node.newest = filled.number
        return filled

    def _fill_up(self, seq: Live, num_blocks: int) -> None:
        """Blocks that are full and were never entered: another held the same already and stayed the one to be hit."""
        while len(seq.chain) < num_blocks:
            parent, token_ids = seq.last[0], self._tokens(seq, len(seq.chain))
            node = self._node_of.get((parent, token_ids, seq.salt)) or Node(parent, token_ids, seq.salt)
            seq.follow(node, node.newest)

    def _node(self, seq: Live, index: int, hash_: int) -> Node:
        """The node of the sequence's block ``index``, which was entered under ``hash_``."""
        parent, token_ids = seq.chain[index - 1] if index else None, self._tokens(seq, index)
        node = self._nodes.get(hash_)
        if node is None or node.parent is not parent or node.token_ids != token_ids:
            node = self._nodes[hash_] = Node(parent, token_ids, seq.salt)
        self._node_of[parent, token_ids, seq.salt] = node
        return node

    def _tokens(self, seq: Live, index: int) -> tuple[int, ...]:
        return tuple(seq.token_ids[index * self._size : (index + 1) * self._size])

    def _prune(self, event: int) -> None:
        """Forget what blocks had lost again before ``event``; of hits before it only their number is kept."""
        for block, filled in self._filled.items():
            del filled[: max(0, bisect_right(filled, event, key=_number) - 1)]
            if filled[0].number < event:
                self._old_hits[block] = filled[0].number, self.num_hits(block, filled[0], event)
        for hits in self._hits.values():
            del hits[: bisect_left(hits, event)]
        kept = {id(last.node) for filled in self._filled.values() for last in filled}
        self._nodes = {hash_: node for hash_, node in self._nodes.items() if id(node) in kept}
        self._node_of = {holds: node for holds, node in self._node_of.items() if id(node) in kept}
        self._num_filled, self._num_hits = (sum(map(len, kept.values())) for kept in (self._filled, self._hits))
        self._prune_at = max(FIRST_PRUNING, 2 * (self._num_filled + self._num_hits))


_known: WeakKeyDictionary[Recorder, Contents] = WeakKeyDictionary()
_knowing = threading.Lock()


def contents_of(recorder: Recorder) -> Contents:
    """The contents of one recorder's blocks, up to its newest record; they go when it does."""
    with _knowing:
        contents = _known.get(recorder)
        if contents is None:
            contents = _known[recorder] = Contents()
    contents.follow(recorder)
    return contents
