"""How long ago each block was written or freed: what the block view is told of a step."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.explore.recorder import Recorder
from nvexplore.notebook import block_view
from nvexplore.notebook.answers import Answers
from nvexplore.notebook.feed import Feed
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine


def watched(**options: Any) -> tuple[Engine, Answers]:
    """Two requests in 40 blocks of 4 tokens, and who answers about them."""
    engine, feed, recorder = toy_engine(40, 4), Feed(lambda message: None), Recorder(**options)
    engine.subscribe(recorder.push)
    engine.subscribe(feed.push)
    for i, max_tokens in enumerate((3, 30)):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        engine.add_request([10 * i + k for k in range(9)], params)
    return engine, Answers(feed, recorder, lambda: None)


def ages(answers: Answers, step: int = -1) -> dict[int, int]:
    told = answers.answer("block_view", -1, step)
    blocks, values = array("I"), array("H")
    blocks.frombytes(told["blocks"])
    values.frombytes(told["ages"])
    return dict(zip(blocks, values, strict=True))


def test_a_block_is_as_old_as_its_last_write_or_its_end() -> None:
    engine, answers = watched()
    tables: dict[int, list[int]] = {}
    for _ in range(20):
        tables |= {seq.seq_id: list(seq.block_table) for seq in engine.live.values() if seq.block_table}
        engine.step()
    ended = max(record.step for record in answers.recorder.records if 0 in record.committed.finished_seq_id)
    (seq,) = engine.live.values()
    found = ages(answers)
    assert set(found) == {*tables[0], *seq.block_table}
    assert {found[block] for block in tables[0]} == {19 - ended}  # freed at its end
    # Step 0 wrote the prompt; from then on each step writes one token, four a block.
    size, newest = 4, 19
    for index, block in enumerate(seq.block_table):
        last_position = min((index + 1) * size, seq.num_computed_tokens) - 1
        assert found[block] == newest - max(0, last_position - 8)
    assert answers.answer("block_view", -1)["num_steps"] == 20
    past = ages(answers, ended)
    assert {past[block] for block in tables[0]} == {0}


def test_only_so_far_back_and_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, answers = watched(max_steps=8, snapshot_every=1)
    for _ in range(20):
        engine.step()
    kept = len(answers.recorder)
    assert answers.answer("block_view", -1)["num_steps"] == kept < 20
    assert max(ages(answers).values()) < kept
    monkeypatch.setattr(block_view, "LOOK_BACK", 3)
    told = answers.answer("block_view", -1)
    assert told["num_steps"] == 3 and max(ages(answers).values()) < 3
    monkeypatch.setattr(block_view, "MOST_BLOCKS", 1)
    assert list(ages(answers).values()) == [0]


def test_nothing_is_told_where_nothing_ran_or_is_kept() -> None:
    engine, answers = watched()
    assert answers.answer("block_view", -1) == {}
    engine.step()
    assert len(ages(answers)) == 6
    assert "step 5" in answers.answer("block_view", -1, 5)["error"]
