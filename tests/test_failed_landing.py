"""After a landing has failed: records, files, frames, past steps, requests and views still tell what the engine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot
from nvexplore.engine.eviction import Eviction, FreeBlocks
from nvexplore.engine.sequence import Sequence
from nvexplore.explore import frames
from nvexplore.explore.contents import contents_of
from nvexplore.explore.prefix_tree import prefix_tree
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import load_recording, save_recording
from nvexplore.explore.trace import trace
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.past import Known, Past
from nvexplore.notebook.recorded import load
from nvexplore.notebook.requests import RequestLog
from nvexplore.notebook.still_panel import Scene
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained
from tests.faults import Faults, Injected
from tests.follow import Cut, add, fallible
from tests.toy_device import ToyDevice
from tests.workloads import make_workload, run_workload

PROMPT = [3, 1, 4, 1, 5]
SAID = unconstrained(PROMPT, 12)


class Watched:
    """An engine with a recorder, a request log and a feed; ``after`` has its own snapshots after the steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.recorder, self.log, self.feed = engine, Recorder(), RequestLog(), Feed(lambda message: None)
        watchers = (self.recorder.push, self.log.push, self.feed.push)
        self.subscriptions = [engine.subscribe(watcher) for watcher in watchers]
        self.after: dict[int, Snapshot] = {}

    def look(self, engine: Engine) -> None:
        """Compare what is known now with the engine, in which nothing is in the air."""
        check_invariants(engine)
        if not engine._log.events:  # what has happened since the last record is told with the next
            now = engine.snapshot()
            assert self.recorder.state.snapshot().same_state(now)
            self.feed.fold()
            assert self.feed.mirror is not None and self.feed.mirror.state.snapshot().same_state(now)
            self.after[now.step - 1] = now

    def run_to_end(self) -> None:
        while self.engine.has_unfinished:
            self.engine.advance()
            self.engine.settle()
            self.look(self.engine)

    def check(self, tmp_path: Path, seqs: list[Sequence]) -> None:
        assert [subscription.error for subscription in self.subscriptions] == [None] * 3
        assert all(subscription.is_active for subscription in self.subscriptions)
        file = save_recording(self.recorder, tmp_path / "failed", replace=True)
        redacted = save_recording(self.recorder, tmp_path / "redacted", replace=True, redact=True)
        for recorder in (self.recorder, load_recording(file).recorder):
            check_recorder(recorder, self.after)
            told = {i.seq_id: i.finish_reason for i in recorder.requests.values() if i.finish_reason != "unknown"}
            assert told == {seq.seq_id: seq.finish_reason for seq in seqs if seq.seq_id in told}
        for record in load_recording(redacted).recorder:
            load_recording(redacted).recorder.state_at(record.step)
        check_requests(self.log, seqs)
        assert self.feed.mirror is not None
        for seq_id, ended in self.feed.mirror.ended.items():
            assert ended.status in (seqs[seq_id].finish_reason, "finished")


def check_recorder(recorder: Recorder, after: dict[int, Snapshot]) -> None:
    """Every kept state, and all that is made of the records."""
    assert [record.step for record in recorder] == list(range(len(recorder))) and not recorder.gaps
    past = Past(recorder, {"max_steps": 512, "max_entries": 20_000, "max_finished": 256})
    near = {start.step + more for start, _ in recorder.segments for more in (-1, 0, 1)}
    for record in recorder:
        state = recorder.state_at(record.step).snapshot()
        assert recorder.record_of(record.step) is record
        if record.step in after:
            assert state.same_state(after[record.step])
        if record.step not in near:
            continue
        for known in (Known(), Known(first_column=0)):  # with the steps around it, and without
            assert past.mirror(record.step, known).state.snapshot().same_state(state)
        table = frames.blocks(recorder, record.step)
        assert (table["ref_count"] > 0).sum() + len(state.free) == state.num_blocks
        shown = Scene(record.step, table["ref_count"].to_numpy(), recorder).last_records(8)
        assert shown[-1] is record
        frames.schedule([recorder.state_before(shown[0].step).snapshot(), *shown])
        known_blocks = contents_of(recorder).cached(recorder.state_at(record.step))
        assert prefix_tree(recorder.state_at(record.step), contents_of(recorder)).num_unknown == 0
        assert {b for b, h in enumerate(state.hash) if h is not None} == set(known_blocks)
    table = frames.steps(recorder)
    assert (table["num_used_blocks"] + table["num_free_blocks"] == state.num_blocks).all()
    assert len(frames.sequences(recorder)) == len(recorder.requests)
    assert set(frames.schedule(recorder)["seq_id"]) <= set(recorder.requests)
    frames.prefix_hits(recorder)
    assert trace(recorder)["traceEvents"]


def check_requests(log: RequestLog, seqs: list[Sequence]) -> None:
    assert [request.seq_id for request in log.table] == [seq.seq_id for seq in seqs]
    for request, seq in zip(log.table, seqs, strict=True):
        assert request.is_finished and request.status in (seq.finish_reason, "finished")
        assert request.token_ids == seq.completion_token_ids
        if request.status != "finished":
            assert request.num_preemptions == seq.num_preemptions


@pytest.mark.parametrize("stage", ["begin", "write", "end"])
@pytest.mark.parametrize("what", ["", "added", "aborted", "stopped", "several", "cached"])
def test_the_device_fails(what: str, stage: str, tmp_path: Path) -> None:
    engine, _, cut = fallible()
    watched = Watched(engine)
    stop = [SAID[2]] if what == "stopped" else []
    seqs = [add(engine, PROMPT, 12, stop_token_ids=stop), add(engine, [8, 8, 8, 8, 8], 12)]
    for _ in range(3):
        engine.advance()
    if what == "added":
        seqs.append(add(engine, PROMPT, 9))
    elif what == "aborted":
        engine.abort(seqs[1].request_id)
    elif what == "cached":  # what another has filled is hit by a plan that is given up
        seqs.append(add(engine, [8, 8, 8, 8, 8], 4))
        engine.advance()
    for _ in range(3 if what == "several" else 1):
        number = len(watched.recorder)
        cut.during(engine.advance, "wait", stage, Injected)
    assert engine.next_step == len(watched.recorder) >= number
    watched.look(engine)
    engine.settle()  # which delivers what is left to be told
    assert watched.recorder.state.snapshot().same_state(engine.snapshot())
    watched.run_to_end()
    watched.check(tmp_path, seqs)
    unknown = [i.seq_id for i in watched.recorder.requests.values() if i.finish_reason == "unknown"]
    assert unknown == {"aborted": [1], "stopped": [0]}.get(what, [])
    assert [request.seq_id for request in watched.log.table if request.status == "finished"] == unknown
    assert watched.feed.mirror is not None
    assert [seq_id for seq_id, ended in watched.feed.mirror.ended.items() if ended.status == "finished"] == unknown


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_stop_matcher_fails(nth: int, tmp_path: Path) -> None:
    calls = 0

    def match(seq: Sequence) -> str | None:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise Injected
        return None

    engine = toy_engine(32, 4, make_runner=ToyDevice, overlap=True, stop_matcher=match)
    watched = Watched(engine)
    seqs = [add(engine, [8], 6), add(engine, PROMPT, 9, stop="x")]
    with pytest.raises(Injected):
        watched.run_to_end()
    watched.run_to_end()
    watched.check(tmp_path, seqs)


@pytest.mark.parametrize("nth", range(3, 16, 2))
def test_an_eviction_fails(nth: int, tmp_path: Path) -> None:
    """While a step is planned, with another in the air or not."""

    class Failing(Eviction):
        name = "failing"
        left = nth

        def choose(self, free: FreeBlocks) -> int:
            self.left -= 1
            if not self.left:
                raise Injected
            return free.oldest

    engine = toy_engine(32, 4, make_runner=ToyDevice, overlap=True, eviction=Failing())
    watched = Watched(engine)
    seqs = [add(engine, PROMPT, 16), add(engine, [*PROMPT, 9], 16)]
    for _ in range(2):
        try:
            watched.run_to_end()
        except Injected:
            engine.settle()
    watched.check(tmp_path, seqs)


@pytest.mark.parametrize("seed", range(0, 16, 8))
def test_random_runs_with_failures(seed: int, tmp_path: Path) -> None:
    """Of the runner and of own policies and evictions, eight runs for each seed."""
    given_up = 0
    for number in range(seed, seed + 8):
        work = make_workload(number, faults=Faults(number, ("runner", "choice")), overlap=True)
        watched = Watched(work.engine)
        given_up += run_workload(work, watched.look)["given_up"]
        watched.check(tmp_path, [seq for _, seq in work.started])
    assert given_up


def failed(cut: Cut, engine: Engine) -> None:
    for _ in range(3):
        engine.advance()
    cut.during(engine.advance, "wait", "begin", Injected)


def test_a_recording_saved_right_after_the_failure(tmp_path: Path) -> None:
    """The snapshot that tells of it is the last item: no record has come yet."""
    engine, _, cut = fallible()
    watched = Watched(engine)
    add(engine, PROMPT, 6), add(engine, [8], 6)
    failed(cut, engine)
    engine.settle()
    loaded = load_recording(save_recording(watched.recorder, tmp_path / "now")).recorder
    for recorder in (watched.recorder, loaded):
        assert [len(records) for _, records in recorder.segments] == [engine.next_step, 0]
        assert recorder.state.snapshot().same_state(engine.snapshot())
        assert recorder.state_at(engine.next_step - 1).running == [0, 1], "the state after the last record"
        assert frames.sequences(recorder)["status"].tolist() == ["waiting", "waiting"]
        assert frames.steps(recorder)["step"].tolist() == list(range(engine.next_step))


def test_a_failure_that_nobody_recorded_is_noticed_by_who_records_again() -> None:
    engine, _, cut = fallible()
    recorder = Recorder()
    add(engine, PROMPT, 9), add(engine, [8], 9)
    with engine.subscribe(recorder):
        engine.step()
    add(engine, [7, 7], 9)
    cut.during(engine.advance, "wait", "begin", Injected)
    assert engine.next_step == recorder.state.step, "by steps alone nothing is missing"
    with engine.subscribe(recorder):
        while engine.has_unfinished:
            engine.step()
    for record in recorder:
        recorder.state_at(record.step)
    assert recorder.state.snapshot().same_state(engine.snapshot())


def test_a_failure_keeps_the_requests_and_their_prompts() -> None:
    engine, _, cut = fallible()
    log = RequestLog()
    engine.subscribe(log.push)
    seq = add(engine, PROMPT, 6)
    request = log.add(seq.request_id, seq.seq_id, seq.prompt_token_ids)
    request.prompt = "as it was typed"
    failed(cut, engine)
    while engine.has_unfinished:
        engine.advance()
    assert log.find(seq.request_id) is request and request.prompt == "as it was typed"
    assert (request.status, request.token_ids) == ("length", seq.completion_token_ids)
    assert request.num_preemptions == seq.num_preemptions == 1


@pytest.mark.parametrize("is_aborted", [False, True])
def test_who_leaves_while_nobody_looks_has_finished_for_a_reason_that_is_not_known(
    is_aborted: bool, tmp_path: Path
) -> None:
    """But who was aborted where no step is missing was aborted."""
    engine = toy_engine(32, 4)
    add(engine, PROMPT, 6)
    watched = Watched(engine)
    engine.step(), engine.step()
    for subscription in watched.subscriptions:
        subscription.close()
    if is_aborted:
        engine.abort("0")
    else:
        run_to_end(engine)
    seq = add(engine, [8], 3)
    for watcher in (watched.recorder.push, watched.log.push, watched.feed.push):
        engine.subscribe(watcher)
    assert watched.feed.mirror is not None
    why = "abort" if is_aborted else "finished"
    assert watched.feed.mirror.ended[0].status == why and list(watched.feed.mirror.state.sequences) == [seq.seq_id]
    assert [(r.request_id, r.status) for r in watched.log.table] == [("0", why), (seq.request_id, "waiting")]
    run_to_end(engine)
    _, loaded = load(save_recording(watched.recorder, tmp_path / "gap"))
    for log in (watched.log, loaded):
        assert [(r.request_id, r.status) for r in log.table] == [("0", why), (seq.request_id, "length")]
    frame = frames.sequences(watched.recorder)
    assert frame["finish_reason"].tolist() == ["abort" if is_aborted else "unknown", "length"]
    assert (frame["status"] == "finished").all()
