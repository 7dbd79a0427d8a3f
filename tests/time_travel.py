"""A run that a store in node follows, and an oracle beside it that knows what each step must look like.

The oracle folds the records itself and remembers a hash of every step; of the notebook side it has only the columns.
"""

from __future__ import annotations

from typing import Any

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.lifecycle import turns
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State
from nvexplore.notebook.answers import Answers, packed
from nvexplore.notebook.timeline import RECOMPUTE, Timeline
from tests.store_process import StoreProcess, digest
from tests.watch import Watch


class Oracle:
    """digests: by step. ends, moves: of each sequence, as (how, step) and [step, whether it waits from then on]."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}
        self.ends: dict[int, tuple[str, int]] = {}
        self.moves: dict[int, list[list[Any]]] = {}
        self.born: dict[int, int] = {}
        self.columns: dict[int, dict[str, Any]] = {}
        self._timeline = Timeline(10**9, 10**9)
        self._state: State | None = None

    def __call__(self, item: Snapshot | StepRecord) -> None:
        if isinstance(item, Snapshot):
            self._state = State(item)
            return
        assert self._state is not None
        self._state.apply(item)
        self.digests[item.step] = digest(self._state, item.planned.spans.block_id)
        reasons = dict(zip(item.committed.finished_seq_id, item.committed.finish_reason, strict=True))
        for turn in turns(item):
            if turn.kind in ("admitted", "preempted"):
                self.moves.setdefault(turn.seq_id, []).append([item.step, turn.kind == "preempted"])
            elif turn.kind in ("aborted", "finished"):
                self.ends[turn.seq_id] = (reasons.get(turn.seq_id, "abort"), item.step)
            else:
                self.born[turn.seq_id] = item.step
        self._timeline.append(item)
        self.columns[item.step] = _as_told(self._timeline.columns[-1])

    @property
    def newest(self) -> int:
        return max(self.digests, default=-1)


def _as_told(column: Any) -> dict[str, Any]:
    """A column as store_driver.mjs tells it."""
    names = ("step", "prefill", "recompute", "decode", "budget", "free", "running", "waiting", "us", "ms", "flags")
    entries = zip(column.seq_id, column.kind, column.start, column.count, strict=True)
    return dict(zip(names, column.head[:-1], strict=True)) | {"entries": [list(entry) for entry in entries]}


def _without_recompute(column: dict[str, Any]) -> dict[str, Any]:
    entries = [
        [seq_id, kind - 1 if kind & 15 == RECOMPUTE else kind, start, count]
        for seq_id, kind, start, count in column["entries"]
    ]
    return column | {"prefill": column["prefill"] + column["recompute"], "recompute": 0, "entries": entries}


class Traveller:
    """A feed and a recorder on one side, the store on the other, and the oracle that knows better."""

    def __init__(self, store: StoreProcess, recorder: Recorder, **limits: Any) -> None:
        self.store, self.recorder, self.watch, self.oracle = store, recorder, Watch(**limits), Oracle()
        self.answers = Answers(self.watch.feed, recorder, lambda: None)
        self.num_looks = self.num_errors = 0
        told = self.watch.feed.limits
        self.sees_all = told["max_steps"] >= 100 and told["max_entries"] >= 1000  # else messages leave columns out
        store.call(begin=True)
        self.watch.feed.start()

    def push(self, item: Snapshot | StepRecord) -> None:
        """For ``Engine.subscribe``."""
        self.oracle(item)
        self.recorder.push(item)
        self.watch.feed.push(item)

    def deliver(self) -> str:
        """Let the store have what was sent; returns the hash of what it shows."""
        self.watch.wait(0.06)
        self.watch.feed.flush()
        messages, self.watch.messages[:] = list(self.watch.messages), []
        told = self.store.call(messages=messages, digest=True)
        assert set(told["verdicts"]) <= {"frame", "delta"}, told["verdicts"]
        found: str = told["digest"]
        return found

    def check_live(self) -> None:
        """What the store shows is the newest step."""
        found = self.deliver()
        if self.oracle.newest >= 0:
            assert found == self.oracle.digests[self.oracle.newest], f"the newest step, {self.oracle.newest}"

    def look_at(self, step: int) -> dict[str, Any]:
        """Set the cursor; what the store asks for is answered."""
        told = self.store.call(look_at=step)
        assert len(told["asked"]) <= 1, "one question at a time"
        for what, id, asked in told["asked"]:
            answer, places, buffers = packed(self.answers.answer(what, id, asked))
            for (name,), buffer in zip(places, buffers, strict=True):
                answer[name] = buffer
            self.store.call(answer=answer)
        return self.store.call(digest=True, lives=True)

    def check_past(self, step: int) -> None:
        """The store shows ``step`` as it was, or says why it can't."""
        oldest = self.recorder.first_step
        assert oldest is not None
        told = self.look_at(step)
        self.num_looks += 1
        if step < oldest and told["notice"]:  # without one the page still had it
            assert told["notice"] == f"step {step} is no longer kept; the oldest is {oldest}"
            assert told["cursor"] != step and told["cursor"] in (-1, told["shownStep"])
            self.num_errors += 1
            self.look_at(-1)
            return
        assert told["notice"] == "" and not told["isLoading"] and told["isPast"]
        assert (told["cursor"], told["shownStep"], told["liveStep"]) == (step, step, self.oracle.newest)
        assert told["digest"] == self.oracle.digests[step], f"step {step} of {self.oracle.newest}"
        for seq_id, how, when in told["ended"]:
            assert (how, when) == self.oracle.ends[seq_id] and when <= step, f"sequence {seq_id} at step {step}"
        for seq_id, born, moves in told["moves"]:
            past = [move for move in self.oracle.moves.get(seq_id, []) if move[0] <= step]
            missed = not self.sees_all and all(move in past for move in moves)
            assert missed or moves == past[len(past) - len(moves) :], f"sequence {seq_id} at step {step}"
            came = self.oracle.born[seq_id]  # of one that came before the oldest step only that is known
            assert born == came or came < born <= oldest, f"sequence {seq_id} at step {step}"
        self._check_columns(told["columns"], step)

    def _check_columns(self, columns: list[dict[str, Any]], step: int) -> None:
        oldest, steps = self.recorder.first_step or 0, [column["step"] for column in columns]
        assert step in steps or step < oldest, f"the column of step {step}"
        assert steps == (list(range(steps[0], steps[-1] + 1)) if self.sees_all else sorted(set(steps)))
        expected = [self.oracle.columns[number] for number in steps]
        if oldest > 0:  # of a preemption before that nobody knows what had been computed
            columns, expected = ([_without_recompute(column) for column in each] for each in (columns, expected))
        assert columns == expected
