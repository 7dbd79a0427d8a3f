"""A model split over processes says what it says whole: every architecture, every way to run a step, on a CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.explore.recorder import Recorder
from nvexplore.generation import GenerationOutput
from nvexplore.llm import LLM
from nvexplore.model_config import ModelConfig
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.runner.tensor_parallel import start_runner
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.paged import Paged, reference_logits, token_ids

OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "block_size": 4, "max_model_len": 96}
PROMPTS = [[32 + token % 90 for token in token_ids(length, seed=length)] for length in (3, 20, 9, 33, 20)]
TOYS: dict[str, dict[str, Any]] = {
    "llama-biases-untied": {
        "architecture": "llama",
        "tied": False,
        "attention_bias": True,
        "mlp_bias": True,
        "num_shards": 3,
    },
    "qwen2": {"architecture": "qwen2", "num_shards": 2},
    "qwen3-4-ranks": {"architecture": "qwen3", "num_key_value_heads": 4},
    "qwen2-4-ranks-2-kv-heads": {"architecture": "qwen2"},
    "qwen3_moe": {"architecture": "qwen3_moe", "decoder_sparse_step": 2},
}


@pytest.fixture(scope="module", params=list(TOYS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    """The same toy whole, and over 2 or 4 processes."""
    toy = make_toy(tmp_path_factory.mktemp("toy"), **TOYS[request.param])
    size = 4 if "4-ranks" in request.param else 2
    with LLM(toy, **OPTIONS) as whole, LLM(toy, tensor_parallel_size=size, **OPTIONS) as split:
        yield whole, split


def said(outputs: list[GenerationOutput]) -> list[Any]:
    return [(each.token_ids, each.finish_reason) for output in outputs for each in output.outputs]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=14, ignore_eos=True),
        SamplingParams(temperature=0.9, max_tokens=10, ignore_eos=True, n=2, seed=4),
        SamplingParams(temperature=0.8, top_p=0.8, top_k=12, repetition_penalty=1.2, max_tokens=10, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=12, stop_token_ids=range(30, 60)),
    ],
    ids=["greedy", "drawn", "controls", "ends"],
)
def test_the_same_tokens(pair: tuple[LLM, LLM], params: SamplingParams) -> None:
    whole, split = pair
    expected = said(whole.generate(PROMPTS, params, use_tqdm=False))
    assert said(split.generate(PROMPTS, params, use_tqdm=False)) == expected
    assert len(expected) == len(PROMPTS) * params.n


def test_log_probabilities(pair: tuple[LLM, LLM]) -> None:
    """They need logits of many positions, some of which no token is drawn from."""
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    outputs = [llm.generate(PROMPTS, params, use_tqdm=False) for llm in pair]
    for one, other in zip(*outputs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.prompt_logprobs is not None and other.prompt_logprobs is not None
        pairs = [*zip(one.outputs[0].logprobs or (), other.outputs[0].logprobs or (), strict=True)]
        pairs += [*zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True)]
        assert len(pairs) == 5 + len(one.prompt_token_ids) - 1
        for right, found in pairs:
            assert right is not None and found is not None and list(right) == list(found)
            assert list(found.values()) == pytest.approx(list(right.values()), abs=1e-4)


def test_each_rank_has_its_share(pair: tuple[LLM, LLM]) -> None:
    """Of rank 0 this process knows: its weights, its heads in the pool, and the memory that they take."""
    whole, split = (llm.runner for llm in pair)
    assert whole is not None and split is not None
    size = split.backend.ranks.size
    attentions = [next(runner.model.decoder_layers()).self_attn for runner in (whole, split)]
    kv_ranks = min(size, attentions[0].num_kv_heads)  # of more ranks several have the same KV head
    assert split.kv_cache.pool.shape[4] * kv_ranks == whole.kv_cache.pool.shape[4]
    assert split.memory.block_bytes * kv_ranks == whole.memory.block_bytes
    q_size, *kv_sizes = attentions[1].qkv_proj.sizes
    assert [q_size * size, *(each * kv_ranks for each in kv_sizes)] == attentions[0].qkv_proj.sizes
    assert attentions[1].o_proj.weight.numel() * size == attentions[0].o_proj.weight.numel()
    assert split.memory.weights < whole.memory.weights


def runner_of(path: Path, **options: Any) -> ModelRunner:
    return start_runner(path, ModelConfig.from_path(path), device=torch.device("cpu"), **options)


def test_logits_of_ragged_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, prefix hits and decode rows in one batch, against transformers; the head's vocabulary is split too."""
    toy = make_toy(tmp_path, "qwen3", tied=False)
    paged = Paged(toy)
    options = {"max_num_batched_tokens": 256, "max_num_seqs": 16, "max_model_len": 128, "block_size": 4}
    paged.runner.close()
    paged.runner = runner_of(toy, tensor_parallel_size=2, num_kvcache_blocks=96, **options)
    paged.free = random.Random(1).sample(range(96), 96)
    try:
        ids = [token_ids(length, seed=length) for length in (21, 30, 9)]
        first, second, third = paged.seq(ids[0]), paged.seq(ids[1]), paged.seq(ids[2])
        found = [[], [], []]  # type: list[list[torch.Tensor]]
        for rows in [((0, 21), (1, 8)), ((1, 10), (2, 4)), ((2, 5), (1, 12))]:
            seqs = [first, second, third]
            for (row, _), logits in zip(rows, paged.logits(*((seqs[row], count) for row, count in rows)), strict=True):
                found[row].append(logits)
        for each, parts in zip(ids, found, strict=True):
            torch.testing.assert_close(torch.cat(parts), reference_logits(toy, each), atol=2e-4, rtol=2e-4)
    finally:
        paged.runner.close()


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_overlap_and_preemption(policy: str, tmp_path: Path) -> None:
    """Ids that a step draws feed the next on every rank; a preempted sequence is a prompt again (N07)."""
    toy = make_toy(tmp_path, "qwen3")
    params = [SamplingParams(temperature=0.7 * (n % 2), max_tokens=30, ignore_eos=True, seed=n) for n in range(5)]
    options = OPTIONS | {"num_kvcache_blocks": 30, "max_num_batched_tokens": 24, "policy": policy}
    with LLM(toy, **options) as llm:
        expected = said(llm.generate(PROMPTS, params, use_tqdm=False))
    for overlap in (False, True):
        recorder = Recorder()
        with LLM(toy, tensor_parallel_size=2, overlap=overlap, **options) as llm, llm.engine.subscribe(recorder):
            assert said(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        planned = [record.planned for record in recorder.records]
        assert any(plan.preempted.seq_id for plan in planned)
        assert any(plan.is_ahead for plan in planned) is overlap


@pytest.mark.parametrize(
    ("size", "overrides", "message"),
    [
        (3, {}, "tensor_parallel_size=3: vocab_size=272: must be a multiple of the 3 ranks"),
        (
            2,
            {"num_attention_heads": 6, "num_key_value_heads": 3},
            "tensor_parallel_size=2: num_key_value_heads=3: must be a multiple of the 2 ranks, or they of it",
        ),
        (2, {"intermediate_size": 127}, "tensor_parallel_size=2: gate_proj=127: must be a multiple of the 2 ranks"),
        (0, {}, "tensor_parallel_size=0: input should be greater than or equal to 1"),
    ],
)
def test_what_does_not_divide_is_refused(size: int, overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    toy = make_toy(tmp_path, "qwen3", **overrides)
    with pytest.raises(ValueError, match=r"must be|should be") as refusal:
        LLM(toy, tensor_parallel_size=size, **OPTIONS)
    assert str(refusal.value) == message


def test_two_engines_and_an_applications_own_group(tmp_path: Path) -> None:
    """Each engine has processes of its own; torch's default group stays whose it is."""
    toy = make_toy(tmp_path, "llama")
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'own'}", rank=0, world_size=1)
    try:
        with LLM(toy, **OPTIONS) as whole:
            expected = said(whole.generate(PROMPTS, params, use_tqdm=False))
        with (
            LLM(toy, tensor_parallel_size=2, **OPTIONS) as one,
            LLM(toy, tensor_parallel_size=2, **OPTIONS) as other,
        ):
            for llm in (one, other, one):
                assert said(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()
