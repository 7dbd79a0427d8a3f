"""Records and plans in words: what a step did, and what the next one would do. Reads records only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nvexplore.engine.events import BlockEvents, Planned, Preempted, StepRecord
from nvexplore.explore.step_times import took
from nvexplore.notebook.requests import RequestLog
from nvexplore.notebook.summary import Summary, counted, listed

COLUMNS = ("request", "work", "positions", "new blocks", "sampled")
# What a waiting request lacks.
LACKS = {
    "token_budget": "the step's budget of {budget:,} tokens is used up",
    "max_num_seqs": "all {places:,} places for sequences are taken",
    "free_blocks": "it needs {needed} and {available:,} can be had",
}
BLOCK_WORDS = {
    "allocated": "allocated",
    "hit": "hit in the prefix cache",
    "evicted": "evicted from the prefix cache",
    "freed": "given back",  # which frees those that nobody else holds
    "hashed": "full and cached from now on",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class StepSummary(Summary):
    """One step; ``record`` is all that is known of it."""

    record: StepRecord


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanSummary(Summary):
    """What the next step would do; ``planned`` is the scheduler's own answer."""

    planned: Planned


def describe_step(record: StepRecord, log: RequestLog) -> StepSummary:
    """What one step did."""
    planned, committed = record.planned, record.committed
    if record.is_empty:
        notes = _waiting(planned, log) or ["the engine is idle: all requests are finished"]
        return StepSummary(headline=f"step {record.step}: nothing to run", notes=tuple(notes), record=record)
    tokens = zip(committed.seq_id, committed.token_id, strict=True)
    sampled = {seq_id: _token(log, token_id) for seq_id, token_id in tokens}
    free = f"{planned.num_free_blocks:,} of {log.num_blocks:,} were free while it ran"
    known = f", as far as was known while step {record.step - 1} ran" if planned.is_ahead else ""
    notes = _notes(planned, log, f"blocks: {_blocks(planned.blocks, committed.blocks)}; {free}", known)
    ends = zip(committed.finished_seq_id, committed.finish_reason, strict=True)
    notes += [f"finished: {log.name(seq_id)} ({reason})" for seq_id, reason in ends]
    return StepSummary(
        headline=f"step {record.step}: {_work(planned)}; {_budget(planned)}; {_time(record)}",
        columns=COLUMNS,
        rows=_rows(planned, log, sampled),
        notes=tuple(notes),
        record=record,
    )


def describe_plan(planned: Planned, log: RequestLog) -> PlanSummary:
    """What the next step would do, and who waits for what."""
    if not planned.seq_id:
        notes = _waiting(planned, log) or ["the engine is idle: all requests are finished"]
        return PlanSummary(headline="the next step would run nothing", notes=tuple(notes), planned=planned)
    free = f"{planned.num_free_blocks:,} of {log.num_blocks:,} would be left free"
    return PlanSummary(
        headline=f"the next step would run {_work(planned)}; {_budget(planned)}",
        columns=COLUMNS[:-1],
        rows=tuple(row[:-1] for row in _rows(planned, log, {})),
        notes=tuple(_notes(planned, log, f"blocks: {_blocks(planned.blocks)}; {free}")),
        planned=planned,
    )


def _work(planned: Planned) -> str:
    """``1 prefill chunk of 40 tokens and 3 decode rows``."""
    chunks = [count for count, prefill in zip(planned.count, planned.is_prefill, strict=True) if prefill]
    decodes = len(planned.count) - len(chunks)
    parts = []
    if chunks:
        parts.append(f"{counted(len(chunks), 'prefill chunk')} of {listed(list(map(str, chunks)))} tokens")
    if decodes:
        parts.append(counted(decodes, "decode row"))
    return listed(parts)


def _budget(planned: Planned) -> str:
    return f"{sum(planned.count):,} of at most {planned.max_num_batched_tokens:,} tokens"


def _time(record: StepRecord) -> str:
    """``2.1 ms``; of a step planned ahead with what that is, since the one before was running for part of it."""
    milliseconds = f"{took(record) * 1e3:.1f} ms"
    if not record.planned.is_ahead:
        return milliseconds
    return f"{milliseconds} from plan to end, overlapping step {record.step - 1}"


def _rows(planned: Planned, log: RequestLog, sampled: dict[int, str]) -> tuple[tuple[str, ...], ...]:
    blocks = zip(planned.blocks.kind, planned.blocks.seq_id, strict=True)
    grown = Counter(seq_id for kind, seq_id in blocks if kind == "allocated")
    cached = dict(zip(planned.admitted.seq_id, planned.admitted.num_cached_tokens, strict=True))
    rows = []
    for row, seq_id in enumerate(planned.seq_id):
        work = "decode"
        if planned.is_prefill[row]:
            work = "prefill, last chunk" if planned.samples[row] else "prefill chunk"
        positions = _range(planned.start[row], planned.context_len[row])
        if cached.get(seq_id):
            positions += f" ({_range(0, cached[seq_id])} cached)"
        rows.append((log.name(seq_id), work, positions, str(grown[seq_id]), sampled.get(seq_id, "")))
    return tuple(rows)


def _token(log: RequestLog, token_id: int) -> str:
    text = log.text([token_id])
    return repr(text) if text else f"token {token_id}"  # a special one, such as the end of the text


def _range(start: int, end: int) -> str:
    return str(start) if end == start + 1 else f"{start} to {end - 1}"


def _notes(planned: Planned, log: RequestLog, blocks: str, known: str = "") -> list[str]:
    return [blocks, *_preempted(planned.preempted, log), *_waiting(planned, log, known)]


def _blocks(*columns: BlockEvents) -> str:
    kinds = Counter(kind for events in columns for kind in events.kind)
    return ", ".join(f"{kinds[kind]} {text}" for kind, text in BLOCK_WORDS.items() if kinds[kind]) or "no change"


def _preempted(preempted: Preempted, log: RequestLog) -> list[str]:
    return [
        f"preempted: {log.name(victim)} loses the KV of {counted(lost, 'token')}"
        + (f", since {log.name(cause)} needs a block" if cause >= 0 else "")
        for victim, cause, lost in zip(preempted.seq_id, preempted.cause, preempted.num_lost, strict=True)
    ]


def _waiting(planned: Planned, log: RequestLog, known: str = "") -> list[str]:
    """Who waits for what. known: how far the plan could know it, where that is to be said."""
    waiting = planned.waiting
    lines = []
    reserves = waiting.reserve or [0] * len(waiting.seq_id)  # of a record from before they were told
    columns = zip(waiting.seq_id, waiting.reason, waiting.needed, waiting.available, reserves, strict=True)
    for seq_id, reason, needed, available, reserve in columns:
        needs = counted(needed - reserve, "block") + (f", beside {reserve:,} kept free for others," if reserve else "")
        lacks = LACKS.get(reason, reason + ": {needed} needed, {available:,} there").format(
            needed=needs, available=available, budget=planned.max_num_batched_tokens, places=log.max_num_seqs
        )
        lines.append(f"waiting: {log.name(seq_id)}, since {lacks}{known}")
    if waiting.num_not_examined:
        noun = "more request" if lines else "request"
        lines.append(f"waiting{' behind that' if lines else ''}: {counted(waiting.num_not_examined, noun)}")
    return lines
