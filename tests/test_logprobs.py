"""Log probabilities of chosen and of prompt tokens against transformers' logits, in chunks, by the cache, preempted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import LLM, GenerationOutput, SamplingParams
from nvexplore.layers.logprobs import token_logprobs
from nvexplore.toy import make_toy
from tests.paged import reference_logits

PROMPTS = ["To be, or not to be", "that is", "the question: whether"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_toy(tmp_path_factory.mktemp("logprobs") / "toy", "qwen3")


def check(output: GenerationOutput, path: Path, count: int | None, prompt_count: int | None) -> None:
    """Every number against one pass without a cache over prompt and completion."""
    ids = output.prompt_token_ids + output.token_ids
    expected = reference_logits(path, ids).log_softmax(-1)
    told: list[Any] = [None] * len(ids)
    if prompt_count is None:
        assert output.prompt_logprobs is None
    else:
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        told[: len(output.prompt_token_ids)] = output.prompt_logprobs
    if count is not None:
        assert output.logprobs is not None
        told[len(output.prompt_token_ids) :] = output.logprobs
    for position, entries in enumerate(told):
        if entries is None:
            continue
        row, asked = expected[position - 1], count if position >= len(output.prompt_token_ids) else prompt_count
        top = row.topk(asked or 0).indices.tolist()
        assert list(entries)[:asked] == top
        assert set(entries) == {*top, ids[position]}
        for token_id, value in entries.items():
            assert math.isclose(value, float(row[token_id]), abs_tol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 4},
        {"block_size": 2, "num_kvcache_blocks": 17, "max_num_batched_tokens": 8},  # preempts
        {"enable_prefix_caching": False, "policy": "mixed"},
    ],
    ids=["plain", "chunks", "preempted", "mixed"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_all_numbers_are_the_models_own(toy: Path, options: dict[str, Any], temperature: float) -> None:
    with LLM(toy, **{"block_size": 4, "num_kvcache_blocks": 64, **options}) as llm:
        asked = [(3, 2), (0, None), (None, 0), (2, 5)]
        params = [
            # What is told is before penalties and temperature.
            SamplingParams(temperature=temperature, max_tokens=8, logprobs=a, prompt_logprobs=b, presence_penalty=0.5)
            for a, b in asked
        ]
        outputs = llm.generate([*PROMPTS, PROMPTS[0]], params, use_tqdm=False)
        for output, (count, prompt_count) in zip(outputs, asked, strict=True):
            check(output, toy, count, prompt_count)
        if options.get("num_kvcache_blocks"):
            plain = [SamplingParams(temperature=temperature, max_tokens=8, presence_penalty=0.5)] * 3
            assert [o.finish_reason for o in llm.generate(PROMPTS, plain, use_tqdm=False)] == ["length"] * 3


def test_asking_changes_no_token(toy: Path) -> None:
    with LLM(toy, num_kvcache_blocks=64) as llm:
        for temperature in (0.0, 0.9):
            ids = [
                [o.token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)]
                for params in (
                    SamplingParams(temperature=temperature, seed=1, max_tokens=8),
                    SamplingParams(temperature=temperature, seed=1, max_tokens=8, logprobs=3, prompt_logprobs=1),
                )
            ]
            assert ids[0] == ids[1]


def test_v37_the_list_is_full_whatever_the_cache_holds(toy: Path) -> None:
    """vllm#8268, #5344, PR#41411: short lists or an assertion after a prefix hit, or where a prompt runs in chunks."""
    prompt, params = list(range(50, 59)), SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
    for budget in (512, 4, 1):
        with LLM(toy, block_size=4, num_kvcache_blocks=32, max_num_batched_tokens=budget) as llm:
            for _ in range(2):
                (output,) = llm.generate([prompt], params, use_tqdm=False)
                assert len(output.prompt_logprobs or ()) == 9 and output.num_cached_tokens == 0
                check(output, toy, None, 1)
            (plain,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
            assert plain.num_cached_tokens == 8 and plain.token_ids == output.token_ids


def test_more_than_the_vocabulary_is_all_of_it(toy: Path) -> None:
    with LLM(toy, num_kvcache_blocks=16) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=10_000, prompt_logprobs=10_000)
        (output,) = llm.generate(["ab"], params, use_tqdm=False)
        assert len(output.logprobs[0]) == len(output.prompt_logprobs[1]) == 272  # type: ignore[index, arg-type]
        assert math.isclose(sum(map(math.exp, output.logprobs[0].values())), 1, abs_tol=1e-5)  # type: ignore[index]


def test_n_samples_tell_their_own_and_the_first_tells_the_prompts(toy: Path) -> None:
    with LLM(toy, num_kvcache_blocks=64) as llm:
        params = SamplingParams(max_tokens=5, n=3, seed=2, logprobs=1, prompt_logprobs=0)
        (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
        check(output, toy, 1, 0)
        for other in output.others:
            check(other, toy, 1, None)


def test_ties_and_rows_that_are_not_finite() -> None:
    logits = torch.tensor([[0.0, 1, 1, 1], [math.nan, 0, 0, 0], [0.0, -math.inf, 0, 0]])
    first, second, third = token_logprobs(logits, [3, 0, 1], [2, 1, 9])
    assert list(first) == [1, 2, 3]
    assert math.isclose(first[1], 1 - math.log(1 + 3 * math.e), abs_tol=1e-6)
    assert all(math.isnan(value) for value in second.values())
    assert list(third) == [0, 2, 3, 1] and third[1] == -math.inf
    assert token_logprobs(logits[:1], [2], [0]) == [{2: first[2]}]
