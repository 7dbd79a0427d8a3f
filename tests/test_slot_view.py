"""The slot view: every number is what the runner was given, and every formula gives the number beside it."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

from nvexplore.engine.batch import Dispatch, Sampled, ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.explore import frames
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook.answers import packed
from nvexplore.notebook.explorer import POSITIONS, Explorer
from nvexplore.notebook.session import Session
from nvexplore.notebook.slot_view import MOST_BLOCKS, MOST_OF_ROW, MOST_ROWS, MOST_TOKENS, SlotView
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch
from nvexplore.sampling_params import SamplingParams
from tests.comms import recorded_comms
from tests.fakes import ToyRunner, toy_engine
from tests.notebook_fakes import FakeLLM
from tests.situations import GraphRunner
from tests.workloads import make_workload, run_workload

FORMULAS = Path(__file__).with_name("slot_formulas.mjs")


@pytest.fixture(autouse=True)
def comms() -> Iterator[None]:
    with recorded_comms():
        yield
        ipywidgets.Widget.close_all()


class LaidOut(GraphRunner):
    """Keeps the tensors of each batch as a real runner would have built them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.laid_out: list[ForwardBatch] = []

    def run(self, batch: ScheduledBatch) -> list[int] | Sampled:
        padding = self.dispatch(batch).padding or 0
        self.laid_out.append(build_forward_batch(batch, self.block_size, num_padding=padding))
        return super().run(batch)


class TokenGraphRunner(ToyRunner):
    """Pads prefill steps with tokens that belong to no row."""

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        return Dispatch(graph_size=16, padding=16 - sum(batch.counts)) if any(batch.is_prefill) else Dispatch()


def decode(token_ids: list[int]) -> str:
    return " ".join(f"<{i}>\u202e" for i in token_ids)


class Shown:
    """An engine and an explorer that shows it."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.recorder = engine, Recorder()
        self.explorer = Explorer(decode=decode, recorder=self.recorder)
        engine.subscribe(self.recorder)
        engine.subscribe(self.explorer.push)

    def ask(self, id: int = -1, step: int = -1) -> dict[str, Any]:
        answer = self.explorer._answers.answer("slot_view", id, step)
        plain, places, _ = packed(answer)
        assert json.loads(json.dumps(plain)) == plain and not places
        assert "error" not in answer, answer["error"]
        return answer


def random_run(seed: int, **options: Any) -> Shown:
    """Chunks, shared prefixes, preemptions and graphs, to the end."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3, 4, 8])
    engine = toy_engine(
        48 // size + 8, size, make_runner=LaidOut, max_num_batched_tokens=rng.choice([5, 12, 40]), max_num_seqs=6,
        max_model_len=40, **options,
    )  # fmt: skip
    shown, prefix = Shown(engine), [rng.randrange(900) for _ in range(9)]
    for _ in range(rng.randint(2, 9)):
        prompt = prefix[: rng.randint(0, 9)] + [rng.randrange(900) for _ in range(rng.randint(1, 12))]
        engine.add_request(prompt, SamplingParams(max_tokens=rng.randint(1, 14), ignore_eos=True))
        if rng.random() < 0.5:
            engine.step()
    while engine.has_unfinished:
        engine.step()
    return shown


def compare(told: dict[str, Any], batch: ForwardBatch) -> None:
    """All numbers of an answer that shows everything with the tensors."""
    groups, lines, pads = sorted(told["groups"], key=lambda g: g["row"]), told["lines"], told["num_pads"]
    assert [told["hidden_rows"], told["hidden_tokens"], told["hidden_lines"]] == [0, 0, 0]
    for name, fill in (("ids", 0), ("slots", -1)):
        tensor = batch.input_ids if name == "ids" else batch.slot_mapping
        assert [value for group in groups for value in group[name]] + [fill] * pads == tensor.tolist()
    positions = [group["start"] + group["begin"] + i for group in groups for i in range(len(group["slots"]))]
    assert positions + [0] * pads == batch.positions.tolist()
    ends = [*(line["cu"] for line in lines), told["total"][1:]]
    assert [end[0] for end in ends] == batch.cu_seqlens_q.tolist()
    assert [end[1] for end in ends] == batch.cu_seqlens_k.tolist()
    assert [line["context"] for line in lines] == batch.context_lens.tolist()
    tables = [line["table"] + [-1] * (told["width"] - len(line["table"])) for line in lines]
    assert tables == batch.block_tables.tolist()
    assert (told["num_rows"] + pads, told["block_size"]) == (batch.num_seqs, batch.block_size)


def check_formulas(answers: list[dict[str, Any]]) -> int:
    """Evaluate in node all that widgets/slot_words.js writes out; returns how many formulas that were."""
    done = subprocess.run(["node", FORMULAS], input=json.dumps(answers), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_every_number_is_what_the_runner_was_given() -> None:
    answers, padded, chunks = [], 0, 0
    for seed in range(12):
        shown = random_run(seed)
        batches = shown.engine.runner.laid_out  # type: ignore[attr-defined]
        assert len(batches) == shown.engine.next_step
        for step, batch in enumerate(batches):
            told = shown.ask(-1, step)
            assert told["step"] == step and told["width"] <= MOST_BLOCKS
            compare(told, batch)
            padded += told["num_pads"]
            chunks += sum(not group["samples"] for group in told["groups"])
            answers.append(told)
        assert shown.ask() == shown.ask(-1, len(batches) - 1)
    assert padded > 20 and chunks > 5
    assert check_formulas(answers) > 5000


@pytest.mark.parametrize("overlap", [False, True])
def test_random_workloads_agree_with_the_frame(overlap: bool) -> None:
    """Faults, aborts and steps that overlap: slots, blocks and ids are those of ``frames.slots``."""
    steps, answers = 0, []
    for seed in range(8):
        work = make_workload(seed, overlap=overlap)
        shown = Shown(work.engine)
        run_workload(work)
        first, last = shown.recorder.first_step, shown.recorder.last_step
        assert first is not None and last is not None
        for step in range(first, last + 1, 3):
            told, frame = shown.ask(-1, step), frames.slots(shown.recorder, step)
            groups = told["groups"]
            assert told["hidden_tokens"] == 0
            for name, column in (("slots", "slot"), ("blocks", "block_id"), ("ids", "token_id")):
                values = frame[column].astype(object).where(frame[column].notna(), None)
                assert [value for group in groups for value in group[name]] == values.tolist()
            steps += 1
            answers.append(told)
    assert steps > 50 and check_formulas(answers) > 1000


def test_what_has_left_since_is_still_in_the_batch() -> None:
    shown = random_run(3)
    groups, names = shown.ask()["groups"], shown.recorder.requests
    assert groups and not shown.engine.live
    assert [group["name"] for group in groups] == [names[group["seq_id"]].request_id for group in groups]


def test_nothing_ran_nothing_kept() -> None:
    shown = Shown(toy_engine(8, 4))
    assert shown.ask() == {}
    shown.engine.add_request([1, 2, 3], SamplingParams(max_tokens=1))
    shown.engine.step()
    shown.explorer._answers.read_from(Recorder())
    assert shown.ask() == {"step": 0, "missing": "the record of this step is not kept"}


def test_of_a_large_batch_some_is_shown_and_the_selected_sequence_first() -> None:
    engine = toy_engine(4000, 4, max_num_batched_tokens=9000, max_num_seqs=100)
    shown = Shown(engine)
    for i in range(90):
        engine.add_request([i + 1] * 99 + list(range(3)), SamplingParams(max_tokens=3), request_id=f"r{i}")
    engine.step()
    told = shown.ask()
    sizes = [len(group["slots"]) for group in told["groups"]]
    assert (sum(sizes), max(sizes)) == (MOST_TOKENS, MOST_OF_ROW)
    assert told["hidden_tokens"] == told["num_tokens"] - MOST_TOKENS
    assert (len(told["lines"]), told["hidden_lines"]) == (MOST_ROWS, told["num_rows"] - MOST_ROWS)
    assert told["hidden_rows"] == told["num_rows"] - len(sizes)
    token = 80 * POSITIONS + 97
    told = shown.ask(token)
    first = told["groups"][0]
    positions = range(first["start"] + first["begin"], first["start"] + first["begin"] + len(first["slots"]))
    assert first["seq_id"] == 80 and 97 in positions and told["lines"][-1]["seq_id"] == 80
    assert sum(len(group["slots"]) for group in told["groups"]) == MOST_TOKENS
    assert shown.ask(999 * POSITIONS)["groups"] == shown.ask()["groups"], "a sequence that is not in the batch"
    assert check_formulas([told]) > 500


def test_tokens_of_padding_belong_to_no_row() -> None:
    engine = toy_engine(16, 4, make_runner=TokenGraphRunner)
    shown = Shown(engine)
    engine.add_request(list(range(7)), SamplingParams(max_tokens=2))
    engine.step()
    told = shown.ask()
    assert (told["num_pads"], told["pads_rows"], told["graph_size"]) == (9, False, 16)
    assert told["total"][:2] == [1, 7] and len(told["lines"]) == 1
    assert check_formulas([told]) > 20


def test_text_is_bounded_and_of_one_token() -> None:
    engine = toy_engine(16, 4)
    shown = Shown(engine)
    engine.add_request([5, 6], SamplingParams(max_tokens=2), request_id="<b>\u202e")
    engine.step()
    (group,) = shown.ask()["groups"]
    assert group["texts"] == ["<5>\u202e", "<6>\u202e"] and group["name"] == "<b>\u202e"
    shown.explorer._answers._decode = lambda: None
    assert shown.ask()["groups"][0]["texts"] == [None, None]


def test_the_view_has_the_name_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SlotView(Explorer()).view == "slot_view"
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    session = Session()
    session.load()
    assert isinstance(session.watch("slots"), SlotView)
    session.close()
