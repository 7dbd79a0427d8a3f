"""The turns a request's life takes in a record, and a directory of requests that outlives them.

Reads records only. Knows neither blocks nor the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nvexplore.engine.events import Preempted, Snapshot, StepRecord


class Turn(NamedTuple):
    """One event in a request's life.

    kind:   "added", "admitted", "preempted", "aborted" or "finished".
    amount: prompt tokens (added), cached tokens (admitted), lost tokens (preempted), otherwise 0.
    """

    number: int
    kind: str
    seq_id: int
    amount: int


def turns(record: StepRecord, first_event: int = 0) -> list[Turn]:
    """The record's turns in event order, without those before event ``first_event``."""
    before, admitted, committed = record.before, record.planned.admitted, record.committed
    added = before.added
    found: list[Turn] = []
    for kind, numbers, seq_ids, amounts in (
        ("added", added.number, added.seq_id, [len(ids) for ids in added.token_ids]),
        ("aborted", before.aborted_number, before.aborted_seq_id, None),
        ("preempted", *_columns(before.preempted)),
        ("admitted", admitted.number, admitted.seq_id, admitted.num_cached_tokens),
        ("preempted", *_columns(record.planned.preempted)),
        ("finished", committed.finished_number, committed.finished_seq_id, None),
    ):
        if numbers:
            rows = zip(numbers, seq_ids, amounts or [0] * len(numbers), strict=True)
            found += [Turn(n, kind, s, a) for n, s, a in rows if n >= first_event]
    found.sort()
    return found


def _columns(preempted: Preempted) -> tuple[list[int], list[int], list[int]]:
    return preempted.number, preempted.seq_id, preempted.num_lost


def planned_time(record: StepRecord) -> float:
    """When the step's plan was ready, in seconds since the engine started."""
    return record.time - (record.committed.run_ns + record.committed.commit_ns) / 1e9


@dataclass(slots=True)
class RequestInfo:
    """What is known of a request, also after it has left. ``None``: not yet, or not while it was recorded.

    was_admitted, got_token: it has been admitted, and has its first token, recorded or not.
    Times are seconds since the engine started. admitted: when the plan of its first admission was ready;
    first_token, finish: when the step was committed; finish of an abort: when the next step began.
    finish_reason: "stop", "length", "abort", "error", or "unknown": in a gap of the records, before finish_step.
    """

    seq_id: int
    request_id: str
    num_prompt_tokens: int
    arrival: float
    was_admitted: bool = False
    got_token: bool = False
    admitted_step: int | None = None
    admitted_time: float | None = None
    first_token_step: int | None = None
    first_token_time: float | None = None
    finish_step: int | None = None
    finish_time: float | None = None
    finish_reason: str | None = None


class Beginning(NamedTuple):
    """When a request was first admitted and got its first token, as ``RequestInfo`` has it; no word that it says."""

    seq_id: int
    admitted_step: int | None
    admitted_time: float | None
    first_token_step: int | None
    first_token_time: float | None


class Directory(dict[int, RequestInfo]):
    """seq_id -> RequestInfo for the live requests and those that left during the kept steps.

    ``see`` may be told the same record twice: an interrupt may have hit the first time.
    """

    def start(self, snapshot: Snapshot) -> None:
        """Enter the snapshot's sequences; whoever is neither there nor known to have left did so unseen."""
        columns = snapshot.sequences
        live = set(columns.seq_id)
        for info in self.values():
            if info.finish_step is None and info.seq_id not in live:
                info.finish_step, info.finish_reason = snapshot.step, "unknown"
        for seq_id, request_id, num_prompt_tokens, arrival in zip(
            columns.seq_id, columns.request_id, columns.num_prompt_tokens, columns.arrival, strict=True
        ):
            self.setdefault(seq_id, RequestInfo(seq_id, request_id, num_prompt_tokens, arrival))
        # What came first then is past: the next admission that is seen follows a preemption, and so on.
        for seq_id, status, num_preemptions, token_ids in zip(
            columns.seq_id, columns.status, columns.num_preemptions, columns.token_ids, strict=True
        ):
            info = self[seq_id]
            info.was_admitted |= status != "waiting" or num_preemptions > 0
            info.got_token |= len(token_ids) > info.num_prompt_tokens

    def begun_before(self, step: int) -> list[Beginning]:
        """What is known of first admissions and first tokens from before ``step``."""
        found: list[Beginning] = []
        for info in self.values():
            admitted = (info.admitted_step, info.admitted_time)
            token = (info.first_token_step, info.first_token_time)
            is_before = [first is not None and first < step for first, _ in (admitted, token)]
            if any(is_before):
                unknown = (None, None)
                parts = [part if told else unknown for part, told in zip((admitted, token), is_before, strict=True)]
                found.append(Beginning(info.seq_id, *parts[0], *parts[1]))
        return found

    def recall(self, beginnings: Iterable[Beginning]) -> None:
        """Note what ``begun_before`` told; who is not in here is passed over."""
        for seq_id, admitted_step, admitted_time, first_token_step, first_token_time in beginnings:
            info = self.get(seq_id)
            if info is not None and admitted_step is not None:
                info.was_admitted, info.admitted_step, info.admitted_time = True, admitted_step, admitted_time
            if info is not None and first_token_step is not None:
                info.got_token, info.first_token_step, info.first_token_time = True, first_token_step, first_token_time

    def see(self, record: StepRecord, first_event: int = 0) -> None:
        """Note what the record says about its requests; what came before event ``first_event`` is known."""
        before, committed = record.before, record.committed
        added = before.added
        for number, seq_id, request_id, token_ids, arrival in zip(
            added.number, added.seq_id, added.request_id, added.token_ids, added.arrival, strict=True
        ):
            if number >= first_event:
                self.setdefault(seq_id, RequestInfo(seq_id, request_id, len(token_ids), arrival))
        for number, seq_id in zip(before.aborted_number, before.aborted_seq_id, strict=True):
            if number >= first_event:
                # The abort itself has no time; it was there when the step began.
                begin = planned_time(record) - committed.plan_ns / 1e9
                self._finish(seq_id, record.step, begin, "abort")
        for seq_id in record.planned.admitted.seq_id:
            info = self[seq_id]
            if not info.was_admitted:
                info.admitted_step, info.admitted_time = record.step, planned_time(record)
                info.was_admitted = True  # last: until then, doing it again does it all
        for seq_id in _ends_of_prefill(record):
            info = self[seq_id]
            if not info.got_token:
                info.first_token_step, info.first_token_time = record.step, record.time
                info.got_token = True
        for seq_id, reason in zip(committed.finished_seq_id, committed.finish_reason, strict=True):
            self._finish(seq_id, record.step, record.time, reason)

    def forget_before(self, step: int) -> None:
        """Drop the requests that left before ``step``, those among them that left unseen."""
        for info in list(self.values()):
            # Who left unseen did so before its finish_step.
            last = step if info.finish_reason == "unknown" else step - 1
            if info.finish_step is not None and info.finish_step <= last:
                del self[info.seq_id]

    def _finish(self, seq_id: int, step: int, time: float, reason: str) -> None:
        info = self[seq_id]
        info.finish_step, info.finish_time, info.finish_reason = step, time, reason


def _ends_of_prefill(record: StepRecord) -> Iterator[int]:
    """seq_ids whose prefill (or recompute) ended, that is, which got the token that follows it."""
    planned = record.planned
    if True not in planned.is_prefill:
        return
    got_one = set(record.committed.seq_id)  # all that sample, but for requests that ended in an error
    for seq_id, is_prefill, samples in zip(planned.seq_id, planned.is_prefill, planned.samples, strict=True):
        if is_prefill and samples and seq_id in got_one:
            yield seq_id
