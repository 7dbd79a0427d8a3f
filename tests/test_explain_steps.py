"""Explanations of who runs, who gives way, hits and misses, whole steps: the sentence that each situation gives."""

from __future__ import annotations

import pytest

from tests.situations import Case, FailingRunner, GraphRunner, OldestGivesWay, case
from tests.toy_device import ToyDevice

OVERLAP = {"make_runner": ToyDevice, "overlap": True}
NEVER_SEEN = "nothing in the cache begins with its first token"
LOST = "tokens must be computed again, less what it finds in the cache"
TIGHT = {"num_blocks": 4}

SITUATIONS = [
    # --- who runs, who does not
    case("decode", "a got its token 2 of at most 4", "a=0:3/4 .2"),
    case("decode", "a got its token 2", "a=0:3/4 . record ."),
    case("prefill", "a computed all of its 3 tokens and got its token 1 of at most 4", "a=0:3/4 ."),
    case("prefill", "a computed its only token and got its token 1 of at most 4", "a=3/4 ."),
    case("prefill", "a computed 8 of its 20 tokens: 12 are left", "a=0:20/4 .", max_num_batched_tokens=8),
    case("prefill", "a computed 8 of its 9 tokens: 1 is left", "a=0:9/4 .", max_num_batched_tokens=8),
    case(
        "prefill",
        "a computed 8 of its 30 tokens, after 8 from the cache: 14 are left",
        "w=0:9/1 .2 a=0:30/1 .",
        max_num_batched_tokens=8,
    ),
    case(
        "prefill",
        "a computed the last 4 of its 12 tokens and got its token 1 of at most 3",
        "a=0:12/3 .2",
        max_num_batched_tokens=8,
    ),
    case(
        "prefill",
        "b computed again the last 5 of its 9 tokens and got its token 3 of at most 6",
        "a=0:7/6 b=20:27/6 .7",
        num_blocks=4,
    ),
    case(
        "idle",
        "a did not run: prompts run first, and this step ran those of b, c, d and 2 more",
        "a=0:3/4 . b=1/4 c=2/4 d=3/4 e=4/4 f=5/4 .",
    ),
    case(
        "idle",
        "c did not run: 2 others took all of the budget of 2 tokens",
        "a=1/9 b=2/9 . c=5/9 .2",
        max_num_batched_tokens=2,
    ),
    case(
        "idle",
        "b did not run: another request took all of the budget of 1 token",
        "a=1/9 b=2/9 .3",
        max_num_batched_tokens=1,
    ),
    # --- who gave way
    case(
        "preempted",
        "b was preempted for a, which needed a block: 2 requests needed a block and none was free; "
        f"of 2 that could give way it was admitted last; 8 {LOST}: 1 is left there of its 2 blocks",
        "a=0:7/6 b=20:27/6 .3",
        **TIGHT,
    ),
    case(
        "preempted",
        "c was preempted for b, which needed a block: 3 requests needed a block and 1 was free; "
        f"of 2 that could give way it was admitted last; 8 {LOST}: 1 is left there of its 2 blocks",
        "a=0:7/6 b=20:27/6 c=40:47/6 .3",
        num_blocks=7,
    ),
    case(
        "preempted",
        "c was preempted for a, which needed a block: 3 requests needed a block and none was free; "
        f"of 3 that could give way it has the worst priority (2); 8 {LOST}: none is left there of its 2 blocks",
        "a=0:7/9!1 b=20:27/9!1 c=40:47/9!2 .3",
        num_blocks=6,
    ),
    case(
        "preempted",
        "c was preempted for a, which needed a block: 3 requests needed a block and none was free; "
        f"of 3 that could give way it has the worst priority (2), and was admitted last of those; 8 {LOST}: "
        "none is left there of its 2 blocks",
        "a=0:7/9!1 b=20:27/9!2 c=40:47/9!2 .3",
        num_blocks=6,
    ),
    case(
        "gave_way",
        "b gave up its blocks since it needed one more itself: 1 request needed a block and none was free; "
        f"nobody else could give way; 4 {LOST}: 1 is left there of its 1 block",
        "a=0:6/4 b=20:24/4 .2",
        num_blocks=3,
    ),
    case(
        "gave_way",
        "a gave up its blocks since it needed one more itself: 2 requests needed a block and none was free; "
        f"the policy chose it among 2 that could give way; 8 {LOST}: 1 is left there of its 2 blocks",
        "a=0:7/6 b=20:27/6 .3",
        num_blocks=4,
        policy=OldestGivesWay(),
    ),
    case(
        "failed_step",
        "b was preempted before the step: a step that failed may have overwritten its blocks; "
        "8 tokens must be computed again",
        "a=0:7/6 b=20:27/6 .2 fail .",
        num_blocks=4,
        make_runner=FailingRunner,
    ),
    # --- what was hit, and why no more
    case("unseen", f"a took nothing from the cache; {NEVER_SEEN}", "a=0:9/1 ."),
    case(
        "unseen",
        "b took 1 block (4 of its 9 tokens) from the cache, filled by a; "
        "nothing in the cache goes on from there with its token at position 4",
        "a=0:13/1 . b=0:4,77,5:9/1 .",
    ),
    case(
        "partial",
        "b took 2 blocks (8 of its 11 tokens) from the cache, filled by a; "
        "no more is possible: the 3 tokens left fill no block",
        "a=0:12/1 . b=0:11/1 .",
    ),
    case(
        "partial",
        "b took 2 blocks (8 of its 12 tokens) from the cache, filled by a; "
        "no more is possible: its last block ends with its last token, which must be computed",
        "a=0:12/1 . b=0:12/1 .",
    ),
    case(
        "partial",
        "b took 3 blocks (12 of its 13 tokens) from the cache, filled by a and c; "
        "no more is possible: the 1 token left fill no block",
        "a=0:9/1 . c=0:12/1 . b=0:13/1 .",
    ),
    case(
        "disabled",
        "b took nothing from the cache; prefix caching is off",
        "a=0:9/1 . b=0:9/1 .",
        enable_prefix_caching=False,
    ),
    case(
        "bypassed",
        "b took nothing from the cache; it asks for log probabilities of its prompt, which only computing it yields",
        "a=0:9/1 . b=0:9/1+prompt_logprobs=0 .",
    ),
    case(
        "in_flight",
        "b took 2 blocks (8 of its 14 tokens) from the cache, filled by a; "
        "the block of positions 8 to 11 is the same as block 2 of a, which is not full yet",
        "a=0:8/9 .4 b=~a,5,6/1 .",
    ),
    case(
        "in_flight",
        "b took 4 blocks (4 of its 6 tokens) from the cache, filled by a; "
        "a has the block of position 4 too, but has not stored it yet",
        "a=0:3/9 .2 b=~a,7/1 .",
        block_size=1,
    ),
    case(
        "in_flight",
        "b took 4 blocks (4 of its 6 tokens) from the cache, filled by c; "
        "c has the block of position 4 too, but has not stored it yet",
        "a=0:3/9 .2 reset c=0:3/9 .2 b=~c,7/1 .",
        block_size=1,
    ),
    case(
        "evicted",
        "b took nothing from the cache; the block of positions 0 to 3 was in the cache, which was reset before step 2",
        "a=0:8/9 .2 reset b=~a,5/1 .",
    ),
    case(
        "evicted",
        "b took nothing from the cache; "
        "the block of positions 0 to 3 was in block 0, which was evicted in step 1 for c",
        "a=0:9/1 . c=50:62/1 . b=0:9/1 .",
        num_blocks=3,
    ),
    case(
        "evicted",
        "b took nothing from the cache; the block of positions 0 to 3 was in the cache, which was reset before step 1",
        "a=0:9/1 . reset b=0:9/1 .",
    ),
    case(
        "evicted",
        "b took nothing from the cache; the block of positions 0 to 3 was in the cache and was evicted in step 1",
        "a=0:9/1 . c=50:62/1 . record b=0:9/1 .",
        num_blocks=3,
    ),
    case(
        "evicted",
        "b came back and took 1 block (4 of its 9 tokens) from the cache, which it had filled itself; "
        "the block of positions 4 to 7 was in block 3, which was evicted in step 2 for a",
        "a=0:7/6 b=20:27/6 .7",
        **TIGHT,
    ),
    case(
        "orphaned",
        "b took 1 block (4 of its 9 tokens) from the cache, filled by d; "
        "block 3 holds the block of positions 4 to 7 too, but goes on from a block that left the cache and was stored "
        "anew since",
        "w=0:4,9/1 . a=0:9/9+prompt_logprobs=0 . c=60:86/1 . d=0:4/1 . b=0:9/1 .",
        num_blocks=10,
    ),
    case(
        "differs",
        "b took 1 block (4 of its 10 tokens) from the cache, filled by a; "
        "the block of positions 4 to 7 begins like block 1, which differs from position 5 on",
        "a=0:13/1 . b=0:5,77,6:10/1 .",
    ),
    case(
        "salt",
        "b took nothing from the cache; the block of positions 0 to 3 is cached, but under another salt",
        "a=0:13/1@x . b=0:13/1@y .",
    ),
    case(
        "salt",
        "b took nothing from the cache; the block of positions 0 to 3 is cached, but without a salt",
        "a=0:13/1 . b=0:13/1@y .",
    ),
    # --- steps
    case(
        "step",
        "step 1 ran 1 decode row and 2 prompt chunks of 18 tokens: 19 of the budget's 512 tokens; "
        "launched without a CUDA graph: toy",
        "a=0:3/5 . b=0:9/5 c=60:69/5 .",
        policy="mixed",
    ),
    case(
        "step",
        "step 0 ran 1 prompt chunk of 3 tokens: 3 of the budget's 512 tokens; "
        "launched without a CUDA graph: it has prompt tokens",
        "a=0:3/3 .",
        make_runner=GraphRunner,
    ),
    case(
        "step",
        "step 1 ran 3 decode rows: 3 of the budget's 512 tokens; one CUDA graph of 4 rows, 1 of them padding",
        "a=0:3/3 b=20:23/3 c=40:43/3 .2",
        make_runner=GraphRunner,
    ),
    case(
        "step",
        "step 1 ran 1 decode row: 1 of the budget's 512 tokens; one CUDA graph of 1 row",
        "a=0:3/3 .2",
        make_runner=GraphRunner,
    ),
    case(
        "step",
        "step 2 ran 1 decode row: 1 of the budget's 512 tokens; launched without a CUDA graph: toy; "
        "planned while step 1 was being computed",
        "a=1/9 >>>",
        **OVERLAP,
    ),
    case(
        "step",
        "step 2 ran 1 decode row: 1 of the budget's 512 tokens; launched without a CUDA graph: toy; "
        "not planned ahead: penalties or log probabilities need each token on the host first",
        "a=1/9+presence_penalty=1 >>>",
        **OVERLAP,
    ),
    case("idle", "step 1 ran nothing: nobody waits", "a=0:3/5 . -a ."),
]


@pytest.mark.parametrize("case", SITUATIONS, ids=str)
def test_a_situation_gives_its_sentence(case: Case) -> None:
    assert (case.kind, case.sentence) in case.told()
