"""What a step's sampled tokens do: each is appended to its sequence, and some end it. Schedules nothing.

A completion ends, by the first of these that holds,

1. "error":  no token could be chosen (the runner said -1); the sequence's blocks are not served to anybody else;
2. "stop":   the token is one of the sequence's ``stop_ids``, or completes a stop string;
3. "length": it has ``max_tokens`` tokens.

The first ``min_tokens`` tokens do not stop it.
"""

from __future__ import annotations

from collections.abc import Callable

from nvexplore.engine.batch import Sampled, ScheduledBatch
from nvexplore.engine.event_log import EventLog
from nvexplore.engine.output import check_sampled
from nvexplore.engine.scheduler import Scheduler
from nvexplore.engine.sequence import Sequence, SequenceStatus
from nvexplore.engine.undo import UndoLog

PREFILL, DECODE = SequenceStatus.PREFILL, SequenceStatus.DECODE

COMMITTED = ("committed",)
StopMatcher = Callable[[Sequence], str | None]
"""The engine knows no text: whoever does says which of ``sampling_params.stop`` the newest token has completed.

Called after each token of a sequence that has stop strings, from token ``min_tokens + 1`` on. The answer must follow
from the sequence's token ids alone: a step may be undone, and the same token be appended and asked about again.
"""


class Committer:
    """Appends and ends; every change is logged for undo before it is made."""

    def __init__(self, scheduler: Scheduler, undo: UndoLog, log: EventLog, stop_matcher: StopMatcher | None) -> None:
        self._scheduler = scheduler
        self._undo = undo
        self._log = log
        self.stop_matcher = stop_matcher

    def commit(self, batch: ScheduledBatch, result: list[int] | Sampled) -> tuple[list[int], list[int], list[Sequence]]:
        """Mark the batch as computed and append what the runner sampled.

        Returns the seq_ids that got a token, in row order, the tokens, and the sequences that finished.
        RuntimeError unless there is one token for each row that samples.
        """
        token_ids = check_sampled(result, batch)
        if not batch.seqs:
            return [], [], []
        self._undo.log((_uncommit, batch))
        if self._log.active:
            self._log.events.append(COMMITTED)
        if isinstance(result, Sampled):
            self._keep_logprobs(batch, result)
        finished: list[Sequence] = []
        if batch.num_decodes == len(batch.seqs) and min(token_ids) >= 0:  # nearly every step
            for seq, start, token_id in zip(batch.seqs, batch.starts, token_ids, strict=True):
                end = seq.num_computed_tokens = start + 1
                seq.token_ids.append(token_id)
                if (end >= seq.may_end_at or token_id in seq.stop_ids) and self._ends(seq, token_id, end):
                    finished.append(seq)
            return [seq.seq_id for seq in batch.seqs], token_ids, finished
        seq_ids: list[int] = []
        ids = iter(token_ids)
        for seq, start, count, samples in zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True):
            end = seq.num_computed_tokens = start + count
            if not samples:
                continue
            token_id = next(ids)
            if token_id < 0:
                self._fail(seq, end)
                finished.append(seq)
                continue
            seq.token_ids.append(token_id)
            seq_ids.append(seq.seq_id)
            seq.status = DECODE
            if (end >= seq.may_end_at or token_id in seq.stop_ids) and self._ends(seq, token_id, end):
                finished.append(seq)
        if len(seq_ids) < len(token_ids):
            token_ids = [token_id for token_id in token_ids if token_id >= 0]
        return seq_ids, token_ids, finished

    def land(self, batch: ScheduledBatch, result: list[int] | Sampled) -> tuple[list[int], list[int], list[Sequence]]:
        """``commit`` for a batch whose rows were marked as computed when it took off; the next may be in the air.

        A sequence that has ended and has a row in the next batch finishes when that lands, and the token of that row,
        which continues what has ended, is dropped.
        """
        token_ids = check_sampled(result, batch)
        blocks, size = self._scheduler.blocks, self._scheduler.limits.block_size
        self._undo.log((_take_back, batch))
        if self._log.active:
            self._log.events.append(COMMITTED)
        seq_ids: list[int] = []
        kept: list[int] = []
        finished: list[Sequence] = []
        ids = iter(token_ids)
        for seq, start, count, samples in zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True):
            if not samples:
                continue
            token_id, end = next(ids), start + count
            if end > seq.ends_at:
                self._scheduler.finish(seq, reason_of_ending(seq))
                finished.append(seq)
                continue
            if end // size > len(seq.chain):
                # Its last token was not known when the batch was planned. What a plan made ahead has registered since
                # then stays: records tell that plan after this commit.
                blocks.register_written(seq, end, replaces=False)
            if token_id < 0:
                is_finished = self._fail(seq, end)
            else:
                seq.token_ids.append(token_id)
                seq_ids.append(seq.seq_id)
                kept.append(token_id)
                may_end = end >= seq.may_end_at or token_id in seq.stop_ids
                is_finished = may_end and self._ends(seq, token_id, end)
            if is_finished:
                finished.append(seq)
        return seq_ids, kept, finished

    def _ends(self, seq: Sequence, token_id: int, end: int) -> bool:
        """Finish ``seq`` if its newest token, at position ``end``, ends it; False while it does not leave."""
        params = seq.sampling_params
        stop_reason: int | str | None = None
        if seq.num_completion_tokens > params.min_tokens:
            if token_id in seq.stop_ids:
                stop_reason = token_id
            elif params.stop:
                assert self.stop_matcher is not None  # or the request would have been refused
                stop_reason = self.stop_matcher(seq)
        if stop_reason is not None:
            self._undo.attr(seq, "stop_reason")
            seq.stop_reason = stop_reason
            return self._leave(seq, "stop", end)
        if seq.num_completion_tokens >= params.max_tokens:
            return self._leave(seq, "length", end)
        return False

    def _leave(self, seq: Sequence, reason: str, end: int) -> bool:
        """Finish ``seq``, which has ended; False if it has a row in the air and must wait for that to land."""
        if seq.num_computed_tokens > end:
            self._undo.attr(seq, "ends_at")
            seq.ends_at = end
            return False
        self._scheduler.finish(seq, reason)
        return True

    def _fail(self, seq: Sequence, position: int) -> bool:
        self._undo.attr(seq, "error")
        seq.error = (
            f"request {seq.request_id!r}: no token can be chosen for position {position}, "
            "since its logits are NaN or infinite"
        )
        # What made them so may lie in the blocks: whoever had the same prefix would fail too, and so would a retry.
        for block in seq.block_table:
            self._scheduler.blocks.evict(block)
        return self._leave(seq, "error", position)

    def _keep_logprobs(self, batch: ScheduledBatch, sampled: Sampled) -> None:
        for row, logprobs in sampled.logprobs.items():
            kept = batch.seqs[row].logprobs
            assert kept is not None  # a runner tells those who ask
            self._undo.length(kept)
            kept.append(logprobs)
        for row, several in sampled.prompt_logprobs.items():
            prompt = batch.seqs[row].prompt_logprobs
            assert prompt is not None
            self._undo.length(prompt)
            prompt.extend(several)


def reason_of_ending(seq: Sequence) -> str:
    """Why a sequence has ended that has not left yet: never "length", which is known before."""
    return "stop" if seq.error is None else "error"


def _take_back(batch: ScheduledBatch) -> None:
    """Undo ``land``: the sampled tokens. One that has ended before has none behind its last row."""
    for seq, start, count, samples in zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True):
        if samples:
            del seq.token_ids[start + count :]


def _uncommit(batch: ScheduledBatch) -> None:
    for seq, start, count, samples, is_prefill in zip(
        batch.seqs, batch.starts, batch.counts, batch.samples, batch.is_prefill, strict=True
    ):
        seq.num_computed_tokens = start
        if samples:  # the row ran up to the last token, so what stands behind it is the sampled one
            del seq.token_ids[start + count :]
        seq.status = PREFILL if is_prefill else DECODE
