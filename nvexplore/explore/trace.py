"""A recording as a trace, for ui.perfetto.dev and chrome://tracing: steps, requests and the pool on one time line.

Source: the Trace Event Format (JSON): "X" is a slice, "i" a moment, "C" a counter, "M" a name; times in microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pandas as pd

from nvexplore.explore.explain_words import printable
from nvexplore.explore.frames import schedule, steps
from nvexplore.explore.recorder import Recorder
from nvexplore.whole_file import write_whole

Event = dict[str, Any]
_ENGINE, _REQUESTS = 1, 2  # processes of the trace
_STEPS: Final = 1  # the engine's thread
_MOMENTS: Final = ("finished", "aborted")  # phases of no length
# Counters: the columns of the frame of steps that each shows, by the word for them.
_COUNTERS: Final = {
    "KV blocks": {"used": "num_used_blocks", "cached": "num_cached_blocks"},
    "requests": {"running": "num_running", "waiting": "num_waiting"},
    "tokens of the step": {"prefill": "num_prefill_tokens", "decode": "num_decode_tokens"},
}
_TOLD: Final = (
    *("num_seqs", "budget_used", "budget", "graph_size", "eager_reason", "waiting_reason"),
    *("plan_us", "run_us", "commit_us"),
)


def trace(recorder: Recorder) -> dict[str, Any]:
    """The trace as JSON has it. Steps that overlap are shown one after another, each until its tokens were there.

    ValueError where no step is recorded.
    """
    if recorder.first_step is None:
        raise ValueError("no step is recorded yet: there is nothing to trace")
    with recorder.lock:
        table, phases, requests = steps(recorder), schedule(recorder), recorder.requests
        records = recorder.records
    begins, ends = dict[int, float](), dict[int, float]()
    before = float("-inf")
    for row in _rows(table):
        end = row["time_s"] * 1e6
        begins[row["step"]] = min(max(end - row["work_us"], before), end)  # rounding must not make two overlap
        before = ends[row["step"]] = end
    events = [_name("process_name", _ENGINE, 0, "engine"), _name("process_name", _REQUESTS, 0, "requests")]
    events.append(_name("thread_name", _ENGINE, _STEPS, "steps"))
    for row in _rows(table):
        begin, end = begins[row["step"]], ends[row["step"]]
        told = {name: row[name] for name in _TOLD if row[name] is not None}
        what = "prefill" if row["num_prefill_tokens"] else "decode" if row["num_decode_tokens"] else "idle"
        events.append(_slice(_ENGINE, _STEPS, f"step {row['step']}: {what}", begin, end, told))
        for name, columns in _COUNTERS.items():
            values = {word: row[column] for word, column in columns.items()}
            events.append({"ph": "C", "pid": _ENGINE, "name": name, "ts": begin, "args": values})
    for seq_id, info in requests.items():
        events.append(_name("thread_name", _REQUESTS, seq_id + 1, printable(info.request_id)))
    for row in _rows(phases):
        first, last, track = row["step"], row["step"] + row["num_steps"] - 1, row["seq_id"] + 1
        if row["phase"] in _MOMENTS:
            time = begins[first] if row["phase"] == "aborted" else ends[last]
            events.append(_moment(track, row["phase"], time, {"step": last}))
        elif row["phase"] != "preempted":
            told = {"first_step": first, "last_step": last, "num_tokens": row["num_tokens"]}
            events.append(_slice(_REQUESTS, track, row["phase"], begins[first], ends[last], told))
    for record in records:
        for preempted in (record.before.preempted, record.planned.preempted):
            for seq_id, cause, lost in zip(preempted.seq_id, preempted.cause, preempted.num_lost, strict=True):
                told = {"step": record.step, "tokens_lost": lost}
                told["for"] = requests[cause].request_id if cause in requests else None
                events.append(_moment(seq_id + 1, "preempted", begins[record.step], told))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(recorder: Recorder, path: str | Path, *, replace: bool = False) -> Path:
    """Write ``trace`` to a file, whole or not at all, and return its path.

    Raises ValueError where no step is recorded, FileExistsError where the file is there and not to be replaced, and
    OSError.
    """
    return write_whole(path, json.dumps(trace(recorder), separators=(",", ":")), replace=replace)


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(pid: int, tid: int, name: str, begin: float, end: float, told: dict[str, Any]) -> Event:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin, "dur": end - begin, "args": told}


def _moment(tid: int, name: str, time: float, told: dict[str, Any]) -> Event:
    return {"ph": "i", "s": "t", "pid": _REQUESTS, "tid": tid, "name": name, "ts": time, "args": told}


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows with plain numbers and texts; None where nothing is."""
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
