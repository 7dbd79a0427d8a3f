"""Overlapped decode steps in graphs: what a step has drawn feeds the next, without the host in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.backends.graphs import Graphs
from nvexplore.backends.kernels.feed_ids import feed_ids
from nvexplore.engine.events import Planned
from nvexplore.llm import LLM
from nvexplore.runner import model_runner
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.kernels.backends import Interpreted
from tests.kernels.fake_graphs import use_fake_graphs
from tests.paged import token_ids

PROMPTS = [[32 + token % 90 for token in token_ids(length, seed=length)] for length in (3, 9, 5)]
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "block_size": 4, "num_kvcache_blocks": 64}
OPTIONS |= {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 64}


@pytest.mark.parametrize("count", [1, 5, 1500])
def test_feed_ids(count: int, device: torch.device) -> None:
    ids = torch.randint(0, 900, (count,), dtype=torch.int32)
    last = torch.randint(0, 900, (count,))
    last[0] = -1  # no token could be chosen
    fed = torch.rand(count) < 0.5
    fed[0] = True
    rows = torch.randperm(count).to(torch.int32)
    rows[0] = 0
    given = torch.where(fed, -1 - rows, ids).to(device)
    feed_ids(given, last.to(device))
    assert given.cpu().tolist() == torch.where(fed, last[rows.long()].clamp(min=0).to(torch.int32), ids).tolist()


@pytest.mark.parametrize(
    ("params", "enforce_eager"),
    [
        (SamplingParams(temperature=0.9, top_k=5, max_tokens=3, ignore_eos=True), False),
        (SamplingParams(temperature=0, max_tokens=6, stop_token_ids=range(30, 70)), False),
        (SamplingParams(temperature=0, max_tokens=5, stop_token_ids=range(30, 70)), True),
    ],
    ids=["filtered-graphs", "late ends-graphs", "late ends-eager"],
)
def test_overlapped_steps_of_the_gpus_backend(
    params: SamplingParams, enforce_eager: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They give what single steps give, of the CPU's backend where tokens are not drawn."""
    toy = make_toy(tmp_path / "toy", "llama", num_layers=1)

    def run(overlap: bool) -> tuple[list[Any], list[Planned]]:
        told: list[Any] = []
        with (
            LLM(toy, **OPTIONS, overlap=overlap, enforce_eager=enforce_eager) as llm,
            llm.engine.subscribe(told.append),
        ):
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        tokens = [each.token_ids for output in outputs for each in output.outputs]
        return tokens, [record.planned for record in told[1:]]

    def interpret() -> None:
        use_fake_graphs(monkeypatch)
        monkeypatch.setattr(model_runner, "create_backend", lambda *given, **options: Interpreted(torch.float32))

    if params.temperature:  # the CPU's draws are others
        interpret()
    expected, single = run(overlap=False)
    if not params.temperature:
        interpret()
    found, planned = run(overlap=True)
    assert found == expected
    assert any(plan.is_ahead for plan in planned) and not any(plan.is_ahead for plan in single)
    assert any(plan.graph_size is not None for plan in planned) is not enforce_eager


def test_graphs_are_captured_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is NaN here: no row of padding may get any of it."""
    toy = make_toy(tmp_path / "toy", "qwen3", num_layers=2)
    use_fake_graphs(monkeypatch)
    monkeypatch.setattr(model_runner, "create_backend", lambda *given, **options: Interpreted(torch.float32))
    results: list[tuple[int, torch.Tensor]] = []
    run = Graphs._run

    def noticed(self: Graphs, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits, ids = run(self, model, batch)
        results.append((batch.num_tokens, logits))
        return logits, ids

    monkeypatch.setattr(Graphs, "_run", noticed)
    with LLM(toy, **OPTIONS | {"max_num_seqs": 16}):
        assert [size for size, _ in results] == [16, 16, 8, 8, 4, 4, 2, 2, 1, 1, 16, 16]
    assert all(bool(logits.isfinite().all()) for _, logits in results)


@pytest.mark.parametrize("max_num_seqs", [3, 16])
def test_small_prompts_in_graphs(max_num_seqs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens as a graph has rows, and fewer; chunks, and decode rows beside prompts; larger steps."""
    toy = make_toy(tmp_path / "toy", "qwen3", num_layers=1)
    options = OPTIONS | {"max_num_seqs": max_num_seqs, "policy": "mixed", "max_num_batched_tokens": 24}
    prompts = [PROMPTS[0], PROMPTS[2], PROMPTS[0][::-1], [*PROMPTS[1], *PROMPTS[1], *PROMPTS[0], 70]]
    params = [SamplingParams(temperature=0, max_tokens=3 + n, ignore_eos=True) for n in range(len(prompts))]
    with LLM(toy, **options) as llm:
        expected = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    use_fake_graphs(monkeypatch)
    monkeypatch.setattr(model_runner, "create_backend", lambda *given, **kwargs: Interpreted(torch.float32))
    with LLM(toy, **options) as llm:
        for prompt, each in zip(prompts, params, strict=True):
            llm.add_request(prompt, each, request_id=str(len(llm.engine.live)))
        seqs, records = list(llm.engine.live.values()), list(llm.steps())
    assert [seq.completion_token_ids for seq in seqs] == expected
    prefills = [record.planned for record in records if any(record.planned.is_prefill)]
    graphs = [plan for plan in prefills if plan.graph_size]
    assert graphs and all(sum(plan.count) + (plan.padding or 0) == plan.graph_size == 16 for plan in graphs)
    larger = [plan for plan in prefills if not plan.graph_size]
    assert larger and all(sum(plan.count) > 16 and plan.eager_reason == "prefill" for plan in larger)
