"""Greedy tokens of whole engines on a GPU are those of the CPU, whatever the limits, with graphs and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.explore.recorder import Recorder
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.gpu.engines import ROOMY, greedy, make_llm, prompts, run, tokens
from tests.parity import engine_tokens

pytestmark = pytest.mark.gpu

TIGHT: dict[str, Any] = {  # chunks, prefix hits and preemptions
    "block_size": 4,
    "num_kvcache_blocks": 24,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 6,
    "max_model_len": 64,
}
PROMPTS = prompts(30, 9, 1, 17, 30, 22, 5, 16)


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize(
    ("architecture", "head_dim"), [("llama", 64), ("qwen2", 64), ("qwen3", 128), ("qwen3_moe", 128)]
)
def test_with_every_kind_of_pressure(
    architecture: str, head_dim: int, policy: str, enforce_eager: bool, tmp_path: Path
) -> None:
    path = make_toy(tmp_path, architecture, head_dim=head_dim)
    expected, _ = engine_tokens(path, PROMPTS, 14, device="cpu", **TIGHT)
    found, figures = engine_tokens(
        path, PROMPTS, 14, device="cuda", policy=policy, enforce_eager=enforce_eager, **TIGHT
    )
    assert figures["chunked_prefills"] and figures["preemptions"] and figures["hit_tokens"], figures
    assert found == expected


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_long_contexts(block_size: int, enforce_eager: bool, toy: Path) -> None:
    """Contexts of several tiles of keys, over the end of a block in the middle of a completion."""
    limits = {**ROOMY, "block_size": block_size, "num_kvcache_blocks": 4096 // block_size, "max_model_len": 1024}
    asked = prompts(700, 250, 513)
    expected, _ = engine_tokens(toy, asked, 20, device="cpu", **limits)
    assert engine_tokens(toy, asked, 20, device="cuda", enforce_eager=enforce_eager, **limits)[0] == expected


def test_chunks_that_nobody_waits_for(toy: Path) -> None:
    """The host prepares a step while the device is still busy with others: nothing that those read may be changed.

    A chunk that samples no token gives the host nothing to wait for; here the device always lags behind.
    """
    asked = [(prompt, greedy(8)) for prompt in prompts(60, 41)]
    limits = {"max_num_batched_tokens": 8, "block_size": 4}
    with make_llm(toy, "cpu", **limits) as llm:
        expected = tokens(llm, asked)
    with make_llm(toy, **limits) as llm:
        tokens(llm, [(prompts(30)[0][::-1], greedy(2))])  # kernels are compiled
        told: list[Any] = []
        llm.engine.subscribe(told.append)
        seqs = [llm.add_request(*each) for each in asked]
        while llm.has_unfinished:
            torch.cuda._sleep(100_000_000)  # cycles: some 50 ms
            llm.advance()
        assert sum(not any(record.planned.samples) for record in told[1:]) >= 8
        assert sum(record.planned.is_ahead for record in told[1:]) >= 12
        assert [seq.completion_token_ids for seq in seqs] == expected


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize(("architecture", "head_dim"), [("llama", 64), ("qwen3", 128), ("qwen3_moe", 64)])
@pytest.mark.parametrize("pressure", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_overlapped_steps(
    pressure: dict[str, Any], architecture: str, head_dim: int, enforce_eager: bool, tmp_path: Path
) -> None:
    """The same tokens, and the same ends: a completion that stops has one more row in the air, which is dropped."""
    path = make_toy(tmp_path, architecture, head_dim=head_dim)
    stops = SamplingParams(temperature=0, max_tokens=14, stop_token_ids=range(40, 60))
    asked = [(prompt, stops if n % 2 else greedy(14)) for n, prompt in enumerate(PROMPTS)]
    with make_llm(path, "cpu", **pressure) as llm:
        expected = [(seq.completion_token_ids, seq.finish_reason) for seq in run(llm, asked)[0]]
    assert {reason for _, reason in expected} == {"stop", "length"}
    with make_llm(path, enforce_eager=enforce_eager, **pressure) as llm:
        told: list[Any] = []
        llm.engine.subscribe(told.append)
        seqs = [llm.add_request(*each) for each in asked]
        while llm.has_unfinished:
            llm.advance()
        assert [(seq.completion_token_ids, seq.finish_reason) for seq in seqs] == expected
        planned = [record.planned for record in told[1:]]
        assert sum(plan.is_ahead for plan in planned) > len(planned) / 4
        assert any(plan.graph_size for plan in planned if plan.is_ahead) is not enforce_eager


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe"])
def test_recording_changes_no_token(architecture: str, dtype: str, tmp_path: Path) -> None:
    path = make_toy(tmp_path, architecture, head_dim=64)
    asked = [
        (prompt, SamplingParams(temperature=n % 2, max_tokens=20, ignore_eos=True, seed=n))
        for n, prompt in enumerate(prompts(40, 9, 17, 3))
    ]
    found = []
    for is_recorded in (False, True):
        with make_llm(path, dtype=dtype) as llm:
            recorder = Recorder()
            if is_recorded:
                llm.engine.subscribe(recorder)
            outputs = llm.generate([prompt for prompt, _ in asked], [params for _, params in asked], use_tqdm=False)
            found.append([output.token_ids for output in outputs])
            assert bool(recorder.records) is is_recorded
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe"])
def test_16_bits_with_graphs_and_without(architecture: str, dtype: str, tmp_path: Path) -> None:
    """The formats that models come in: every token is one that float32 finds as likely as any, but for rounding."""
    path = make_toy(tmp_path, architecture, head_dim=64)
    asked = [(prompt, greedy(3)) for prompt in prompts(20, 11, 3)]
    found: list[tuple[list[int], int]] = []
    for enforce_eager in (True, False):
        with make_llm(path, dtype=dtype, enforce_eager=enforce_eager) as llm:
            for (prompt, _), said in zip(asked, tokens(llm, asked), strict=True):
                found += [(prompt + said[:count], said[count]) for count in range(3)]
    with make_llm(path, "cpu") as llm:
        for context, token in found:
            (seq,), _ = run(llm, [(context, greedy(1, logprobs=8))])
            assert seq.logprobs is not None
            likely = seq.logprobs[0]
            assert likely.get(token, -torch.inf) > max(likely.values()) - 0.1, f"{token} after {context}"
