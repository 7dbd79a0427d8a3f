"""Decides what the next step runs: who is admitted, how many tokens each runs, who gives way. Computes nothing.

A ``Policy`` chooses the order; the rest is the same for all. Prompts run in chunks that fill the token budget. A
decoding sequence that needs a block when none is free preempts another, which is computed again later from its own
tokens: its output is the same.
"""

from __future__ import annotations

import sys
from itertools import islice

from nvexplore.engine.batch import Blocked, ScheduledBatch
from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.event_log import EventLog
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.miss import explain_miss
from nvexplore.engine.policy import Policy, check_counts
from nvexplore.engine.queues import Queues
from nvexplore.engine.sequence import Sequence, SequenceStatus
from nvexplore.engine.undo import UndoLog

SCHEDULED = ("scheduled",)
NO_BLOCKS_AHEAD = "blocks that the step before may free"
NEEDS_HOST = "penalties or log probabilities"
PREFILL, DECODE = SequenceStatus.PREFILL, SequenceStatus.DECODE


class NotAhead(Exception):
    """The next step can't be planned before the last one has been committed. reason: why not, for the record."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


class Scheduler:
    """Plans steps; every change of state is logged for undo before it is made."""

    def __init__(
        self, limits: EngineLimits, policy: Policy, blocks: BlockManager, undo: UndoLog, log: EventLog
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.blocks = blocks
        self.queues = Queues(undo)
        self.num_admitted = 0  # counts on when a step is undone: it only tells that something may have changed
        self._undo = undo
        self._log = log
        # Whether a resident sequence may have prompt tokens left to run. Wrongly True costs a look at all of them.
        self._has_prefills = False
        self._is_ahead = False

    def schedule(self, step: int, *, is_ahead: bool = False) -> ScheduledBatch:
        """The batch of step number ``step``; empty exactly when nothing waits and nothing runs.

        is_ahead: the step before has not been committed: sequences may lack its token, and those that it may end run
        nothing. NotAhead if somebody would have to give way; the caller undoes what was planned so far.
        """
        self._is_ahead = is_ahead
        self.blocks.start_step(step)
        batch = ScheduledBatch([], [], [], [], [], [])  # half the time of its default factories
        if self.policy.decodes_first:
            self._decode(batch)
            self._prefill(batch)
        else:
            self._prefill(batch)
            if not batch.seqs:
                self._decode(batch)
        if batch.seqs and self._log.active:
            self._log.events.append(SCHEDULED)
        return batch

    def _prefill(self, batch: ScheduledBatch) -> None:
        budget = self.limits.max_num_batched_tokens - len(batch.seqs)
        if self._has_prefills:
            unfinished = [seq for seq in self.queues.running if seq.status is PREFILL]
            for seq in unfinished:
                if budget:
                    budget -= self._chunk(batch, seq, budget)
            if not unfinished:
                self._undo.attr(self, "_has_prefills")
                self._has_prefills = False
        if self.queues.waiting:
            self._admit_waiting(batch, budget)

    def _admit_waiting(self, batch: ScheduledBatch, budget: int) -> None:
        """Admit requests in the policy's order, past at most ``lookahead`` that lack blocks."""
        policy = self.policy
        lookahead, max_passed = check_counts(policy)
        order = policy.admission_order(self.queues.view)
        try:
            reached = islice(order, min(lookahead + budget + 1, sys.maxsize))
        except TypeError as error:
            answer = f"{order!r} as admission_order, which is no iterable"
            raise RuntimeError(f"policy {policy.name!r} returned {answer}") from error
        passed: list[Sequence] = []
        num_rows = len(batch.seqs)
        # A copy of what can be reached in one step: admission takes requests out of the queue that is walked.
        for seq in list(reached):
            if seq not in self.queues.waiting:
                raise RuntimeError(f"policy {policy.name!r} named {seq!r} for admission, which does not wait")
            if seq in passed:
                raise RuntimeError(f"policy {policy.name!r} named {seq!r} for admission twice")
            why = self._admit(seq, budget, len(batch.seqs) - num_rows)
            if why is None:
                for other in passed:
                    self._undo.attr(other, "num_passed")
                    other.num_passed += 1
                budget -= self._chunk(batch, seq, budget)
                continue
            batch.blocked.append(why)
            if why.reason != "free_blocks":
                batch.search_end = why.reason
                return
            if seq.num_passed >= max_passed or len(passed) >= lookahead:
                batch.search_end = "max_passed" if seq.num_passed >= max_passed else "lookahead"
                return
            passed.append(seq)
        batch.search_end = "order"

    def _admit(self, seq: Sequence, budget: int, num_before: int) -> Blocked | None:
        """Admit a waiting request, or say what it lacks. num_before: how many were admitted before it in this step."""
        if len(self.queues.running) >= self.limits.max_num_seqs:
            return Blocked(seq.seq_id, "max_num_seqs", 1, 0, seq.num_passed, num_before)
        if budget == 0:
            return Blocked(seq.seq_id, "token_budget", 1, 0, seq.num_passed, num_before)
        hits = self.blocks.find_prefix(seq)
        needed, available = self.blocks.shortage(seq, hits)
        reserve = self._reserve(seq)
        needed += reserve
        if needed > available:
            return Blocked(seq.seq_id, "free_blocks", needed, available, seq.num_passed, num_before, reserve)
        self.queues.leave_waiting(seq)
        self._has_prefills = True
        self._undo.attr(seq, "status")
        seq.status = PREFILL
        self.num_admitted += 1
        if self._log.active:
            miss = explain_miss(seq, hits, self.blocks, self.queues.running)
            self._log.note("admitted", seq.seq_id, len(hits) * self.blocks.block_size, *miss)
        self.queues.enter_running(seq)
        self.blocks.admit(seq, hits)
        return None

    def _reserve(self, seq: Sequence) -> int:
        """Blocks that must stay free after ``seq`` is admitted: this bounds how often one is preempted.

        None for a new request. One for each resident sequence after the first preemption; after the second, all that
        ``seq`` and those before it may still need: then nothing but a later or more urgent one can lack a block.
        """
        if seq.num_preemptions == 0:
            return 0
        running = self.queues.running
        if seq.num_preemptions == 1:
            return len(running)
        return self.blocks.growth_left(seq, seq.num_tokens) + sum(
            self.blocks.growth_left(other, len(other.block_table) * self.limits.block_size) for other in running
        )

    def _chunk(self, batch: ScheduledBatch, seq: Sequence, budget: int) -> int:
        count = min(seq.num_tokens - seq.num_computed_tokens, budget)
        batch.add(seq, count, is_prefill=True)
        self.blocks.register_written(seq, seq.num_computed_tokens + count)
        return count

    def _decode(self, batch: ScheduledBatch) -> None:
        """Every decoding sequence runs its newest token, as far as the budget goes."""
        blocks, size, budget = self.blocks, self.limits.block_size, self.limits.max_num_batched_tokens
        rows = self.queues.running
        if self._has_prefills:
            rows = [seq for seq in rows if seq.status is DECODE]
        if self._is_ahead:
            rows = [seq for seq in rows if seq.num_computed_tokens < seq.ends_at]
        rows = rows[:budget]
        # Those whose newest token is the first or the last of a block need a block, or have one to register.
        due = [seq for seq in rows if (seq.num_computed_tokens + 1) % size < 2]
        num_free = len(blocks.free)
        if len(due) > num_free < sum(seq.num_computed_tokens == len(seq.block_table) * size for seq in due):
            if self._is_ahead:
                raise NotAhead(NO_BLOCKS_AHEAD)
            self._decode_tightly(batch)
            return
        for seq in due:
            num_tokens = seq.num_computed_tokens + 1
            if num_tokens > len(seq.block_table) * size:
                blocks.grow(seq, num_tokens)
            if len(seq.token_ids) >= num_tokens and num_tokens // size > len(seq.chain):
                blocks.register_written(seq, num_tokens)
        batch.add_decodes(rows)

    def _decode_tightly(self, batch: ScheduledBatch) -> None:
        """The same where there may be too few blocks: one after the other, since each may preempt others."""
        blocks, size, budget = self.blocks, self.limits.block_size, self.limits.max_num_batched_tokens
        rows: list[Sequence] = []
        for seq in self.queues.running[:]:
            if seq.status is not DECODE:  # a prefill, or just preempted
                continue
            if len(rows) == budget:
                break
            num_tokens = len(seq.token_ids)
            if num_tokens > len(seq.block_table) * size and not self._make_room(seq, rows):
                continue
            rows.append(seq)
            blocks.register_written(seq, num_tokens)
        batch.add_decodes(rows)

    def _make_room(self, seq: Sequence, scheduled: list[Sequence]) -> bool:
        """Get ``seq`` the block it needs, preempting whom the policy names; False if that is ``seq`` itself."""
        while not len(self.blocks.free):
            safe = {other.seq_id for other in scheduled}
            candidates = [other for other in self.queues.running if other.seq_id not in safe]
            victim = self.policy.victim(candidates[:], seq)
            if victim not in candidates:
                raise RuntimeError(f"policy {self.policy.name!r} named {victim!r} as victim, which is no candidate")
            self.preempt(victim, cause=seq.seq_id)
            if victim is seq:
                return False
        self.blocks.grow(seq, len(seq.token_ids))
        return True

    def preempt(self, seq: Sequence, cause: int) -> None:
        """Send a resident sequence back to the waiting queue; its tokens will be computed again."""
        undo = self._undo
        num_lost = seq.num_computed_tokens
        self.blocks.release(seq)
        undo.attrs(seq, "num_computed_tokens", "num_cached_tokens", "num_preemptions", "status")
        seq.num_computed_tokens = seq.num_cached_tokens = 0
        seq.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        self.queues.leave_running(seq)
        position = self.queues.requeue(seq)
        self._log.note("preempted", seq.seq_id, cause, num_lost, position)

    def finish(self, seq: Sequence, reason: str) -> None:
        """Take a sequence out of its queue for good and free its blocks."""
        undo = self._undo
        self.blocks.release(seq)
        if seq.status is SequenceStatus.WAITING:
            self.queues.leave_waiting(seq)
        else:
            self.queues.leave_running(seq)
        undo.attrs(seq, "status", "finish_reason")
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        self._log.note("aborted" if reason == "abort" else "finished", seq.seq_id, reason)
