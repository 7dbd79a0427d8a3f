"""What one record says of its step, by the names that these numbers have in the frame of steps. Needs no pandas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvexplore.engine.events import StepRecord


def _num_decode_tokens(record: StepRecord) -> int:
    columns = zip(record.planned.count, record.planned.is_prefill, strict=True)
    return sum(count for count, is_prefill in columns if not is_prefill)


def _num_prefill_tokens(record: StepRecord) -> int:
    return sum(record.planned.count) - _num_decode_tokens(record)


def _num_of(kind: str) -> Callable[[StepRecord], int]:
    """How many block events of a kind the record has."""

    def count(record: StepRecord) -> int:
        parts = (record.before.blocks, record.planned.blocks, record.committed.blocks)
        return sum(part.kind.count(kind) for part in parts)

    return count


def _num_preempted(record: StepRecord) -> int:
    return len(record.before.preempted.seq_id) + len(record.planned.preempted.seq_id)


def _waiting_reason(record: StepRecord) -> str | None:
    reasons = record.planned.waiting.reason
    return reasons[0] if reasons else None


NUMBERS: Mapping[str, Callable[[StepRecord], Any]] = {
    "step": lambda record: record.step,
    "time_s": lambda record: record.time,
    "num_seqs": lambda record: len(record.planned.seq_id),
    "num_prefill_tokens": _num_prefill_tokens,
    "num_decode_tokens": _num_decode_tokens,
    "budget": lambda record: record.planned.max_num_batched_tokens,
    "budget_used": lambda record: sum(record.planned.count),
    "num_sampled_tokens": lambda record: len(record.committed.token_id),
    "num_waiting": lambda record: record.planned.num_waiting,
    "num_running": lambda record: record.planned.num_running,
    "num_free_blocks": lambda record: record.planned.num_free_blocks,
    "num_allocated": _num_of("allocated"),
    "num_hit_blocks": _num_of("hit"),
    "num_evicted": _num_of("evicted"),
    "num_added": lambda record: len(record.before.added.number),
    "num_admitted": lambda record: len(record.planned.admitted.number),
    "num_preempted": _num_preempted,
    "num_finished": lambda record: len(record.committed.finished_number),
    "num_aborted": lambda record: len(record.before.aborted_number),
    "plan_us": lambda record: record.committed.plan_ns / 1e3,
    "run_us": lambda record: record.committed.run_ns / 1e3,
    "commit_us": lambda record: record.committed.commit_ns / 1e3,
    "graph_size": lambda record: record.planned.graph_size,
    "padding": lambda record: record.planned.padding,
    "eager_reason": lambda record: record.planned.eager_reason,
    "prefill_backend": lambda record: record.planned.prefill_backend,
    "decode_backend": lambda record: record.planned.decode_backend,
    "waiting_reason": _waiting_reason,
}
"""Column of ``nvexplore.explore.frames.STEPS`` -> its value; those that need more than the record are left out."""
