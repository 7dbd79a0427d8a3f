"""What the why and the prefix view are told: all of it plain, bounded, and of the step that is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets
import pytest

from nvexplore.explore.explain import explain
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook.answers import packed
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.prefix_view import MOST_BLOCKS, MOST_RUNS, PrefixView
from nvexplore.notebook.why_view import WhyView
from tests.comms import recorded_comms
from tests.situations import Scene

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spell(token_ids: list[int]) -> str:
    return " ".join(LETTERS[i % 26] for i in token_ids)


@pytest.fixture(autouse=True)
def comms() -> Iterator[None]:
    with recorded_comms():
        yield
        ipywidgets.Widget.close_all()


class Shown:
    """A scene and an explorer that shows it; ``ask`` is what a page does."""

    def __init__(self, script: str, decode: Callable[[list[int]], str] = spell, **limits: Any) -> None:
        self.scene = Scene("", **limits)
        self.explorer = Explorer(decode=decode, recorder=self.scene.recorder)
        self.scene.engine.subscribe(self.explorer.push)
        self.scene.play(script)

    def ask(self, what: str, id: int = -1, step: int = -1) -> dict[str, Any]:
        self.explorer.push(self.scene.engine.snapshot())
        answer = self.explorer._answers.answer(what, id, step)
        plain, places, _ = packed(answer)
        assert json.loads(json.dumps(plain)) == plain
        assert all(place[-1] in ("blocks", "refs") for place in places)
        return answer


def text(told: dict[str, Any]) -> str:
    """An answer's sentence again."""
    what, more = (
        "".join(part if isinstance(part, str) else part[2] for part in told[name]) for name in ("what", "more")
    )
    return f"{told['subject'][2]} {what}" + (f"; {more}" if more else "")


def test_why_is_what_explain_says_at_every_step() -> None:
    shown = Shown("a=0:7/6 b=20:27/6 .9", num_blocks=4)
    for step in range(9):
        told, found = shown.ask("why_view", -1, step), explain(shown.scene.recorder, step)
        for name in ("preempted", "waiting", "running"):
            assert [text(each) for each in told[name]] == [str(each) for each in getattr(found, name)]
        assert [text(each) for each in told["summary"]] == [str(found.summary)]
    assert shown.ask("why_view") == shown.ask("why_view", -1, 8)


def test_why_before_the_first_step_and_without_its_record() -> None:
    assert Explorer()._answers.answer("why_view", -1) == {}
    shown = Shown("a=0:7/6 b=1/2")
    told = shown.ask("why_view")
    assert [text(each) for each in told["waiting"]] == [
        "a came after the last step: the next one will look at it",
        "b came after the last step: the next one will look at it",
    ]
    assert (told["summary"], told["running"], told["num_waiting"]) == ([], [], 2)
    shown.scene.play(".")
    shown.explorer._answers.read_from(Recorder())
    assert [text(each) for each in shown.ask("why_view")["running"]] == [
        "a runs; the record of this step is not kept",
        "b runs; the record of this step is not kept",
    ]


def test_why_of_the_newest_step_knows_who_came_and_went_since() -> None:
    shown = Shown("a=0:7/6 b=1/9 c=2/9 .", max_num_seqs=1)
    shown.scene.play("d=3/1 -b")
    told = shown.ask("why_view")
    behind = "c is not looked at: the only place is taken, and b, directly before it, is next; "
    assert [text(each) for each in told["waiting"]] == [
        f"{behind}b must be admitted or passed over first",
        "d came after the last step: the next one will look at it",
    ]
    assert told["num_waiting"] == 2


def test_why_of_many_tells_of_the_first_and_of_the_selected() -> None:
    shown = Shown(" ".join(f"r{i}=0:3/2" for i in range(200)) + " .", max_num_seqs=1)
    told = shown.ask("why_view")
    assert ([each["subject"][1] for each in told["waiting"]], told["num_waiting"]) == ([*range(1, 65)], 199)
    assert [each["subject"][1] for each in shown.ask("why_view", 150)["waiting"]] == [*range(1, 65), 150]
    assert len(shown.ask("why_view", 9999)["waiting"]) == 64


NEAR = "a=0:13/1 . b=0:5,77,6:10/1 ."


def test_prefix_shows_runs_with_their_text() -> None:
    shown = Shown(NEAR)
    (first, second, third) = shown.ask("prefix_view")["runs"]
    assert (first["parent"], second["parent"], third["parent"]) == (-1, 0, 0)
    assert (first["text"], second["text"], third["text"]) == (["a b c d"], ["e f g h i j k l"], ["e z g h"])
    assert (list(first["blocks"]), list(first["refs"])) == ([0, 0, 0, 0], [0])
    assert (first["hits"], second["hits"], first["by"], third["by"]) == (1, 0, [0, "a"], [1, "b"])
    assert (first["depth"], second["depth"], second["length"], second["step"], third["step"]) == (0, 1, 2, 0, 1)
    earlier = shown.ask("prefix_view", -1, 0)
    assert [run["length"] for run in earlier["runs"]] == [3] and earlier["runs"][0]["text"] == [
        "a b c d e f g h i j k l"
    ]


def test_prefix_tells_beginning_and_end_of_long_runs_and_who_holds_them() -> None:
    shown = Shown("a=0:61/9 b=0:61/9 .2", num_blocks=64)
    (run,) = shown.ask("prefix_view")["runs"]
    assert run["text"] == [spell([*range(24)]), spell([*range(48, 60)])]
    assert (run["length"], run["held"], run["most_refs"], list(run["refs"])) == (15, 15, 2, [2] * 15)
    assert not run["is_cut"] and not run["is_salted"]
    (salted,) = Shown("a=0:9/1@x .").ask("prefix_view")["runs"]
    assert salted["is_salted"]


def test_prefix_explains_admissions_with_both_texts() -> None:
    shown = Shown(NEAR + " .")
    told = shown.ask("prefix_view", -1, 1)
    (admitted,) = told["admitted"]
    assert (told["admitted_step"], told["num_admitted"]) == (1, 1)
    assert text(admitted) == (
        "b took 1 block (4 of its 10 tokens) from the cache, filled by a; "
        "the block of positions 4 to 7 begins like block 1, which differs from position 5 on"
    )
    mine, theirs = admitted["texts"]
    assert (mine["label"], theirs["label"]) == (["this request"], [["block", 1, "block 1"]])
    assert (mine["parts"], theirs["parts"]) == (["e", " z", " g h"], ["e", " f", " g h"])
    assert (mine["position"], mine["mark"], mine["ids"]) == (4, 1, [4, 77, 6, 7])


def test_prefix_of_a_selected_request_tells_its_last_admission() -> None:
    shown = Shown("a=0:7/6 b=20:27/6 .7", num_blocks=4)
    again, first = shown.ask("prefix_view", 1), shown.ask("prefix_view", 1, 3)
    assert set(again) == {"admitted", "admitted_step", "num_admitted"}
    assert (again["admitted_step"], again["admitted"][0]["kind"], first["admitted_step"]) == (6, "evicted", 0)
    assert text(first["admitted"][0]).startswith("b took nothing from the cache")
    assert shown.ask("prefix_view", 7) == {"admitted": [], "admitted_step": -1, "num_admitted": 0}


def test_a_token_whose_text_depends_on_what_stands_before_it_is_told_by_itself() -> None:
    shown = Shown(NEAR, decode=lambda ids: f"<{','.join(map(str, ids))}>")
    (admitted,) = shown.ask("prefix_view")["admitted"]
    assert admitted["texts"][0]["parts"] == ["<4>", "<77>", "<6,7>"]


def test_of_a_large_cache_the_largest_runs_are_told() -> None:
    words = " ".join(f"r{i}={1000 * i}:{1000 * i + 9}/1" for i in range(300))
    shown = Shown(f"big=500000:501300/1 {words} .20", num_blocks=1500, max_num_seqs=400)
    told = shown.ask("prefix_view")
    assert len(told["runs"]) == MOST_RUNS == 200 and told["cached"] == 325 + 600
    assert (told["hidden_runs"], told["hidden_blocks"]) == (101, 202)
    (big,) = [run for run in told["runs"] if run["length"] > 2]
    assert (big["length"], len(big["blocks"]), len(big["refs"])) == (325, 4 * MOST_BLOCKS, MOST_BLOCKS)
    assert len(packed(told)[1]) == 2 * MOST_RUNS


def test_the_views_have_the_names_of_their_files() -> None:
    explorer = Explorer()
    assert (WhyView(explorer).view, PrefixView(explorer).view) == ("why_view", "prefix_view")
