"""What a record tells of the search for requests to admit: its order, its end, what it counted."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import msgspec
import pytest

from nvexplore.engine.events import Waiting
from nvexplore.engine.policy import Policy
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import run_to_end, toy_engine
from tests.situations import PassesTwice, PassesTwo, Picky, Scene, ShortestFirst, Strict
from tests.toy_device import ToyDevice


class PassesNobody(Strict):
    max_passed = 0


def rows(scene: Scene) -> list[tuple[int, ...]]:
    """(seq_id, reserve, num_passed, num_admitted_before) of the last step."""
    waiting = scene.recorder.records[-1].planned.waiting
    return list(zip(waiting.seq_id, waiting.reserve, waiting.num_passed, waiting.num_admitted_before, strict=True))


@pytest.mark.parametrize(
    ("end", "script", "limits"),
    [
        ("token_budget", "a=0:20/1 b=1/1 .", {"max_num_batched_tokens": 8}),
        ("max_num_seqs", "a=0:4/9 b=1/2 .", {"max_num_seqs": 1}),
        ("lookahead", "a=0:8/5 . b=50:70/1 c=7/1 .", {"num_blocks": 6, "policy": Strict()}),
        ("lookahead", "a=0:8/9 . b=50:70/1 c=150:170/1 d=250:270/1 .", {"num_blocks": 6, "policy": PassesTwo()}),
        ("max_passed", "a=0:8/12 . b=50:70/1 c=7/1 . d=8/1 . e=9/1 .", {"num_blocks": 6, "policy": PassesTwice()}),
        ("order", "a=0:8/5 . b=50:70/1 .", {"num_blocks": 6}),
        ("order", "a=0:20/1 b=4/3 .", {"policy": Picky()}),
        # Of two reasons the one that stays.
        ("max_passed", "a=0:8/5 . b=50:70/1 c=7/1 .", {"num_blocks": 6, "policy": PassesNobody()}),
    ],
)
def test_why_the_search_ended(end: str, script: str, limits: dict[str, Any]) -> None:
    scene = Scene(script, **limits)
    assert scene.recorder.records[-1].planned.waiting.search_end == end


def test_a_step_in_which_nobody_is_left_waiting_has_no_search() -> None:
    assert Scene("a=0:8/5 .").recorder.records[-1].planned.waiting == Waiting()


def test_who_was_admitted_before_and_past_whom() -> None:
    """The small ones are tried in turn; b is passed over by c and e, d by e alone."""
    scene = Scene("a=0:8/5 . b=50:70/1 c=7/1 d=150:170/1 e=8/1 .", num_blocks=6)
    assert scene.recorder.records[-1].planned.admitted.seq_id == [2, 4]
    assert rows(scene) == [(1, 0, 2, 0), (3, 0, 1, 1)]
    scene.play("f=9/1 .")
    assert rows(scene) == [(1, 0, 3, 0), (3, 0, 2, 0)], "counted on over the steps"


def test_the_order_of_a_policy_of_its_own() -> None:
    scene = Scene("a=50:61/1 b=1/3 .", num_blocks=3, policy=ShortestFirst())
    waiting = scene.recorder.records[-1].planned.waiting
    assert rows(scene) == [(0, 0, 0, 1)] and waiting.is_queue_order is False and waiting.decodes_first is False


@pytest.mark.parametrize("policy", ["prefill_first", "mixed", "own object", "own method"])
def test_whether_the_order_is_the_queues_own(policy: str) -> None:
    class Whole(Policy):
        def admission_order(self, waiting: SequenceOf[Sequence]) -> SequenceOf[Sequence]:
            return waiting

    chosen: Any = Whole() if policy == "own object" else Policy() if policy == "own method" else policy
    if policy == "own method":
        chosen.admission_order = list
    waiting = Scene("a=0:4/9 b=1/2 .", max_num_seqs=1, policy=chosen).recorder.records[-1].planned.waiting
    assert waiting.is_queue_order == (not policy.startswith("own")) and waiting.decodes_first == (policy == "mixed")


def test_what_is_kept_free_for_others_is_told() -> None:
    scene = Scene("a=0:4/9 b=20:30/3 .2", num_blocks=4, max_num_batched_tokens=6, policy="mixed")
    assert scene.recorder.records[-1].planned.preempted.seq_id == [1]
    assert rows(scene) == [(1, 1, 0, 0)] and scene.recorder.records[-1].planned.waiting.needed == [4]


def test_a_search_ahead_is_told_as_it_was() -> None:
    scene = Scene(
        "a=0:8/9 b=50:70/1 c=7/1 >>>", num_blocks=6, max_num_batched_tokens=8, make_runner=ToyDevice, overlap=True
    )
    ahead = [record.planned for record in scene.recorder.records if record.planned.is_ahead]
    (planned,) = [each for each in ahead if each.admitted.seq_id == [2]]
    assert (planned.waiting.seq_id, planned.waiting.num_admitted_before) == ([1], [0])
    assert (planned.waiting.num_passed, planned.waiting.search_end) == ([1], "order")


def test_an_older_record_is_read_with_what_it_lacks_unknown() -> None:
    old = b'{"seq_id": [3], "reason": ["free_blocks"], "needed": [2], "available": [1], "num_not_examined": 4}'
    waiting = msgspec.json.decode(old, type=Waiting)
    assert waiting.reserve == waiting.num_passed == waiting.num_admitted_before == []
    assert waiting.search_end is waiting.is_queue_order is waiting.decodes_first is None


def test_a_budget_beyond_what_a_slice_can_count() -> None:
    engine = toy_engine(4, max_num_batched_tokens=2**63 - 1)
    seq = engine.add_request([1], SamplingParams(max_tokens=2))
    run_to_end(engine)
    assert seq.is_finished
