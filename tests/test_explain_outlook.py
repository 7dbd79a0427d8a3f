"""What stands in the way of who waits: custom orders, budgets, blocks, older recordings; whole sentences."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import pytest
from msgspec.structs import replace

from nvexplore.engine.events import StepRecord
from nvexplore.engine.policy import Policy
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.explain import StepExplanation, explain
from nvexplore.explore.recorder import Recorder
from tests.situations import Case, Picky, Scene, ShortestFirst, Strict, case


class LongestFirst(Policy):
    decodes_first = True

    def admission_order(self, waiting: SequenceOf[Sequence]) -> list[Sequence]:
        return sorted(waiting, key=lambda seq: -seq.num_tokens)


class HeadOnly(Policy):
    def admission_order(self, waiting: SequenceOf[Sequence]) -> SequenceOf[Sequence]:
        return waiting[:1]


class NeverPasses(Policy):
    max_passed = 0


class StrictlyShortest(ShortestFirst):
    lookahead = 0


MIXED = {"policy": "mixed"}
PREEMPTED_TWICE = "a=0:7/8 b=20:27/8 c=40:47/8 .2 d=60:63/8 .5 record"

SITUATIONS = [
    # --- an order of the policy's own
    case(  # s was admitted after b was looked at: it is not among those that b keeps blocks free for
        "free_blocks",
        "b waits for 5 free blocks: needs 4 and 2 kept free for those that run (it was preempted once), 1 is free; "
        "s and a hold 5 blocks alone and end in 10 tokens at the latest",
        "a=0:8/16 b=20:28/16 .6 s=1/2 .",
        num_blocks=6,
        policy=ShortestFirst(),
    ),
    case(
        "free_blocks",
        "short waits for 1 free block: needs 2, 1 is free; "
        "long holds 5 blocks alone and ends in 3 tokens at the latest",
        "short=0:8/4 long=100:120/4 .",
        num_blocks=6,
        policy=LongestFirst(),
    ),
    case(
        "unnamed",
        "c is not looked at: the policy did not name it",
        "a=0:16/8 . b=50:66/2 c=0:4/1 .",
        num_blocks=6,
        policy=HeadOnly(),
    ),
    case(
        "behind",
        "c is not looked at: the search ended at b, which lacks 1 block, and nobody may be passed over",
        "a=0:8/5 . b=50:70/1 c=100:122/1 .",
        num_blocks=6,
        policy=StrictlyShortest(),
    ),
    case(
        "behind",
        "a is not looked at: the search ended at c: the only place is taken",
        "a=0:8/5 b=1/1 c=2/1 .",
        max_num_seqs=1,
        policy=ShortestFirst(),
    ),
    case(
        "max_num_seqs",
        "c waits for a place: the only place is taken; 1 is free now, and a step planned now can admit it "
        "if its turn comes",
        "a=0:8/5 b=1/1 c=2/1 .",
        max_num_seqs=1,
        policy=ShortestFirst(),
    ),
    case(
        "behind",
        "c is not looked at: b, directly before it, lacks 1 block and may not be passed over; b must be admitted first",
        "a=0:8/5 . b=50:70/1 c=7/1 .",
        num_blocks=6,
        policy=NeverPasses(),
    ),
    # --- the budget: decode rows may end, and count for the next step alone
    case(
        "token_budget",
        "w waits for the token budget: of the step's 8 tokens 4 went to decoding requests, 4 to prompts; "
        "12 tokens of p come first, so that it can begin in step 3 at the earliest",
        "a=1/3 b=2/3 c=3/3 d=4/3 . p=0:16/2 w=9,9/2 .",
        max_num_batched_tokens=8,
        **MIXED,
    ),
    case(
        "token_budget",
        "w waits for the token budget: of the step's 8 tokens 3 went to decoding requests, 5 to prompts; "
        "5 tokens of p and 3 decode rows come first",
        "a=1/9 b=2/9 c=3/9 . p=0:10/2 w=9/2 .",
        max_num_batched_tokens=8,
        **MIXED,
    ),
    case(
        "token_budget",
        "w waits for the token budget: of the step's 6 tokens 1 went to decoding requests, 5 to prompts; "
        "15 tokens of p come first, so that it can begin in step 4 at the earliest unless p is preempted",
        "a=0:4/9 . p=20:40/2 w=9/2 .",
        max_num_batched_tokens=6,
        num_blocks=7,
        **MIXED,
    ),
    # --- what is known to be in the way besides what it lacked
    case(
        "token_budget",
        "b waits for the token budget: all 16 tokens of the step went to prompts; "
        "it needs 3 free blocks, and 2 are free",
        "a=0:16/8 b=50:62/1 .",
        num_blocks=6,
        max_num_batched_tokens=16,
    ),
    case(
        "token_budget",
        "b waits for the token budget: all 16 tokens of the step went to prompts; "
        "a step planned now can admit it if it can share 1 of its 3 blocks",
        "a=0:16/8 b=0:4,50:58/1 .",
        num_blocks=6,
        max_num_batched_tokens=16,
    ),
    case(
        "token_budget",
        "b waits for the token budget: all 16 tokens of the step went to prompts; "
        "it needs at least 3 free blocks, and 2 are free",
        "a=0:16/8 b=0:8,50:62/1 .",
        num_blocks=6,
        max_num_batched_tokens=16,
    ),
    case(
        "token_budget",
        "w waits for the token budget: of the step's 7 tokens 1 went to decoding requests, 6 to prompts; "
        "it needs 1 free block, and 1 is free, of which decoding requests need 1 first",
        "a=0:7/9 . p=20:26/3 w=9/2 .",
        num_blocks=5,
        max_num_batched_tokens=7,
        **MIXED,
    ),
    case(  # 2 are free, but 1 of them is a's
        "token_budget",
        "w waits for the token budget: of the step's 7 tokens 1 went to decoding requests, 6 to prompts; "
        "a step planned now can admit it if it can share 1 of its 2 blocks",
        "a=0:7/9 . p=20:26/3 w=0:4,9/2 .",
        num_blocks=6,
        max_num_batched_tokens=7,
        **MIXED,
    ),
    case(
        "max_num_seqs",
        "c waits for a place: all 2 places are taken; 1 is free now, but it needs 4 free blocks, and 1 is free",
        "a=0:16/8 b=90/2 . c=50:66/1 .",
        num_blocks=6,
        max_num_seqs=2,
    ),
    # --- parameters that were not recorded: what is kept free for others is not known
    case(
        "preempted",
        "d waits since it was preempted for a in this step; 1 request stands before it, and as things stand it needs "
        "at least 2 free blocks to come back, with what is kept free for others: 1 is free now",
        f"{PREEMPTED_TWICE} .2",
        num_blocks=5,
    ),
    case(
        "free_blocks",
        "d waits for 2 free blocks: needs 2 and 1 kept free for what all of them may yet need "
        "(it was preempted 2 times), 1 is free; 5 are free now, and a step planned now can admit it "
        "if enough is free with what is kept for others and its turn comes",
        f"{PREEMPTED_TWICE} .3",
        num_blocks=5,
    ),
]


@pytest.mark.parametrize("case", SITUATIONS, ids=str)
def test_a_situation_gives_its_sentence(case: Case) -> None:
    assert (case.kind, case.sentence) in case.told()


def test_whoever_was_passed_over_once_is_told_so() -> None:
    scene = Scene("a=0:8/5 . b=50:70/1 c=7/1 .", num_blocks=6)
    assert "4 are free (passed over once for a request that needed less)" in str(explain(scene.recorder).waiting[0])


# --- recordings that were made before a search was recorded


def told_of_old(script: str, **limits: Any) -> StepExplanation:
    """What is told of the last step of a scene, whose records have of ``Waiting`` what older ones have."""
    scene, old = Scene(script, **limits), Recorder()
    new = {"reserve": [], "num_passed": [], "num_admitted_before": []}
    new |= {"search_end": None, "is_queue_order": None, "decodes_first": None}
    for snapshot, records in scene.recorder.segments:
        old.push(snapshot)
        for record in records:
            waiting = replace(record.planned.waiting, **new)
            old.push(replace(record, planned=replace(record.planned, waiting=waiting)))
    assert all(isinstance(record, StepRecord) for record in old.records) and old.records
    return explain(old)


OLD = [
    case(
        "free_blocks",
        "b waits for 1 free block: needs 5, 4 are free; a holds 2 blocks alone and ends in 4 tokens at the latest",
        "a=0:8/5 . b=50:70/1 c=7/1 .",  # c was admitted past it
        num_blocks=6,
    ),
    case(
        "behind",
        "c is not looked at: the record does not say why",
        "a=0:8/5 . b=50:70/1 c=7/1 .",
        num_blocks=6,
        policy=Strict(),
    ),
    case(
        "free_blocks",
        "b waits for 2 free blocks: needs 4 with what is kept free for others (it was preempted once), 2 are free; "
        "a holds 2 blocks alone and ends in 6 tokens at the latest",
        "a=0:4/9 b=20:30/3 .3",
        num_blocks=4,
        max_num_batched_tokens=6,
        **MIXED,
    ),
    case(
        "token_budget",
        "b waits for the token budget: all 8 tokens of the step went to prompts; "
        "a step planned now can admit it if its turn comes",
        "a=0:10/3 b=50:55/1 .",
        max_num_batched_tokens=8,
    ),
    case(
        "behind",
        "c is not looked at: the search ended at b: the token budget is used up",
        "a=0:10/3 b=50:55/1 c=1/1 .",
        max_num_batched_tokens=8,
    ),
    case("unnamed", "a is not looked at: the policy did not name it", "a=0:20/1 b=4/3 .", policy=Picky()),
]


@pytest.mark.parametrize("case", OLD, ids=str)
def test_an_older_recording_says_less(case: Case) -> None:
    told = told_of_old(case.script, **case.limits).waiting
    assert (case.kind, case.sentence) in [(each.kind, str(each)) for each in told]
