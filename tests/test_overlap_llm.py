"""Overlapped runs of real (toy) models give the tokens that single steps give, whatever the requests ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.engine.events import StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.llm import LLM
from nvexplore.runner.forward_batch import build_forward_batch
from nvexplore.runner.launched import LaunchedBatch
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.paged import token_ids

PROMPTS = [[32 + token % 90 for token in token_ids(length, seed=length)] for length in (3, 20, 9, 33)]
ASKED: dict[str, list[SamplingParams]] = {
    "greedy": [SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)] * 4,
    "drawn, with several samples": [SamplingParams(max_tokens=9, n=2, seed=7)] * 4,
    "ends found late": [SamplingParams(temperature=0, max_tokens=20, stop_token_ids=range(30, 60))] * 4,
    "no end before min_tokens": [
        SamplingParams(temperature=0, max_tokens=20, min_tokens=7, stop_token_ids=range(30, 90))
    ]
    * 4,
    "stop strings": [SamplingParams(temperature=0, max_tokens=20, stop=list("abcdefg"))] * 4,
    "filters": [SamplingParams(temperature=0.8, top_p=0.7, top_k=9, max_tokens=8, ignore_eos=True)] * 4,
    "penalties in some": [
        SamplingParams(temperature=0, max_tokens=9 + 4 * n, ignore_eos=True, repetition_penalty=1.3 if n == 2 else 1)
        for n in range(4)
    ],
    "log probabilities in some": [
        SamplingParams(temperature=0, max_tokens=6 + 4 * n, ignore_eos=True, logprobs=2 if n == 1 else None)
        for n in range(4)
    ],
}
OPTIONS: dict[str, Any] = {"device": "cpu", "block_size": 4, "max_num_seqs": 6, "max_model_len": 128}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("overlap"), "qwen3")


def run(path: Path, params: list[SamplingParams], **options: Any) -> tuple[list[Any], list[StepRecord]]:
    """What each prompt gave, and the records."""
    with LLM(path, **OPTIONS | options) as llm:
        recorder = Recorder()
        with llm.engine.subscribe(recorder):
            prompts = [PROMPTS[n % len(PROMPTS)] for n in range(len(params))]
            outputs = llm.generate(prompts, params, use_tqdm=False)
        given = [
            (each.token_ids, each.text, each.finish_reason, each.stop_reason, each.logprobs)
            for output in outputs
            for each in output.outputs
        ]
        return given, recorder.records


ASKED["all of them"] = [params for name in ASKED for params in ASKED[name][2:3]]
ROOMY, CHUNKS = {"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 8, "policy": "mixed"}
TIGHT = {"num_kvcache_blocks": 18, "max_num_batched_tokens": 16}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        *((ROOMY, name) for name in ASKED),
        *((each, name) for each in (CHUNKS, TIGHT) for name in ("greedy", "all of them")),
    ],
)
def test_overlapped_steps_give_the_same(options: dict[str, Any], name: str, toy: Path) -> None:
    expected, single = run(toy, ASKED[name], overlap=False, **options)
    found, records = run(toy, ASKED[name], overlap=True, **options)
    assert found == expected
    assert not any(record.planned.is_ahead for record in single)
    assert any(record.planned.is_ahead for record in records)
    reasons = {record.planned.sync_reason for record in records}
    if name in ("penalties in some", "log probabilities in some", "all of them"):
        assert "penalties or log probabilities" in reasons
        for planned in (record.planned for record in records if record.planned.is_ahead):
            assert not planned.sync_reason
    else:
        assert reasons <= {None, "blocks that the step before may free"}


def test_a_stream_overlaps_and_shows_no_token_before_it_is_known(toy: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=15, ignore_eos=True)
    with LLM(toy, **OPTIONS, overlap=True) as llm:
        streamed = [token for delta in llm.stream(PROMPTS[1], params) for token in delta.token_ids]
    with LLM(toy, **OPTIONS, overlap=False) as llm:
        assert llm.generate(PROMPTS[1], params, use_tqdm=False)[0].token_ids == streamed


def test_a_stream_that_is_left_leaves_nothing_behind(toy: Path) -> None:
    with LLM(toy, **OPTIONS, overlap=True) as llm:
        stream = llm.stream(PROMPTS[1], SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
        next(stream)
        del stream
        assert not llm.has_unfinished and len(llm.engine.blocks.free) == llm.engine.blocks.num_blocks


def test_ids_that_are_not_known_are_fed_from_the_rows_before(toy: Path) -> None:
    """A batch whose rows stand in another order than those that yield their tokens."""
    with LLM(toy, **OPTIONS) as llm:
        runner = llm.runner
        assert runner is not None
        seqs = [llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=3)) for prompt in PROMPTS[:3]]
        engine = llm.engine
        batch = engine.scheduler.schedule(0)
        launched = runner.launch(batch, None)
        engine._undo.commit()
        for seq in seqs:
            seq.num_computed_tokens = seq.num_tokens
        rows = type(batch)()
        rows.add_decodes([seqs[2], seqs[0]])
        fed = build_forward_batch(rows, 4, previous=launched)
        assert fed.input_ids.tolist() == [-3, -1]
        runner.backend.feed(begun := runner.backend.begin(fed))
        ids = launched.wait()
        assert isinstance(ids, list)
        assert begun.input_ids.tolist() == [ids[2], ids[0]]
        runner.backend.last_ids = torch.tensor([5, 6, -1])  # no token could be chosen for the third
        fed.input_ids.copy_(torch.tensor([-3, -2]))
        runner.backend.feed(fed)
        assert fed.input_ids.tolist() == [0, 6]


def test_what_a_launch_gives_can_be_asked_for_again(toy: Path) -> None:
    with LLM(toy, **OPTIONS) as llm:
        assert llm.runner is not None
        seq = llm.add_request(PROMPTS[0], SamplingParams(temperature=0, max_tokens=3))
        launched = llm.runner.launch(llm.engine.scheduler.schedule(0), None)
        llm.engine._undo.commit()
        assert isinstance(launched, LaunchedBatch)
        assert launched.seqs == [seq] and launched.stand_in(seq) == -1
        assert launched.wait() == launched.wait()
