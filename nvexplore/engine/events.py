"""The records: what one step did, in columns, and the full state a reader starts from.

Every event carries a running number. A reader that holds a Snapshot and applies the events whose number is at
least ``snapshot.event``, in number order, has the engine's state exactly (``nvexplore.explore.state`` does that).
A record is built from what the host knew; nothing here is read from a device, and nothing here decides.
``None`` means "cannot be known here"; an empty column means "nothing happened".
"""

from __future__ import annotations

from typing import Any

import msgspec

RECORD_VERSION = 1


class BlockEvents(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happened to physical blocks, one row an event.

    kind: "allocated" (left the free list, appended to the sequence's block table),
          "hit"       (cached block appended to the table; leaves the free list if nobody held it),
          "freed"     (the last entry leaves the sequence's table; at ref count 0 it joins the free list's tail),
          "evicted"   (its cached content was forgotten; seq_id -1),
          "hashed"    (full and written: it can be hit from now on; hash is set).
    """

    number: list[int] = []
    kind: list[str] = []
    block_id: list[int] = []
    seq_id: list[int] = []
    hash: list[int | None] = []


class Added(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Requests that joined the waiting queue at ``position``. arrival: seconds since the engine started."""

    number: list[int] = []
    seq_id: list[int] = []
    request_id: list[str] = []
    arrival: list[float] = []
    token_ids: list[list[int]] = []
    priority: list[int] = []
    position: list[int] = []
    sampling_params: list[dict[str, Any]] = []


class Preempted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sequences sent back to the waiting queue, to ``position``; their blocks are freed by block events before it.

    cause:      the sequence that needed the block; -1 when a failed step had overwritten the victim's blocks.
    num_lost:   computed tokens that must be computed again.
    """

    number: list[int] = []
    seq_id: list[int] = []
    cause: list[int] = []
    num_lost: list[int] = []
    position: list[int] = []


class Before(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happened since the last plan."""

    added: Added
    aborted_number: list[int] = []
    aborted_seq_id: list[int] = []
    cache_reset_number: list[int] = []
    blocks: BlockEvents
    preempted: Preempted


class Admitted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sequences that left the waiting queue for the tail of the running list, and why the cache gave no more.

    miss_cause, miss_position, miss_block_id, miss_step: see ``nvexplore.engine.miss.Miss``.
    """

    number: list[int] = []
    seq_id: list[int] = []
    num_cached_tokens: list[int] = []
    miss_cause: list[str] = []
    miss_position: list[int | None] = []
    miss_block_id: list[int | None] = []
    miss_step: list[int | None] = []


class SlotSpans(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where the step writes KV: ``length`` slots of block ``block_id`` from ``offset`` on, for batch row ``row``.

    slot = block_id * block_size + offset; spans stand in slot_mapping order.
    """

    row: list[int] = []
    block_id: list[int] = []
    offset: list[int] = []
    length: list[int] = []


class Waiting(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why the requests the scheduler looked at still wait (see ``Blocked``), in the order of its search.

    num_passed[i]:          how often requests behind it in a search were admitted past it, this step included.
    num_admitted_before[i]: so many of ``Admitted`` were admitted before it was looked at, the others after.
    search_end:     "token_budget" or "max_num_seqs" (as the last row's reason), "lookahead" or "max_passed" (why that
                    is not passed over), "order" (the policy named nobody else); None also where there was no search.
    is_queue_order: the policy's order is the queue's own. Older records have None in these, and empty columns.
    """

    seq_id: list[int] = []
    reason: list[str] = []
    needed: list[int] = []
    available: list[int] = []
    num_not_examined: int = 0
    reserve: list[int] = []
    num_passed: list[int] = []
    num_admitted_before: list[int] = []
    search_end: str | None = None
    is_queue_order: bool | None = None
    decodes_first: bool | None = None


class Planned(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the scheduler decided. Row i of the batch:

    start[i]:             position of its first token this step (tokens whose KV was present).
    count[i]:             tokens it runs; context_len[i] = start + count.
    num_cached_tokens[i]: of its tokens, how many came from the prefix cache at admission.
    is_prefill[i], samples[i]: prefill chunk or decode; whether a token is sampled (last chunk, or decode).
    is_ahead:             planned while the step before was being computed: what that freed did not count yet.
    sync_reason:          why not, in a run whose steps overlap; None also where nothing came before.
    The growth of block tables is the "allocated" and "hit" block events. num_free_blocks, num_running and
    num_waiting are counted after the plan, and where it was made ahead after the commit of the step before: so it was
    while the step ran. What the plan itself knew is in ``waiting``.
    """

    number: int | None
    seq_id: list[int]
    start: list[int]
    count: list[int]
    num_cached_tokens: list[int]
    is_prefill: list[bool]
    samples: list[bool]
    context_len: list[int]
    spans: SlotSpans
    blocks: BlockEvents
    admitted: Admitted
    preempted: Preempted
    waiting: Waiting
    max_num_batched_tokens: int
    num_free_blocks: int
    num_running: int
    num_waiting: int
    graph_size: int | None = None
    padding: int | None = None
    eager_reason: str | None = None
    prefill_backend: str | None = None
    decode_backend: str | None = None
    is_ahead: bool = False
    sync_reason: str | None = None


class Committed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the step produced. ``number`` is the event that marks the planned tokens as computed and appends
    ``token_id[i]`` to ``seq_id[i]``; blocks hashed, freed and requests finished follow it.

    Host times in nanoseconds: plan (scheduling), run (from the plan to the tokens), commit; of a step that overlaps
    with others, run_ns has their host times in it too. device_ns: the device's own time for the step, where it has a
    clock.
    """

    number: int | None
    seq_id: list[int]
    token_id: list[int]
    blocks: BlockEvents
    finished_number: list[int] = []
    finished_seq_id: list[int] = []
    finish_reason: list[str] = []
    plan_ns: int = 0
    run_ns: int = 0
    commit_ns: int = 0
    device_ns: int | None = None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="step"):
    """One step. time: seconds since the engine started, at commit. event: number of the next event after it."""

    version: int = RECORD_VERSION
    step: int
    time: float
    event: int
    before: Before
    planned: Planned
    committed: Committed

    @property
    def is_empty(self) -> bool:
        """Nothing was scheduled (an idle step)."""
        return not self.planned.seq_id


class SequenceColumns(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The live sequences of a snapshot, one row each, by seq_id."""

    seq_id: list[int]
    request_id: list[str]
    arrival: list[float]
    priority: list[int]
    status: list[str]
    num_prompt_tokens: list[int]
    num_cached_tokens: list[int]
    num_computed_tokens: list[int]
    num_preemptions: list[int]
    token_ids: list[list[int]]
    block_table: list[list[int]]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="snapshot"):
    """The whole state between two steps.

    step, event: numbers the next step and the next event will carry.
    num_untold: of the events before ``event`` the last so many are in no record yet: the next one tells them too.
    waiting, running: seq_ids in queue order. free: block ids, the next one to be allocated first.
    ref_count[b], hash[b]: of block b; hash None means that it cannot be hit.
    """

    version: int = RECORD_VERSION
    step: int
    event: int
    time: float
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    waiting: list[int]
    running: list[int]
    sequences: SequenceColumns
    ref_count: list[int]
    hash: list[int | None]
    free: list[int]
    num_untold: int = 0

    @property
    def told(self) -> int:
        """Number of the first event that no record has told. What a failed landing gave up counts as told."""
        return self.event - self.num_untold

    def same_state(self, other: Snapshot) -> bool:
        """Equal in everything but the clock."""
        return msgspec.structs.replace(self, time=0.0) == msgspec.structs.replace(other, time=0.0)
