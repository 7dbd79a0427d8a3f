"""Explanations: engines brought into situations, and the whole sentence that each must give, with its numbers."""

from __future__ import annotations

import pytest

from tests.situations import (
    Case,
    PassesTwice,
    PassesTwo,
    Picky,
    ShortestFirst,
    Strict,
    case,
)

MIXED = {"policy": "mixed", "num_blocks": 4, "max_num_batched_tokens": 6}

# What is told of the last step, how it came to that (see Scene.play), and the engine's limits.
SITUATIONS = [
    # --- who waits, for what
    case(
        "free_blocks",
        "b waits for 1 free block: needs 5, 4 are free; a holds 3 blocks alone and ends in 3 tokens at the latest",
        "a=0:8/5 . b=50:70/1 .",
        num_blocks=6,
    ),
    case(
        "free_blocks",
        "c waits for 1 free block: needs 5, 4 are free; b and a hold 5 blocks alone and end in 7 tokens at the latest",
        "a=0:8/9 b=20:24/3 . c=50:70/1 .",
        num_blocks=7,
    ),
    case(
        "free_blocks",
        "b waits for 1 free block: needs 4 beside 2 that it can share, 3 are free; "
        "a holds 1 block alone and ends in 7 tokens at the latest",
        "a=0:9/9 . b=0:8,60:76/1 .",
        num_blocks=6,
    ),
    case(
        "free_blocks",
        "b waits for 1 free block: needs 5, 4 are free (passed over 3 times for requests that needed less); "
        "6 are free now, and a step planned now can admit it",
        "a=0:8/2 . b=50:70/1 c=7/1 d=8/1 . e=9/1 .2",
        num_blocks=6,
    ),
    case(
        "free_blocks",
        "b waits for 1 free block: needs 5, 4 are free; a holds 3 blocks alone",
        "a=0:8/9 . record b=50:70/1 .",
        num_blocks=6,
    ),
    case(
        "free_blocks",
        "b waits for 2 free blocks: needs 3 and 1 kept free for those that run (it was preempted once), 2 are free; "
        "a holds 2 blocks alone and ends in 6 tokens at the latest",
        "a=0:4/9 b=20:30/3 .3",
        **MIXED,
    ),
    # in the very step in which it is preempted: decode rows come first
    case(
        "free_blocks",
        "b waits for 2 free blocks: needs 3 and 1 kept free for those that run (it was preempted once), 2 are free; "
        "a holds 2 blocks alone and ends in 7 tokens at the latest",
        "a=0:4/9 b=20:30/3 .2",
        **MIXED,
    ),
    case(
        "preempted",
        "b waits since it was preempted for a in this step; "
        "it is the first in the queue, and as things stand it needs 4 free blocks at most to come back: 1 is free now",
        "a=0:7/6 b=20:27/6 .3",
        num_blocks=4,
    ),
    case(
        "preempted",
        "b waits since it gave up its own blocks in this step; "
        "it is the first in the queue, and as things stand it needs 3 free blocks at most to come back: 1 is free now",
        "a=0:6/4 b=20:24/4 .2",
        num_blocks=3,
    ),
    case(
        "preempted",
        "b waits since it was preempted for a in this step; "
        "1 request stands before it, and as things stand it needs 4 free blocks at most to come back: 1 is free now",
        "a=0:7/5!1 b=20:27/5!1 c=40:47/5!1 .2 d=60:63/5 .",
        num_blocks=4,
    ),
    case(
        "free_blocks",
        "d waits for 2 free blocks: needs 2 and 1 kept free for what all of them may yet need "
        "(it was preempted 2 times), 1 is free; 5 are free now, and a step planned now can admit it if its turn comes",
        "a=0:7/8 b=20:27/8 c=40:47/8 .2 d=60:63/8 .8",
        num_blocks=5,
    ),
    case(  # preempted before, while another is preempted now: kept free for those that ran when it was looked at
        "free_blocks",
        "b waits for 5 free blocks: needs 3 and 2 kept free for those that run (it was preempted once), none is free "
        "(passed over once for a request that needed less); "
        "4 are free now, and a step planned now can admit it",
        "a=0:7/5 b=20:27/5 c=40:47/5 .2 d=60:63/5 .4",
        num_blocks=4,
    ),
    case(
        "max_num_seqs",
        "b waits for a place: the only place is taken; a ends in 8 tokens at the latest",
        "a=0:4/9 b=10:13/2 .",
        max_num_seqs=1,
    ),
    case(
        "max_num_seqs",
        "c waits for a place: all 2 places are taken; b ends in 6 tokens at the latest",
        "a=0:4/9 b=10:13/7 c=1/2 .",
        max_num_seqs=2,
    ),
    case(
        "max_num_seqs",
        "c waits for a place: all 2 places are taken; 1 is free now, and a step planned now can admit it",
        "a=0:4/9 b=10:13/2 . c=1/2 .",
        max_num_seqs=2,
    ),
    case(
        "max_num_seqs",
        "c waits for a place: all 2 places are taken; one of the 2 that run must end or give way first",
        "a=1/9 b=2/9 . record c=3/4 .",
        max_num_seqs=2,
    ),
    case(
        "max_num_seqs",
        "b waits for a place: the only place is taken; a must end or give way first",
        "a=1/9 . record b=3/4 .",
        max_num_seqs=1,
    ),
    case(
        "token_budget",
        "b waits for the token budget: all 8 tokens of the step went to prompts; "
        "12 tokens of a come first, so that it can begin in step 2 at the earliest",
        "a=0:20/3 b=50:55/1 .",
        max_num_batched_tokens=8,
    ),
    case(
        "token_budget",
        "b waits for the token budget: all 8 tokens of the step went to prompts; a step planned now can admit it",
        "a=0:10/3 b=50:55/1 .",
        max_num_batched_tokens=8,
    ),
    case(
        "token_budget",
        "c waits for the token budget: of the step's 8 tokens 1 went to decoding requests, 7 to prompts; "
        "13 tokens of b come first, so that it can begin in step 3 at the earliest",
        "a=0:4/9 . b=20:40/2 c=5/1 .",
        max_num_batched_tokens=8,
        policy="mixed",
    ),
    case(
        "token_budget",
        "c waits for the token budget: all 2 tokens of the step went to decoding requests; "
        "a ends in 6 tokens at the latest",
        "a=1/9 b=2/9 .2 c=5/1 .",
        max_num_batched_tokens=2,
        policy="mixed",
    ),
    case(
        "behind",
        "d is not looked at: the token budget is used up, and b, 2 places before it, is next; "
        "b must be admitted or passed over first",
        "a=0:20/1 b=1/1 c=2/1 d=3/1 .",
        max_num_batched_tokens=8,
    ),
    case(
        "behind",
        "c is not looked at: the only place is taken, and b, directly before it, is next; "
        "b must be admitted or passed over first",
        "a=0:4/9 b=10:13/2 c=1/2 .",
        max_num_seqs=1,
    ),
    case(
        "behind",
        "c is not looked at: b, directly before it, lacks 1 block, and nobody may be passed over; "
        "b must be admitted first",
        "a=0:8/5 . b=50:70/1 c=7/1 .",
        num_blocks=6,
        policy=Strict(),
    ),
    case(
        "behind",
        "e is not looked at: b, directly before it, lacks 1 block and, passed over 2 times so far, "
        "is passed over no more; b must be admitted first",
        "a=0:8/12 . b=50:70/1 c=7/1 . d=8/1 . e=9/1 .",
        num_blocks=6,
        policy=PassesTwice(),
    ),
    case(
        "behind",
        "e is not looked at: d, directly before it, lacks 1 block, and the 2 before it are all that may be passed over "
        "in a step; d must be admitted or passed over first",
        "a=0:8/9 . b=50:70/1 c=150:170/1 d=250:270/1 e=7/1 .",
        num_blocks=6,
        policy=PassesTwo(),
    ),
    case(
        "behind",
        "f is not looked at: e, directly before it, lacks 1 block, and the 2 before it are all that may be passed over "
        "in a step; e must be admitted or passed over first",
        "a=0:8/15 . e=50:70/1 c=7/1 . b=150:170/1!-1 d=250:270/1!-1 f=8/1 .",
        num_blocks=6,
        policy=PassesTwo(),
    ),
    case(
        "behind",
        "a is not looked at: the search ended at c: the token budget is used up",
        "a=0:20/1 b=30:39/1 c=50:60/1 .",
        max_num_batched_tokens=8,
        policy=ShortestFirst(),
    ),
    case("unnamed", "a is not looked at: the policy did not name it", "a=0:20/1 b=4/3 .", policy=Picky()),
]


@pytest.mark.parametrize("case", SITUATIONS, ids=str)
def test_a_situation_gives_its_sentence(case: Case) -> None:
    assert (case.kind, case.sentence) in case.told()
