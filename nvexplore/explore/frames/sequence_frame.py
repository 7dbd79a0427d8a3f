"""The frame of requests: when each waited, started, spoke and ended, and what it took."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.frames._table import Column, Table, flat
from nvexplore.explore.frames._walk import Lengths, Source, as_recorder
from nvexplore.explore.lifecycle import turns
from nvexplore.explore.step_times import own_run

SEQUENCES = Table(
    seq_id=Column("int64", "sequence"),
    request_id=Column("string", "its request"),
    status=Column("string", "now: waiting, prefill, decode or finished"),
    finish_reason=Column("string", "stop, length, abort or error; unknown if it left in a gap of the records"),
    arrival_s=Column("float64", "when it was added, seconds since the engine started (so are all times)"),
    admitted_s=Column("float64", "when the plan that first admitted it was ready"),
    first_token_s=Column("float64", "when the step that sampled its first token was committed"),
    finish_s=Column("float64", "when its last step was committed; of an abort, when the next step began"),
    admitted_step=Column("Int64", "step that first admitted it"),
    first_token_step=Column("Int64", "step that sampled its first token"),
    finish_step=Column("Int64", "step in which it left; of an abort, the next one"),
    queue_time_s=Column("float64", "admitted_s - arrival_s"),
    ttft_s=Column("float64", "time to first token: first_token_s - arrival_s"),
    inter_token_mean_s=Column("float64", "mean time between its tokens; steps of others and preemptions count"),
    inter_token_max_s=Column("float64", "the longest of these times"),
    latency_s=Column("float64", "finish_s - arrival_s"),
    num_prompt_tokens=Column("int64", "tokens of its prompt"),
    num_completion_tokens=Column("int64", "tokens sampled for it"),
    num_cached_tokens=Column("int64", "tokens that its last admission took from the prefix cache"),
    num_preemptions=Column("int64", "how often it was sent back to the queue"),
    num_run_tokens=Column("int64", "tokens run for it, prompt, recomputed and decode"),
    num_recomputed_tokens=Column("int64", "of num_run_tokens: those whose KV was lost in a preemption"),
    run_share_s=Column("float64", "its share, by tokens, of the run time of its steps, which overlapping steps share"),
)


@SEQUENCES.describes
def sequences(source: Source) -> pd.DataFrame:
    """A row a request that lives or left during the kept steps, by seq_id.

    A step is shared: its time is never charged to one request alone, and the shares of all add up to the whole.
    Inter-token times, num_run_tokens, num_recomputed_tokens and run_share_s are those of the kept steps.
    NaN or missing: not yet, or not recorded.

    source: a Recorder, or a Snapshot followed by StepRecords.
    """
    recorder = as_recorder(source)
    with recorder.lock:
        requests = sorted(recorder.requests.values(), key=lambda info: info.seq_id)
        segments = recorder.segments
    totals = _Totals([info.seq_id for info in requests])
    for snapshot, records in segments:
        totals.see(snapshot, records)
    if not requests:
        return SEQUENCES.frame({})
    arrival, admitted, first_token, finish = (
        np.array([getattr(info, name) for info in requests], dtype=np.float64)
        for name in ("arrival", "admitted_time", "first_token_time", "finish_time")
    )
    return SEQUENCES.frame(
        {
            "seq_id": totals.seq_ids,
            "request_id": [info.request_id for info in requests],
            "status": [totals.status[info.seq_id] if info.finish_step is None else "finished" for info in requests],
            "finish_reason": [info.finish_reason for info in requests],
            "arrival_s": arrival,
            "admitted_s": admitted,
            "first_token_s": first_token,
            "finish_s": finish,
            "admitted_step": [info.admitted_step for info in requests],
            "first_token_step": [info.first_token_step for info in requests],
            "finish_step": [info.finish_step for info in requests],
            "queue_time_s": admitted - arrival,
            "ttft_s": first_token - arrival,
            "inter_token_mean_s": totals.inter_token_mean(),
            "inter_token_max_s": np.where(totals.num_intervals > 0, totals.longest_interval, np.nan),
            "latency_s": finish - arrival,
            "num_prompt_tokens": [info.num_prompt_tokens for info in requests],
            "num_completion_tokens": totals.num_completion,
            "num_cached_tokens": totals.num_cached,
            "num_preemptions": totals.num_preemptions,
            "num_run_tokens": totals.num_run,
            "num_recomputed_tokens": totals.num_recomputed,
            "run_share_s": totals.run_share,
        }
    )


class _Totals:
    """Sums by sequence, as arrays in the order of ``seq_ids`` (ascending)."""

    def __init__(self, seq_ids: list[int]) -> None:
        self.seq_ids = np.array(seq_ids, dtype=np.int64)
        size = len(seq_ids)
        self.status: dict[int, str] = {}
        self.num_completion, self.num_cached, self.num_preemptions = np.zeros((3, size), dtype=np.int64)
        self.num_run, self.num_recomputed, self.num_intervals = np.zeros((3, size), dtype=np.int64)
        self.run_share, self.sum_intervals, self.longest_interval = np.zeros((3, size))

    def see(self, snapshot: Snapshot, records: list[StepRecord]) -> None:
        """Add a segment: what the snapshot knows replaces what was counted before the gap."""
        columns = snapshot.sequences
        rows = self._rows(columns.seq_id)
        self.num_completion[rows] = np.array(list(map(len, columns.token_ids)), dtype=np.int64)
        self.num_completion[rows] -= np.array(columns.num_prompt_tokens, dtype=np.int64)
        self.num_cached[rows] = columns.num_cached_tokens
        self.status.update(zip(columns.seq_id, columns.status, strict=True))
        last_sampled = self._see_tokens(records)
        self._see_shares(snapshot, records)
        self._see_turns(snapshot, records, last_sampled)

    def inter_token_mean(self) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):
            return self.sum_intervals / self.num_intervals  # 0 / 0 is NaN: no interval was seen

    def _rows(self, seq_ids: Any) -> NDArray[np.int64]:
        return np.asarray(np.searchsorted(self.seq_ids, seq_ids), dtype=np.int64)

    def _see_tokens(self, records: list[StepRecord]) -> dict[int, int]:
        """Count tokens and the times between them; returns the last step in which each sequence got one."""
        sampled = [record.committed.seq_id for record in records]
        seq_id = flat(sampled, np.int64)
        lengths = list(map(len, sampled))
        np.add.at(self.num_completion, self._rows(seq_id), 1)
        order = np.argsort(seq_id, kind="stable")  # by sequence, and by step within
        seq_id = seq_id[order]
        time = np.repeat([record.time for record in records], lengths)[order]
        is_same = seq_id[1:] == seq_id[:-1]
        rows, interval = self._rows(seq_id[1:][is_same]), np.diff(time)[is_same]
        np.add.at(self.num_intervals, rows, 1)
        np.add.at(self.sum_intervals, rows, interval)
        np.maximum.at(self.longest_interval, rows, interval)
        step = np.repeat(np.array([record.step for record in records], dtype=np.int64), lengths)[order]
        return dict(zip(seq_id.tolist(), step.tolist(), strict=True))

    def _see_shares(self, snapshot: Snapshot, records: list[StepRecord]) -> None:
        rows = self._rows(flat([record.planned.seq_id for record in records], np.int64))
        count = flat([record.planned.count for record in records], np.int64)
        ends = [snapshot.time, *(record.time for record in records[:-1])]
        run = map(own_run, records, ends)
        per_token = [time / max(1, sum(record.planned.count)) for record, time in zip(records, run, strict=True)]
        np.add.at(self.num_run, rows, count)
        share = np.repeat(per_token, [len(record.planned.seq_id) for record in records]) * count
        np.add.at(self.run_share, rows, share)

    def _see_turns(self, snapshot: Snapshot, records: list[StepRecord], last_sampled: dict[int, int]) -> None:
        lengths, first_event = Lengths(snapshot), snapshot.event
        admitted_step: dict[int, int] = {}
        cached: dict[int, int] = {}
        for record in records:
            found = turns(record, first_event)
            first_event = 0
            lengths.see(found)
            for turn in found:
                if turn.kind == "added" or turn.kind == "preempted":
                    self.status[turn.seq_id] = "waiting"
                elif turn.kind == "admitted":
                    self.status[turn.seq_id] = "prefill"
                    admitted_step[turn.seq_id] = record.step
                    cached[turn.seq_id] = turn.amount
            for _, seq_id, again in lengths.recomputed(record):
                self.num_recomputed[self._rows(seq_id)] += again
        for seq_id, step in last_sampled.items():
            if self.status[seq_id] == "prefill" and step >= admitted_step.get(seq_id, 0):
                self.status[seq_id] = "decode"
        self.num_cached[self._rows(list(cached))] = list(cached.values())
        self.num_preemptions[self._rows(list(lengths.num_preemptions))] = list(lengths.num_preemptions.values())
