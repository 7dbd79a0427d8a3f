"""The memory view: slots counted against the pool itself, and whether one more sequence fits against the engine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import ipywidgets
import pytest

from nvexplore.engine.engine import Engine
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State
from nvexplore.notebook.answers import packed
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.memory_view import MemoryView, need_of, slots_in_use
from nvexplore.notebook.session import Session
from nvexplore.runner.memory_ledger import MemoryLedger
from nvexplore.sampling_params import SamplingParams
from tests.comms import recorded_comms
from tests.fakes import toy_engine
from tests.notebook_fakes import FakeLLM

LEDGER = MemoryLedger(
    device="toy <b>", weights=1000, block_bytes=64, num_blocks=16, num_blocks_from="1,024 bytes available / 64 = 16"
)


@pytest.fixture(autouse=True)
def comms() -> Iterator[None]:
    with recorded_comms():
        yield
        ipywidgets.Widget.close_all()


def busy(seed: int, steps: int) -> Engine:
    """Some steps of a random run: shared prefixes, chunks, preemptions, cached blocks."""
    rng = random.Random(seed)
    engine = toy_engine(rng.randint(10, 24), 4, max_num_batched_tokens=rng.choice([5, 12]), max_model_len=40)
    prefix = [rng.randrange(900) for _ in range(9)]
    for _ in range(steps):
        if rng.random() < 0.4:
            prompt = prefix[: rng.randint(0, 9)] + [rng.randrange(900) for _ in range(rng.randint(1, 12))]
            engine.add_request(prompt, SamplingParams(max_tokens=rng.randint(1, 14), ignore_eos=True))
        if engine.has_unfinished:
            engine.step()
    return engine


def ask(engine: Engine, id: int, memory: MemoryLedger | None = None) -> dict[str, Any]:
    recorder = Recorder()
    explorer = Explorer(recorder=recorder, memory=memory)
    recorder.push(engine.snapshot())
    explorer.push(engine.snapshot())
    answer = explorer._answers.answer("memory_view", id)
    plain, _, _ = packed(answer)
    assert json.loads(json.dumps(plain)) == plain
    return answer


def test_slots_are_those_of_the_pool() -> None:
    """Slot by slot: what is computed, what is known, what is neither."""
    unused = due = shared = 0
    for seed in range(60):
        engine = busy(seed, 25)
        held, known, blocks = set[int](), set[int](), set[int]()
        for seq in engine.live.values():
            blocks.update(seq.block_table)
            for position in range(min(len(seq.token_ids), len(seq.block_table) * 4)):
                slot = seq.block_table[position // 4] * 4 + position % 4
                known.add(slot)
                if position < seq.num_computed_tokens:
                    held.add(slot)
        told = slots_in_use(State(engine.snapshot()))
        assert told == {
            "slots": len(blocks) * 4,
            "held": len(held),
            "due": len(known - held),
            "unused": len(blocks) * 4 - len(known),
        }
        unused, due = unused + told["unused"], due + told["due"]
        shared += any(count > 1 for count in engine.blocks.ref_count)
    assert unused > 20 and due > 20 and shared > 5


def test_what_fits_is_admitted_and_evicts_as_many_as_was_said() -> None:
    """Into an engine where nobody runs or waits: a prompt of that length, of which nothing is cached."""
    verdicts = {"fits": 0, "evicts": 0, "never": 0}
    for seed in range(40):
        engine = busy(seed, 12)
        while engine.has_unfinished:
            engine.step()
        length = random.Random(seed).randint(1, 38)
        need = need_of(State(engine.snapshot()), length)
        assert need["blocks"] == engine.limits.blocks_for(length) and need["free"] == engine.limits.num_blocks
        if need["blocks"] > need["free"]:
            verdicts["never"] += 1
            with pytest.raises(ValueError, match="block"):
                engine.add_request([990] * length, SamplingParams(max_tokens=1))
            continue
        engine.add_request([990 + i % 7 for i in range(length)], SamplingParams(max_tokens=1))
        record = engine.step(want_record=True).record
        assert record is not None
        assert record.planned.blocks.kind.count("allocated") == need["blocks"]
        assert record.planned.blocks.kind.count("evicted") == need["evicted"]
        verdicts["evicts" if need["evicted"] else "fits"] += 1
    assert verdicts["fits"] > 5 and verdicts["evicts"] > 5


def test_a_sequence_that_does_not_fit_now() -> None:
    engine = toy_engine(8, 4, max_num_seqs=4)
    engine.add_request(list(range(20)), SamplingParams(max_tokens=4))
    engine.step()
    told = ask(engine, 17)
    assert told["need"] == {"length": 17, "blocks": 5, "free": 3, "evicted": 0, "waiting": 0, "running": 1}
    assert told["slots"] == {"slots": 20, "held": 20, "due": 0, "unused": 0}
    assert ask(engine, 0)["need"] is ask(engine, -1)["need"] is None


def test_the_ledger_and_none() -> None:
    engine = toy_engine(16, 4)
    assert ask(engine, 1)["ledger"] is None
    ledger = ask(engine, 1, LEDGER)["ledger"]
    assert (ledger["pool"], ledger["num_blocks_from"]) == (1024, LEDGER.num_blocks_from)
    assert {name: value for name, value in ledger.items() if value is None} == dict.fromkeys(
        ("total", "utilization", "step_peak", "others", "graphs")
    )


def test_a_huge_length_costs_no_more_than_the_free_list() -> None:
    engine = toy_engine(16, 4)
    assert ask(engine, 2**31 - 1)["need"]["blocks"] == 2**29


def test_before_anything_runs_and_the_name_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer()
    assert explorer._answers.answer("memory_view", 5) == {}
    assert MemoryView(explorer).view == "memory_view"
    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    session = Session()
    session.load()
    assert isinstance(session.watch("memory"), MemoryView)
    session.close()
