"""A run of nine steps written down by hand, so that what is read from its records can be checked by hand.

Blocks of 4 tokens, a pool of 5, a budget of 8. Step k is committed at k + 1 seconds; its plan and its commit took
10 ms each, its run 10 ms a token.

  step  what happens
  0     a (6 tokens) runs whole, b (6 tokens, the same first 4) its first 2
  1     b runs the other 4 while a idles; c arrives and waits for blocks
  2, 3  a and b decode; c is aborted before step 3
  4     a takes the last block, b is preempted for lack of one; a finishes
  5     the cache was reset; b is admitted again and computes 8 tokens again
  6     b's last token, and b finishes
  7     d and e arrive and both hit b's first block
  8     f arrives, evicts a cached block and runs; d and e idle
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvexplore.engine.events import (
    Added,
    Admitted,
    Before,
    BlockEvents,
    Committed,
    Planned,
    Preempted,
    SequenceColumns,
    SlotSpans,
    Snapshot,
    StepRecord,
    Waiting,
)

BLOCK_SIZE, NUM_BLOCKS, BUDGET = 4, 5, 8
LAST = 99  # a position behind all that wait
A, B, C, D, E, F = range(6)
Row = tuple[int, int, int, bool, bool]
Events = Sequence[tuple[Any, ...]]


def snapshot() -> Snapshot:
    """The empty engine before step 0."""
    none = SequenceColumns(**{name: [] for name in SequenceColumns.__struct_fields__})
    return Snapshot(
        step=0,
        event=0,
        time=0.0,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=4,
        max_num_batched_tokens=BUDGET,
        waiting=[],
        running=[],
        sequences=none,
        ref_count=[0] * NUM_BLOCKS,
        hash=[None] * NUM_BLOCKS,
        free=list(range(NUM_BLOCKS)),
    )


class Writer:
    """Numbers the events and puts them into records. An event is a tuple of its kind and its columns."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self._event = 0

    def step(
        self,
        *,
        added: Events = (),
        before: Events = (),
        plan: Events = (),
        rows: list[Row],
        spans: list[tuple[int, int, int, int]],
        sampled: list[tuple[int, int]],
        commit: Events = (),
        free: int,
        running: int,
        waiting: Waiting | None = None,
    ) -> None:
        """Add a record. rows: (seq_id, start, count, is_prefill, samples). spans: SlotSpans' columns."""
        step, still = len(self.records), waiting or Waiting()
        told = self._numbered([*(("added", *row) for row in added), *before])
        planned = self._numbered([*plan, ("scheduled",)])
        committed = self._numbered([("committed",), *commit])
        seq_id, start, count, is_prefill, samples = map(list, zip(*rows, strict=True))
        record = StepRecord(
            step=step,
            time=step + 1.0,
            event=self._event,
            before=Before(
                added=Added(
                    **named(told, "added", "seq_id request_id arrival token_ids"),
                    priority=[0] * len(added),
                    position=[LAST] * len(added),
                    sampling_params=[{}] * len(added),
                ),
                aborted_number=named(told, "aborted", "seq_id")["number"],
                aborted_seq_id=named(told, "aborted", "seq_id")["seq_id"],
                cache_reset_number=named(told, "cache_reset", "")["number"],
                blocks=block_events(told),
                preempted=Preempted(**named(told, "preempted", "seq_id cause num_lost position")),
            ),
            planned=Planned(
                number=named(planned, "scheduled", "")["number"][0],
                seq_id=seq_id,
                start=start,
                count=count,
                num_cached_tokens=[0] * len(rows),
                is_prefill=is_prefill,
                samples=samples,
                context_len=[row[1] + row[2] for row in rows],
                spans=SlotSpans(
                    **named([(0, "span", *span) for span in spans], "span", "row block_id offset length", number=False)
                ),
                blocks=block_events(planned),
                admitted=Admitted(**named(planned, "admitted", "seq_id num_cached_tokens")),
                preempted=Preempted(**named(planned, "preempted", "seq_id cause num_lost position")),
                waiting=still,
                max_num_batched_tokens=BUDGET,
                num_free_blocks=free,
                num_running=running,
                num_waiting=len(still.seq_id) + still.num_not_examined,
                eager_reason="by hand",
                prefill_backend="pen",
                decode_backend="paper",
            ),
            committed=Committed(
                number=named(committed, "committed", "")["number"][0],
                seq_id=[seq for seq, _ in sampled],
                token_id=[token for _, token in sampled],
                blocks=block_events(committed),
                finished_number=named(committed, "finished", "seq_id reason")["number"],
                finished_seq_id=named(committed, "finished", "seq_id reason")["seq_id"],
                finish_reason=named(committed, "finished", "seq_id reason")["reason"],
                plan_ns=10_000_000,
                run_ns=10_000_000 * sum(count),
                commit_ns=10_000_000,
            ),
        )
        self.records.append(record)

    def _numbered(self, events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        first = self._event
        self._event += len(events)
        return [(number, *event) for number, event in enumerate(events, first)]


def named(events: list[tuple[Any, ...]], kind: str, names: str, *, number: bool = True) -> dict[str, list[Any]]:
    """The columns of the events of one kind."""
    rows = [(event[0], *event[2:]) for event in events if event[1] == kind]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(["number", *names.split()])}
    return columns if number else {name: column for name, column in columns.items() if name != "number"}


def block_events(events: list[tuple[Any, ...]]) -> BlockEvents:
    rows = [event for event in events if event[1] in ("allocated", "hit", "freed", "evicted", "hashed")]
    return BlockEvents(
        **{name: [row[i] for row in rows] for i, name in enumerate(("number", "kind", "block_id", "seq_id", "hash"))}
    )


def took(kind: str, seq_id: int, *blocks: int) -> list[tuple[Any, ...]]:
    """Block events of one sequence."""
    return [(kind, block, seq_id, None) for block in blocks]


def records() -> list[StepRecord]:
    """The nine records."""
    w = Writer()
    w.step(
        added=[(A, "a", 0.25, [1, 2, 3, 4, 5, 6]), (B, "b", 0.5, [1, 2, 3, 4, 9, 9])],
        plan=[("admitted", A, 0), *took("allocated", A, 0, 1), ("admitted", B, 0), *took("allocated", B, 2, 3)],
        rows=[(A, 0, 6, True, True), (B, 0, 2, True, False)],
        spans=[(0, 0, 0, 4), (0, 1, 0, 2), (1, 2, 0, 2)],
        sampled=[(A, 11)],
        commit=[("hashed", 0, A, 0xA0)],
        free=1,
        running=2,
    )
    w.step(
        added=[(C, "c", 1.5, list(range(100, 112)))],
        rows=[(B, 2, 4, True, True)],
        spans=[(0, 2, 2, 2), (0, 3, 0, 2)],
        sampled=[(B, 21)],
        free=1,
        running=2,
        waiting=Waiting(seq_id=[C], reason=["free_blocks"], needed=[3], available=[1]),
    )
    w.step(
        rows=[(A, 6, 1, False, True), (B, 6, 1, False, True)],
        spans=[(0, 1, 2, 1), (1, 3, 2, 1)],
        sampled=[(A, 12), (B, 22)],
        free=1,
        running=2,
        waiting=Waiting(num_not_examined=1),
    )
    w.step(
        before=[("aborted", C)],
        rows=[(A, 7, 1, False, True), (B, 7, 1, False, True)],
        spans=[(0, 1, 3, 1), (1, 3, 3, 1)],
        sampled=[(A, 13), (B, 23)],
        commit=[("hashed", 1, A, 0xA1), ("hashed", 3, B, 0xB1)],
        free=1,
        running=2,
    )
    w.step(
        plan=[*took("allocated", A, 4), *took("freed", B, 3, 2), ("preempted", B, B, 8, 0)],
        rows=[(A, 8, 1, False, True)],
        spans=[(0, 4, 0, 1)],
        sampled=[(A, 14)],
        commit=[*took("freed", A, 4, 1, 0), ("finished", A, "length")],
        free=2,
        running=1,
        waiting=Waiting(num_not_examined=1),
    )
    w.step(
        before=[("cache_reset",)],
        plan=[("admitted", B, 0), *took("allocated", B, 3, 2, 4)],
        rows=[(B, 0, 8, True, False)],
        spans=[(0, 3, 0, 4), (0, 2, 0, 4)],
        sampled=[],
        commit=[("hashed", 3, B, 0xA0), ("hashed", 2, B, 0xB1)],
        free=2,
        running=1,
    )
    w.step(
        rows=[(B, 8, 1, True, True)],
        spans=[(0, 4, 0, 1)],
        sampled=[(B, 24)],
        commit=[*took("freed", B, 4, 2, 3), ("finished", B, "stop")],
        free=2,
        running=1,
    )
    w.step(
        added=[(D, "d", 7.0, [1, 2, 3, 4, 7]), (E, "e", 7.5, [1, 2, 3, 4, 8, 8])],
        plan=[
            ("admitted", D, 4),
            *took("hit", D, 3),
            *took("allocated", D, 1),
            ("admitted", E, 4),
            *took("hit", E, 3),
            *took("allocated", E, 0),
        ],
        rows=[(D, 4, 1, True, True), (E, 4, 2, True, True)],
        spans=[(0, 1, 0, 1), (1, 0, 0, 2)],
        sampled=[(D, 31), (E, 32)],
        free=2,
        running=2,
    )
    w.step(
        added=[(F, "f", 8.5, list(range(50, 58)))],
        plan=[("admitted", F, 0), *took("allocated", F, 4), ("evicted", 2, -1, None), *took("allocated", F, 2)],
        rows=[(F, 0, 8, True, True)],
        spans=[(0, 4, 0, 4), (0, 2, 0, 4)],
        sampled=[(F, 41)],
        commit=[("hashed", 4, F, 0xF0), ("hashed", 2, F, 0xF1)],
        free=0,
        running=3,
    )
    return w.records


def items() -> list[Snapshot | StepRecord]:
    """The snapshot, then the records."""
    return [snapshot(), *records()]
