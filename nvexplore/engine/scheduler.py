"""Decides what the next step runs: who is admitted, how many tokens each runs, who gives way. Computes nothing.

Policy ``prefill_first`` (nano-vLLM's): while prompt tokens can run they do, first come first served and in chunks
that fill the token budget; only a step without prefill decodes. A decoding sequence that needs a block when none
is free preempts the sequence admitted last, which is computed again later from its tokens: its output is the same.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from nvexplore.engine.batch import Blocked, ScheduledBatch
from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.event_log import EventLog
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.sequence import Sequence, SequenceStatus
from nvexplore.engine.undo import UndoLog


class Scheduler:
    """The waiting queue and the running list. ``schedule`` and ``commit`` log how to undo what they do.

    running: resident sequences, oldest admission first; waiting: next to be admitted first, preempted ones at the
    head. Strictly first come, first served: a head of line that does not fit makes those behind it wait.
    """

    def __init__(
        self,
        limits: EngineLimits,
        blocks: BlockManager,
        undo: UndoLog,
        log: EventLog,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self.eos_token_ids = eos_token_ids
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._undo = undo
        self._log = log

    def schedule(self) -> ScheduledBatch:
        """The next step's batch; empty exactly when nothing waits and nothing runs."""
        self.blocks.start_step()
        batch = ScheduledBatch()
        self._prefill(batch)
        if not batch.seqs:
            self._decode(batch)
        if batch.seqs:
            self._log.note("scheduled")
        return batch

    def _prefill(self, batch: ScheduledBatch) -> None:
        budget = self.limits.max_num_batched_tokens
        for seq in self.running:
            if seq.status is SequenceStatus.PREFILL and budget:
                budget -= self._chunk(batch, seq, budget)
        while self.waiting:
            seq = self.waiting[0]
            blocked = self._admit(seq, budget)
            if blocked is not None:
                batch.blocked.append(blocked)
                return
            budget -= self._chunk(batch, seq, budget)

    def _chunk(self, batch: ScheduledBatch, seq: Sequence, budget: int) -> int:
        count = min(seq.num_tokens - seq.num_computed_tokens, budget)
        batch.add(seq, count, is_prefill=True)
        return count

    def _admit(self, seq: Sequence, budget: int) -> Blocked | None:
        """Admit the head of the queue, or say what it lacks."""
        if len(self.running) >= self.limits.max_num_seqs:
            return Blocked(seq.seq_id, "max_num_seqs", 1, 0)
        if budget == 0:
            return Blocked(seq.seq_id, "token_budget", 1, 0)
        hits = self.blocks.find_prefix(seq)
        needed, available = self.blocks.shortage(seq, hits)
        if needed > available:
            return Blocked(seq.seq_id, "free_blocks", needed, available)
        undo, waiting = self._undo, self.waiting
        # The tail may have grown by the time of the undo, but the head cannot have: nothing else pops it.
        undo.call(partial(_restore_head, waiting, seq))
        waiting.popleft()
        undo.attr(seq, "status")
        seq.status = SequenceStatus.PREFILL
        undo.length(self.running)
        self.running.append(seq)
        self._log.note("admitted", seq.seq_id, len(hits) * self.blocks.block_size)
        self.blocks.admit(seq, hits)
        return None

    def _decode(self, batch: ScheduledBatch) -> None:
        running, blocks, size = self.running, self.blocks, self.blocks.block_size
        row = 0
        # By index: a preemption shortens the list at its tail, never before ``row``.
        while row < len(running) and row < self.limits.max_num_batched_tokens:
            seq = running[row]
            num_tokens = len(seq.token_ids)
            if num_tokens > len(seq.block_table) * size:
                while not len(blocks.free):
                    victim = running[-1]
                    self.preempt(victim, cause=seq.seq_id)
                    if victim is seq:  # admitted last, it gives way to the older ones
                        break
                else:
                    blocks.grow(seq, num_tokens)
            row += 1
        batch.add_decodes(running[:row])

    def preempt(self, seq: Sequence, cause: int) -> None:
        """Send a resident sequence back to the head of the queue; its tokens will be computed again."""
        undo = self._undo
        num_lost = seq.num_computed_tokens
        self.blocks.release(seq)
        for name in ("num_computed_tokens", "num_cached_tokens", "num_preemptions", "status"):
            undo.attr(seq, name)
        seq.num_computed_tokens = seq.num_cached_tokens = 0
        seq.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        self._leave(seq)
        undo.call(partial(_drop_head, self.waiting, seq))
        self.waiting.appendleft(seq)
        self._log.note("preempted", seq.seq_id, cause, num_lost)

    def commit(self, batch: ScheduledBatch, token_ids: list[int]) -> tuple[list[int], list[Sequence]]:
        """Mark the batch as computed and append the sampled ids, one a sampling row.

        Returns the seq_ids that got a token, in row order, and the sequences that finished.
        """
        self._undo.call(partial(_uncommit, batch))
        self._log.note("committed")
        sampled: list[int] = []
        finished: list[Sequence] = []
        size, eos, decode = self.blocks.block_size, self.eos_token_ids, SequenceStatus.DECODE
        ids = iter(token_ids)
        for seq, start, count, samples in zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True):
            end = seq.num_computed_tokens = start + count
            if samples:
                token_id = next(ids)
                seq.token_ids.append(token_id)
                sampled.append(seq.seq_id)
                seq.status = decode
            if end // size > len(seq.chain):
                self.blocks.register_written(seq)
            if samples:
                params = seq.sampling_params
                reason = None
                if token_id in eos and not params.ignore_eos:
                    reason = "stop"
                elif end + 1 - seq.num_prompt_tokens >= params.max_tokens:
                    reason = "length"
                if reason is not None:
                    self.finish(seq, reason)
                    finished.append(seq)
        return sampled, finished

    def finish(self, seq: Sequence, reason: str) -> None:
        """Take a sequence out of its queue for good and free its blocks."""
        undo = self._undo
        self.blocks.release(seq)
        if seq.status is SequenceStatus.WAITING:
            waiting = self.waiting
            undo.attr(self, "waiting")
            self.waiting = deque(s for s in waiting if s is not seq)
        else:
            self._leave(seq)
        undo.attr(seq, "status")
        undo.attr(seq, "finish_reason")
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        self._log.note("aborted" if reason == "abort" else "finished", seq.seq_id, reason)

    def _leave(self, seq: Sequence) -> None:
        """Take ``seq`` out of the running list, in place: a plan that walks it keeps walking the right one."""
        running = self.running
        if running[-1] is seq:
            self._undo.call(partial(_restore_tail, running, seq))
            running.pop()
            return
        self._undo.call(partial(running.__setitem__, slice(None), running[:]))
        running.remove(seq)


def _restore_head(queue: deque[Sequence], seq: Sequence) -> None:
    if not queue or queue[0] is not seq:
        queue.appendleft(seq)


def _drop_head(queue: deque[Sequence], seq: Sequence) -> None:
    if queue and queue[0] is seq:
        queue.popleft()


def _restore_tail(items: list[Sequence], seq: Sequence) -> None:
    if not items or items[-1] is not seq:
        items.append(seq)


def _uncommit(batch: ScheduledBatch) -> None:
    for seq, start, count, samples, is_prefill in zip(
        batch.seqs, batch.starts, batch.counts, batch.samples, batch.is_prefill, strict=True
    ):
        seq.num_computed_tokens = start
        if samples:  # the row ran up to the last token, so what stands behind it is the sampled one
            del seq.token_ids[start + count :]
        seq.status = SequenceStatus.PREFILL if is_prefill else SequenceStatus.DECODE
