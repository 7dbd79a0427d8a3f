"""Where to stop: events in a run that was written down by hand, expressions, words, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest
from msgspec.structs import replace

from nvexplore.engine.events import Admitted, Snapshot, StepRecord
from nvexplore.explore.frames import COLUMNS, steps
from nvexplore.explore.step_numbers import NUMBERS
from nvexplore.explore.until import EVENTS, NAMES, Until, UntilError
from nvexplore.notebook.stops import Stops
from nvexplore.sampling_params import SamplingParams
from tests import hand_made
from tests.fakes import toy_engine
from tests.prove import combine
from tests.prove.until import WHATS, run_overlapped

RECORDS = hand_made.records()


def found(what: Any, records: list[StepRecord] = RECORDS) -> dict[int, str]:
    """Step -> words, where there are any."""
    until = Until.of(what)
    return {record.step: words for record in records if (words := until.matches(record)) is not None}


def changed(record: StepRecord, **planned: Any) -> StepRecord:
    return replace(record, planned=replace(record.planned, **planned))


def test_each_event_in_the_run_by_hand() -> None:
    assert found("preempt") == {4: "request b was preempted, since it needed a block itself"}
    assert found("hit") == {
        7: "request d took 4 tokens from the prefix cache; request e took 4 tokens from the prefix cache"
    }
    assert found("finish") == {4: "request a finished (length)", 6: "request b finished (stop)"}
    assert found("evict") == {8: "block 2 was evicted for request f"}
    # Each step of decode rows alone; "by hand" is a reason as good as another.
    assert found("graph-miss") == {
        2: "2 decode rows ran without a graph: by hand",
        3: "2 decode rows ran without a graph: by hand",
        4: "1 decode row ran without a graph: by hand",
    }
    assert found("miss") == {}  # these records do not tell why the cache gave no more


def test_several_are_joined_by_commas() -> None:
    assert list(found("preempt, hit ,finish")) == [4, 6, 7]
    assert found("preempt,finish")[4] == (
        "request b was preempted, since it needed a block itself; request a finished (length)"
    )
    assert list(found("step==1,max(planned.count) > 7,(evict)")) == [1, 5, 8]
    assert str(Until.of(" preempt ,step == 3, num_seqs>1 ")) == "preempt,step==3,num_seqs>1"
    assert repr(Until.of("graph-miss")) == "Until('graph-miss')"


@pytest.mark.parametrize(
    "cause", ["unseen", "differs", "evicted", "orphaned", "in_flight", "partial", "disabled", "bypassed"]
)
def test_which_causes_are_a_miss(cause: str) -> None:
    admitted = Admitted(
        number=[9], seq_id=[3], num_cached_tokens=[4], miss_cause=[cause], miss_position=[5], miss_block_id=[2],
        miss_step=[1],
    )  # fmt: skip
    words = Until.of("miss").matches(changed(RECORDS[7], admitted=admitted))
    if cause in ("partial", "disabled", "bypassed"):
        assert words is None
    else:
        assert words is not None and words.startswith("request d missed the prefix cache: ")
        expected = {
            "differs": "block 2 begins alike, but position 5 is another",
            "evicted": "was evicted in step 1",
            "orphaned": "block 2 has the next tokens",
        }
        assert expected.get(cause, "") in words
    assert Until.of("hit").matches(changed(RECORDS[7], admitted=admitted)) is not None  # one may be both


def test_a_preemption_names_its_cause() -> None:
    record = RECORDS[4]
    preempted = record.planned.preempted
    for until in (Until.of("preempt"), Until.of_events(["preempt"])):
        until.matches(RECORDS[0])  # tells the names
        by_other = changed(record, preempted=replace(preempted, cause=[hand_made.A]))
        assert until.matches(by_other) == "request b was preempted for a"
    spoilt = replace(record.before, preempted=replace(preempted, cause=[-1]))
    failed = replace(changed(record, preempted=RECORDS[0].planned.preempted), before=spoilt)
    assert Until.of("preempt").matches(failed) == "sequence 1 starts again: a failed step spoilt its blocks"
    assert Until.of("preempt").matches(failed, lambda seq_id: f"r{seq_id}") == (
        "request r1 starts again: a failed step spoilt its blocks"
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"eager_reason": "cpu"}, False),
        ({"eager_reason": "enforce_eager"}, False),
        ({"eager_reason": None}, False),
        ({"eager_reason": None, "graph_size": 2}, False),
        ({"eager_reason": "more than 1 rows"}, True),
        ({"eager_reason": "log probabilities"}, True),
        ({"is_prefill": [True, False]}, False),
        ({"seq_id": [], "is_prefill": []}, False),
    ],
)
def test_what_is_a_graph_miss(change: dict[str, Any], expected: bool) -> None:
    assert bool(Until.of("graph-miss").matches(changed(RECORDS[2], **change))) is expected


def test_what_gives_way_to_newer_content_is_not_evicted() -> None:
    blocks = RECORDS[8].planned.blocks
    kinds = ["hashed" if kind == "allocated" else kind for kind in blocks.kind]
    assert Until.of("evict").matches(changed(RECORDS[8], blocks=replace(blocks, kind=kinds))) is None


def test_names_of_requests_that_are_gone_are_forgotten() -> None:
    until = Until.of("finish")
    for record in RECORDS:
        until.matches(record)
    assert sorted(until._request_ids.values()) == ["d", "e", "f"]


def test_expressions_are_over_the_record() -> None:
    assert found("num_waiting > 0 and num_free_blocks < 2") == {
        1: "num_waiting > 0 and num_free_blocks < 2, with num_waiting = 1, num_free_blocks = 1",
        2: "num_waiting > 0 and num_free_blocks < 2, with num_waiting = 1, num_free_blocks = 1",
    }
    assert list(found("step >= 3 and before.aborted_seq_id")) == [3]
    assert list(found("any(count > 5 for count in planned.count)")) == [0, 5, 8]
    assert list(found("(lambda tokens: 24 in tokens)(committed.token_id)")) == [6]
    assert list(found("(rows := len(record.planned.seq_id)) == 1 and rows * step == 8")) == [8]
    assert list(found("'b' in before.added.request_id")) == [0]
    assert found("step\n> 7") == {8: "step > 7"}
    assert NAMES.keys() >= {"record", "planned", "committed", "before", "step"}


def test_a_function_of_the_record() -> None:
    def long(record: StepRecord) -> object:
        return "a long one" if max(record.planned.count) > 7 else None

    assert found(long) == {5: "a long one", 8: "a long one"}
    assert found(lambda record: record.step == 3) == {3: "<lambda>"}
    until = Until.of(long)
    assert Until.of(until) is until
    assert str(until) == "long"


REFUSED = {
    "": "nothing to stop at: there are preempt, miss, hit, finish, evict, graph-miss, step==N and Python expressions",
    "premept": "no name 'premept' at the ^ in: ^premept (did you mean preempt?)",
    "graph-mis": "no name 'graph' at the ^ in: ^graph-mis (did you mean graph-miss?)",
    "finish,num_fre > 3": "no name 'num_fre' at the ^ in: finish,^num_fre > 3 (did you mean num_free_blocks?)",
    "'é' in ünd": "no name 'ünd' at the ^ in: 'é' in ^ünd (events: preempt, miss, hit, finish, evict, graph-miss, ",
    "hit and step > 3": "no name 'hit' at the ^ in: ^hit and step > 3 (an event stands by itself, between commas)",
    "num_seqs >": "invalid syntax at the ^ in: num_seqs >^",
    "step=5": "at the ^ in: step^=5",
    "miss,,hit": "invalid syntax at the ^ in: miss,^,hit",
    "evict preempt": "invalid syntax at the ^ in: evict ^preempt",
    "(step": "'(' was never closed at the ^ in: ^(step",
    "(yield)": "at the ^ in: (^yield)",
    "a\0b": "a\\x00b",
    "import os": "at the ^ in: ^import os",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_wrong_is_said_in_one_line_with_its_place(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[text])) as error:
        Until.of(text)
    assert "\n" not in str(error.value)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="until=5: must be a text or a function of a record"):
        Until.of(5)  # type: ignore[arg-type]


def test_an_expression_that_raises_says_in_which_step_and_why() -> None:
    until = Until.of("1 / (step - 2) > 1")
    assert until.matches(RECORDS[0]) is None
    with pytest.raises(UntilError) as error:
        until.matches(RECORDS[2])
    assert str(error.value) == (
        "until 1 / (step - 2) > 1 could not be evaluated at step 2: ZeroDivisionError: division by zero"
    )
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(UntilError, match=r"at step 0: AttributeError: .* 'nothing'"):
        found("planned.nothing")
    with pytest.raises(KeyboardInterrupt):  # is not the expression's
        found(lambda record: (_ for _ in ()).throw(KeyboardInterrupt))


def test_steps_that_are_past() -> None:
    assert Until.of("step==4").is_past(5)
    assert not Until.of("step==4").is_past(4)
    assert not Until.of("step==4,finish").is_past(9)
    assert Until.of("step==4,step == 7").is_past(8)
    assert not Until.of("step > 4").is_past(9)
    assert found("step==4") == {4: "step 4 is done"}


def test_names_of_events_are_never_evaluated() -> None:
    assert [Until.of_events(["hit", "evict"]).matches(record) is not None for record in RECORDS[7:]] == [True, True]
    for name in ("step==4", "True", "", "print(1)"):
        with pytest.raises(ValueError, match=r"no event .*: there are preempt, miss, hit, finish, evict, graph-miss"):
            Until.of_events(["hit", name])
    assert all(meaning.startswith(("a ", "decode rows")) for meaning in EVENTS.values())


def test_numbers_are_those_of_the_frame_of_steps() -> None:
    engine = toy_engine(9, 2, max_num_batched_tokens=7, max_num_seqs=3)
    items: list[Snapshot | StepRecord] = []
    with engine.subscribe(items.append):
        for prompt in ([1, 2, 3, 4, 5, 6, 7, 9], [1, 2, 3, 4, 5, 6, 7, 8, 8], [5, 5], [1, 2, 3, 4, 5]):
            engine.add_request(prompt, SamplingParams(max_tokens=6))
        for step in range(40):
            engine.step()
            if step == 3:
                engine.abort(next(iter(engine.live)))
    frame = steps(items)
    assert frame["num_preempted"].sum() and frame["num_evicted"].sum() and frame["num_hit_blocks"].sum()
    records = [item for item in items if isinstance(item, StepRecord)]
    for name, of in NUMBERS.items():
        assert list(map(of, records)) == [None if pd.isna(value) else value for value in frame[name]], name
    # What is left out needs the whole state, or the end of the step before.
    assert set(COLUMNS["steps"]) - set(NUMBERS) == {
        *("num_recompute_tokens", "num_used_blocks", "num_shared_blocks", "num_cached_blocks", "work_us"),
    }


def test_overlapped_runs_stop_while_a_step_is_in_the_air() -> None:
    """A slice of the proof "until"; it scans the records of each run when it is over."""
    found = combine(run_overlapped(what, number) for what in WHATS for number in (1, 2))
    assert min(found[way] for way in ("paused", "taken_over", "turned_picky", "ticked_meanwhile")) > 2
    assert found["asked_in_the_air"] > 5 and found["steps_ahead"] > 20 and found["stops"] > 20


def test_a_run_that_looks_too_late_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that begin before the one before them was looked at."""
    monkeypatch.setattr(Stops, "is_set", lambda stops: False)
    with pytest.raises(AssertionError, match=r"steps were made after the stop|step \d+: .* at \d+$"):
        combine(run_overlapped("finish", number) for number in range(4))
