"""Whole toy models with the GPU's backend, interpreted: the tokens are those of the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.backends import cuda, grouped_experts
from nvexplore.backends.kernels.launch import launches_early
from nvexplore.runner import model_runner
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.gpu.engines import check_written, greedy, make_llm, poison_last_block, run, tokens
from tests.kernels.backends import Interpreted
from tests.kernels.fake_graphs import use_fake_graphs
from tests.kernels.float8 import use_exact_float8
from tests.kernels.places import Place
from tests.paged import Paged, token_ids
from tests.parity import engine_tokens

PROMPTS = [[*range(40, 49)], [*range(40, 49), 7], [70, 71, 72]]
TIGHT: dict[str, Any] = {  # chunks, a prefix hit and a preemption
    "block_size": 4,
    "num_kvcache_blocks": 6,
    "max_num_batched_tokens": 7,
    "max_num_seqs": 3,
    "max_model_len": 20,
}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on engines on the CPU compute with the interpreted kernels, and with graphs that are none."""
    from nvexplore.backends.kernels.launch import IS_INTERPRETED

    if not IS_INTERPRETED:
        pytest.skip("a GPU runs the kernels here")

    def create(device: torch.device, dtype: torch.dtype, *args: Any, **options: Any) -> Interpreted:
        return Interpreted(dtype)

    monkeypatch.setattr(model_runner, "create_backend", create)
    use_fake_graphs(monkeypatch)


@pytest.mark.parametrize(
    ("architecture", "policy"),
    [("llama", "prefill_first"), ("qwen2", "mixed"), ("qwen3", "mixed"), ("qwen3_moe", "prefill_first")],
)
def test_greedy_tokens_are_those_of_the_cpu(
    architecture: str, policy: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = make_toy(tmp_path, architecture, num_layers=1)
    options = {**TIGHT, "device": "cpu", "policy": policy, "enforce_eager": architecture != "qwen3"}
    expected, figures = engine_tokens(path, PROMPTS, 4, **options)
    assert figures["chunked_prefills"] and figures["preemptions"] and figures["hit_tokens"], figures
    request.getfixturevalue("interpreted")
    assert engine_tokens(path, PROMPTS, 4, **options) == (expected, figures)


ODD = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20}


def test_experts_of_odd_sizes_in_graphs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Rows of padding go to experts too, and change no other row."""
    path = make_toy(tmp_path, "qwen3_moe", num_layers=1, **ODD)
    options = {**TIGHT, "device": "cpu", "policy": "mixed"}
    expected = engine_tokens(path, PROMPTS, 4, **options)
    request.getfixturevalue("interpreted")
    assert engine_tokens(path, PROMPTS, 4, **options)[0] == expected[0]


@pytest.mark.parametrize("sizes", [{}, ODD], ids=["toy", "odd"])
def test_logits_of_experts(
    sizes: dict[str, int], place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt, then decode rows beside another prompt, in each format; where torch has no product of it by ours."""
    path = make_toy(tmp_path, "qwen3_moe", num_layers=2, **sizes)
    multiply, seen = grouped_experts.grouped_linear, []

    def spied(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return multiply(x, *rest)

    monkeypatch.setattr(grouped_experts, "grouped_linear", spied)
    found = []
    for device, dtype in (("cpu", torch.float32), ("cpu", place.dtype), (str(place.device), place.dtype)):
        if len(found) == 2 and device == "cpu":
            monkeypatch.setattr(model_runner, "create_backend", lambda *_, **__: Interpreted(place.dtype))
        name = str(dtype).removeprefix("torch.")
        paged = Paged(path, device=device, dtype=name, enforce_eager=True)
        first, second = paged.seq(token_ids(19, seed=1)), paged.seq(token_ids(4, seed=2))
        logits = paged.logits((first, 18)) + paged.logits((first, 1), (second, 4))
        found.append(torch.cat(logits).cpu().double())
        paged.runner.close()
    exact, plain, ours = found
    if place.dtype is not torch.bfloat16:
        assert len(seen) >= 8 and set(seen) == {place.dtype}, "two layers, two products, two steps"
    limit = 1e-4 if place.dtype is torch.float32 else 1.5 * float((plain - exact).abs().max())
    assert exact.abs().max() > 1 and (ours - exact).abs().max() <= limit


def test_greedy_tokens_with_a_pool_of_8_bits(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, a prefix hit and a preemption again: what was kept in 8 bits is what is computed with in every step."""
    path = make_toy(tmp_path, "llama", num_layers=1)
    options = {**TIGHT, "device": "cpu", "kv_cache_dtype": "fp8"}
    expected = engine_tokens(path, PROMPTS, 4, **options)
    request.getfixturevalue("interpreted")
    use_exact_float8(monkeypatch)
    assert engine_tokens(path, PROMPTS, 4, **options) == expected
    roomy = {**options, "num_kvcache_blocks": 16, "max_num_batched_tokens": 64, "enforce_eager": True}
    assert engine_tokens(path, PROMPTS, 4, **roomy)[0] == expected[0]


def test_a_graph_with_rows_of_padding(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """V24, N12: three rows, then two, then one, in graphs of 4, 2 and 1; some of them ask the sampler for more."""
    path = make_toy(tmp_path, "llama", num_layers=1)
    asked = [
        ([60, 61, 62, 63, 64], greedy(4, repetition_penalty=1.3)),
        ([70, 71], SamplingParams(temperature=1, max_tokens=3, ignore_eos=True, top_k=1)),
        ([72, 73, 74], greedy(2)),
    ]
    limits = {"block_size": 4, "num_kvcache_blocks": 16, "max_model_len": 16, "max_num_seqs": 4}
    with make_llm(path, "cpu", **limits) as llm:
        expected = tokens(llm, asked)
    request.getfixturevalue("interpreted")
    with make_llm(path, "cpu", **limits) as llm:
        poison_last_block(llm)
        seqs, records = run(llm, asked)
        assert [seq.completion_token_ids for seq in seqs] == expected
        check_written(llm, records)
        how = [(r.planned.graph_size, r.planned.padding, r.planned.eager_reason) for r in records]
        assert how == [(16, 6, None), (4, 1, None), (2, 0, None), (1, 0, None)]
    assert llm.is_closed


def test_small_graphs_are_launched_early(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the backend's limit, which is 2 here; larger graphs, and what is no graph, are not."""
    path = make_toy(tmp_path, "llama", num_layers=1)
    request.getfixturevalue("interpreted")
    seen: set[tuple[int, bool]] = set()
    embedding = Interpreted.embedding

    def spied(self: Interpreted, input_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.add((len(input_ids), launches_early()))
        return embedding(self, input_ids, *rest)

    monkeypatch.setattr(Interpreted, "embedding", spied)
    monkeypatch.setattr(cuda, "most_rows", lambda device: 2)
    asked = [(prompt, greedy(n + 2)) for n, prompt in enumerate(PROMPTS)]
    limits = {"block_size": 4, "num_kvcache_blocks": 16, "max_model_len": 16, "max_num_seqs": 4}
    for enforce_eager, early in ((False, {(1, True), (2, True), (4, False), (16, False)}), (True, set())):
        seen.clear()
        with make_llm(path, "cpu", enforce_eager=enforce_eager, **limits) as llm:
            tokens(llm, asked)
        assert early <= seen and {count for count, is_early in seen if is_early} == {
            count for count, _ in early if count < 3
        }


def test_draws_in_a_graph_and_without(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Equal seeds, equal tokens, in whatever row."""
    path = make_toy(tmp_path, "qwen3", num_layers=1)
    request.getfixturevalue("interpreted")
    drawn = [SamplingParams(temperature=1, max_tokens=3, ignore_eos=True, seed=seed) for seed in (5, 6, 5)]
    found = []
    for enforce_eager in (True, False):
        with make_llm(path, "cpu", max_num_seqs=3, max_model_len=16, enforce_eager=enforce_eager) as llm:
            found.append(tokens(llm, [([70, 71, 72], params) for params in drawn]))
    assert found[0] == found[1]
    assert found[0][0] == found[0][2] != found[0][1]
