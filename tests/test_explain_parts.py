"""What stands beside an explanation's words: numbers, links, texts; and that the words hold in random runs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from nvexplore.explore.explain import Explanation, Ref, explain, explain_unseen, moment_at
from nvexplore.explore.explain_words import counted, fill, listed
from nvexplore.explore.recorder import Recorder
from nvexplore.sampling_params import SamplingParams
from tests.situations import Scene
from tests.toy_device import ToyDevice

NEAR = "a=0:13/1 . b=0:5,77,6:10/1 ."


def admission(script: str, **limits: Any) -> Explanation:
    (found,) = explain(Scene(script, **limits).recorder).admitted
    return found


def test_a_near_miss_comes_with_both_texts_and_the_first_other_token() -> None:
    mine, theirs = admission(NEAR).tokens
    assert (mine.token_ids, mine.position, mine.mark) == ([4, 77, 6, 7], 4, 1)
    assert (theirs.token_ids, theirs.position, theirs.mark) == ([4, 5, 6, 7], 4, 1)
    assert theirs.label == (Ref("block", 1, "block 1"),)


def test_the_near_block_is_told_as_it_was_even_if_the_same_plan_evicts_it() -> None:
    """Three blocks: what b needs beside the one that it hits takes the near one."""
    found = admission("a=0:9/1 . b=0:5,77,6:10/1 .", num_blocks=3)
    assert found.kind == "differs" and found.numbers["position"] == 5
    assert [tokens.token_ids for tokens in found.tokens] == [[4, 77, 6, 7], [4, 5, 6, 7]]


def test_a_near_block_that_was_filled_before_it_was_recorded_has_no_text() -> None:
    found = admission("a=0:13/1 . record b=0:5,77,6:10/1 .")
    assert str(found) == (
        "b took 1 block (4 of its 10 tokens) from the cache; "
        "the block of positions 4 to 7 begins like block 1, which differs from position 5 on"
    )
    assert [tokens.token_ids for tokens in found.tokens] == [[4, 77, 6, 7]]


def test_numbers_and_links_stand_beside_the_words() -> None:
    (found,) = explain(Scene("a=0:8/5 . b=50:70/1 .", num_blocks=6).recorder).waiting
    assert (found.numbers["needed"], found.numbers["available"], found.numbers["short"]) == (5, 4, 1)
    assert found.ids("sequence") == [1, 0] and found.ids("block") == found.ids("step") == []
    assert admission(NEAR).ids("sequence") == [1, 0] and admission(NEAR).ids("block") == [1]
    gone = admission("a=0:9/1 . c=50:62/1 . b=0:9/1 .", num_blocks=3)
    assert (gone.ids("block"), gone.ids("step"), gone.ids("sequence")) == ([0], [1], [2, 1])


def test_a_name_is_raw_in_the_parts_and_printable_in_the_sentence() -> None:
    scene, hostile = Scene("", num_blocks=6), "</script>\u202e\n{x}"
    scene.engine.add_request(range(8), SamplingParams(max_tokens=5), request_id=hostile)
    scene.play(". b=50:70/1 .")
    (found,) = explain(scene.recorder).waiting
    assert str(found).endswith("; </script>\\u202e\\n{x} holds 3 blocks alone and ends in 3 tokens at the latest")
    assert found.to_dict()["more"] == [
        ["sequence", 0, hostile],
        " holds 3 blocks alone and ends in 3 tokens at the latest",
    ]
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


def test_before_the_first_step_and_for_what_came_since() -> None:
    with pytest.raises(ValueError, match="nothing is recorded yet: there is no step to explain"):
        explain(Recorder())
    scene = Scene("a=0:8/5 .")
    with pytest.raises(ValueError, match="step 3 is not recorded: kept are steps 0 to 0"):
        explain(scene.recorder, 3)
    scene.play("b=1/1")
    later = Recorder()
    scene.engine.subscribe(later)
    (new,) = explain_unseen(later.state, later.state.waiting)
    assert str(new) == "b came after the last step: the next one will look at it" and new.kind == "new"
    # A state that is ahead of the record is not taken for the one right after it.
    assert moment_at(scene.recorder, 0, later.state).after.waiting == []


def test_any_kept_step_is_explained_as_it_was() -> None:
    scene, told = Scene("a=0:7/6 b=20:27/6", num_blocks=4), []
    while scene.engine.has_unfinished:
        scene.play(".")
        told.append(str(explain(scene.recorder)))
    assert [str(explain(scene.recorder, step)) for step in range(len(told))] == told
    assert len(set(told)) == len(told) > 8


def test_of_many_the_first_are_told() -> None:
    scene = Scene(" ".join(f"r{i}=0:3/2" for i in range(100)) + " .", max_num_seqs=1)
    found = explain(scene.recorder)
    assert [each.subject.id for each in found.waiting] == list(range(1, 65)) and len(found.running) == 1


def test_names_in_a_row() -> None:
    refs = [Ref("sequence", i, name) for i, name in enumerate("abcdef")]
    words = ["".join(map(str, listed(refs[:n]))) for n in (1, 2, 3, 4, 5, 6)]
    assert words == ["a", "a and b", "a, b and c", "a, b, c and d", "a, b, c and 2 more", "a, b, c and 3 more"]
    assert fill("{n} of {who}", n=12_345, who=refs[0]) == ("12,345 of ", refs[0])
    assert [counted(n, "block") for n in (0, 1, 1234)] == ["0 blocks", "1 block", "1,234 blocks"]


def random_scene(rng: random.Random) -> Scene:
    overlap = {"make_runner": ToyDevice, "overlap": True} if rng.random() < 0.3 else {}
    return Scene(
        "",
        num_blocks=rng.randint(5, 14),
        block_size=rng.choice([1, 2, 3, 4]),
        policy=rng.choice(["prefill_first", "mixed"]),
        max_num_batched_tokens=rng.choice([3, 5, 8, 64]),
        max_num_seqs=rng.choice([2, 4, 8]),
        eviction=rng.choice(["lru", "lfu"]),
        **overlap,
    )


def some_request(rng: random.Random, name: str) -> str:
    prompt = ",".join(str(rng.randint(0, 1)) for _ in range(rng.randint(1, 14)))
    return f"{name}={prompt}/{rng.randint(1, 12)}!{rng.choice([0, 0, 1])}{rng.choice(['', '', '@x'])}"


@pytest.mark.parametrize("seed", range(24))
def test_what_is_said_of_who_waits_is_what_the_scheduler_did(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    scene = random_scene(rng)
    engine, reserves, earliest = scene.engine, dict[int, int](), dict[int, int]()
    real = engine.scheduler._reserve
    monkeypatch.setattr(engine.scheduler, "_reserve", lambda seq: reserves.setdefault(seq.seq_id, real(seq)))
    word = ">" if engine._steps._overlapping else "."
    for number in range(60):
        if number < 25 and rng.random() < 0.5:
            try:
                scene.play(some_request(rng, f"r{number}"))
            except ValueError:
                continue  # too long for the pool
        if rng.random() < 0.03 and engine.live:
            scene.play(f"-{rng.choice(list(engine.live))}")
            earliest.clear()  # who was to come first may be gone
        if rng.random() < 0.02:
            scene.play("reset")
        reserves.clear()
        scene.play(word)
        if scene.recorder.last_step is None:
            continue
        found, seqs = explain(scene.recorder), {seq.seq_id: seq for seq in engine.live.values()}
        for each in found.waiting:
            if each.kind == "free_blocks" and word == ".":
                assert each.numbers["passed"] == seqs[each.subject.id].num_passed
                if "what is kept free for others" not in str(each):
                    assert each.numbers["reserve"] == reserves[each.subject.id]
            if "earliest" in each.numbers:
                earliest.setdefault(each.subject.id, each.numbers["earliest"])
        if found.preempted:
            earliest.clear()
        for each in found.admitted:
            assert scene.recorder.last_step >= earliest.pop(each.subject.id, 0)
            assert each.kind != "evicted" or "evicted_block" in each.numbers or "was reset" in str(each)
