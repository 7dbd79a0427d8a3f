"""Public bug reports about samplers, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Volumes and references
stand in test_sampler.py and test_controls.py; what ends a completion in test_request_reports.py.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import LLM, SamplingParams
from nvexplore.layers.sampler import sample, uniforms_of
from nvexplore.runner.sample_keys import sample_key
from tests.reports.common import GREEDY, toy_llm
from tests.test_controls import controlled, controls_of, survivors

Row = tuple[SamplingParams, list[int], list[int]]


def uniforms(count: int) -> torch.Tensor:
    return uniforms_of(torch.tensor([sample_key(11, 0, position) for position in range(count)]))


# ----------------------------------------------------------------------------------------------------------- N21, N24


def test_n21_temperature_zero_is_greedy(toy: Path) -> None:
    """nano-vllm PR#249: greedy was refused by an assert."""
    with toy_llm(toy) as llm:
        prompts = ["first prompt", "second", "third one", "4"]
        greedy = llm.generate(prompts, GREEDY, use_tqdm=False)
        mixed = [SamplingParams(temperature=t, max_tokens=6) for t in (0, 0.7, 0, 1e-11)]
        outputs = llm.generate(prompts, mixed, use_tqdm=False)
        for row in (0, 2, 3):
            assert outputs[row].token_ids == greedy[row].token_ids
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            SamplingParams(temperature=bad)


@pytest.mark.parametrize("extra", [{}, {"top_k": 2}, {"presence_penalty": 0.0}, {"min_tokens": 1}])
def test_n21_temperature_zero_in_a_mixed_batch(extra: dict[str, Any]) -> None:
    """nano-vllm PR#249: temperature 0 was refused. Also beside rows that use filters, and using some itself."""
    logits = torch.tensor([[1.0, 3, 2, 0]]).repeat(4, 1) + torch.tensor([[0.0], [0.5], [1], [2]])
    temperatures = [0.0, 0.7, 0, 1e-11]
    rows: list[Row] = [
        (SamplingParams(temperature=t, **(extra if i != 1 else {})), [0], []) for i, t in enumerate(temperatures)
    ]
    draws = torch.tensor([math.nan, 0.9, math.nan, 0.5], dtype=torch.float64)  # greedy rows look at no draw
    ids = sample(logits, torch.tensor(temperatures), draws, controls_of(4, *rows)).tolist()
    assert [ids[0], ids[2], ids[3]] == [1, 1, 1]
    alone = sample(logits[1:2], torch.tensor([0.7]), draws[1:2]).tolist()
    assert ids[1:2] == alone


def test_n21_greedy_is_what_it_is_with_any_filter(toy: Path) -> None:
    """nano-vllm PR#249, a sibling: filters do not touch a greedy row, whose argmax they all keep."""
    filters: list[dict[str, Any]] = [{}, {"top_k": 1, "top_p": 0.01, "min_p": 1.0, "seed": 9}]
    with toy_llm(toy) as llm:
        plain, filtered = (
            llm.generate("abc", SamplingParams(temperature=0, max_tokens=8, **more), use_tqdm=False)[0].token_ids
            for more in filters
        )
        assert plain == filtered


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_n24_a_draw_of_exactly_zero(uniform: float, params: dict[str, Any]) -> None:
    """nano-vllm PR#39: a division by a draw of 0 gave inf or NaN. Neither end of the interval gives a wrong token."""
    for row in ([50.0, -1e4, -math.inf], [-math.inf, 50.0, -1e4], [-math.inf, -math.inf, 50.0]):
        controls = controls_of(3, (SamplingParams(**params), [0], []))
        draw = torch.tensor([uniform], dtype=torch.float64)
        assert sample(torch.tensor([row]), torch.ones(1), draw, controls).tolist() == [row.index(50.0)]


# ---------------------------------------------------------------------------------------------------------------- V08

SEEDED = SamplingParams(temperature=0.8, seed=42, max_tokens=10, ignore_eos=True)
WITHOUT = SamplingParams(temperature=0.8, max_tokens=10, ignore_eos=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kvcache_blocks": 7}, {"max_num_batched_tokens": 3}, {"policy": "mixed"}, {"seed": 5}],
    ids=["roomy", "preempted", "chunks", "mixed", "another engine seed"],
)
def test_v08_a_seed_decides_alone(toy: Path, options: dict[str, Any]) -> None:
    """vllm#51226, #17524, PR#2514: the tokens changed with the company, its order, or a preemption."""
    others: list[list[SamplingParams]] = [
        [],
        [WITHOUT],
        [SamplingParams(temperature=0.8, seed=42, max_tokens=12, top_k=3)],
        [SamplingParams(temperature=0, max_tokens=9), WITHOUT, SamplingParams(max_tokens=11, repetition_penalty=1.2)],
    ]
    with toy_llm(toy) as llm:
        expected = llm.generate("seeded", SEEDED, use_tqdm=False)[0].token_ids
    with toy_llm(toy, **options) as llm:
        for company in others:
            for place in range(len(company) + 1):
                params = [*company[:place], SEEDED, *company[place:]]
                prompts = [f"other {i}" for i in range(len(company))]
                prompts.insert(place, "seeded")
                outputs = llm.generate(prompts, params, use_tqdm=False)
                assert outputs[place].token_ids == expected


def test_v08_seeds_and_samples_differ_and_repeat(toy: Path) -> None:
    """vllm#17524, a sibling: each of n samples has draws of its own, the same ones in every call."""

    def runs(llm: LLM, seed: int | None) -> list[tuple[int, ...]]:
        params = SamplingParams(temperature=0.8, seed=seed, max_tokens=10, n=3)
        return [tuple(o.token_ids) for o in llm.generate("seeded", params, use_tqdm=False)[0].outputs]

    with toy_llm(toy) as llm:
        first, again, other, free, freer = (runs(llm, seed) for seed in (42, 42, 43, None, None))
    assert first == again
    assert len({*first, *other, *free, *freer}) == 12


def test_v08_a_step_that_is_done_again_draws_the_same(toy: Path) -> None:
    """vllm PR#2514, a sibling: a generator that advances would be one draw ahead after an interrupted step."""
    with toy_llm(toy) as llm:
        expected = llm.generate("seeded", SEEDED, use_tqdm=False)[0].token_ids
        assert llm.runner is not None
        run, calls = llm.runner.run, itertools.count()

        def interrupted(batch: Any) -> Any:
            result = run(batch)
            if next(calls) % 2:
                raise KeyboardInterrupt
            return result

        llm.runner.run = interrupted  # type: ignore[method-assign]
        seq = llm.add_request("seeded", SEEDED)
        while llm.has_unfinished:
            try:
                llm.step()
            except KeyboardInterrupt:
                continue
        assert seq.completion_token_ids == expected


# ----------------------------------------------------------------------------------------------------------- V09, V11


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.5, {0}), (0.8, {0, 1}), (0.95, {0, 1, 2}), (1.0, {0, 1, 2}), (1e-9, {0}), (0.71, {0, 1})]
)
def test_v09_the_best_token_always_survives_top_p(top_p: float, kept: set[int]) -> None:
    """mlx-lm PR#388, tiny-llm#32, simply PR#42: an inclusive sum dropped every token when the best one exceeds p."""
    assert survivors([0.7, 0.2, 0.1], top_p=top_p) == kept
    assert survivors([0.1, 0.2, 0.7], top_p=top_p) == {2 - token for token in kept}


@pytest.mark.parametrize("top_p", [0, -0.1, 1.1, math.nan])
def test_v09_a_top_p_that_would_keep_nothing_is_refused(top_p: float) -> None:
    """simply PR#42: top_p=0 gave an empty set; here it is refused, as is all outside (0, 1]."""
    with pytest.raises(ValueError, match=f"top_p={top_p}: must be "):
        SamplingParams(top_p=top_p)


def test_v09_top_k_then_top_p_is_renormalised() -> None:
    """tiny-llm#32: top-k before top-p without renormalising. Of .5, .3, .2 the first two are .625 and .375."""
    assert survivors([0.5, 0.3, 0.2], top_k=2, top_p=0.6) == {0}
    assert survivors([0.5, 0.3, 0.2], top_p=0.6) == {0, 1}
    assert survivors([0.5, 0.3, 0.2], top_k=1, top_p=0.8) == {0}


@pytest.mark.parametrize("vocab", [4, 5000])
def test_v09_ties_keep_exactly_k_the_smaller_ids(vocab: int) -> None:
    """mlx-lm PR#388: with equal probabilities more or fewer than k stayed. Of equals the smaller ids stay."""
    assert survivors([1 / vocab] * vocab, top_k=2) == {0, 1}
    assert survivors([1 / vocab] * vocab, top_p=0.5) == set(range(vocab // 2))
    assert survivors([0.2, 0.3, 0.2, 0.3], top_k=3) == {0, 1, 3}


def test_v11_top_k_off_clamped_and_mixed_with_greedy() -> None:
    """sendnn-inference PR#543, tpu-inference#1386: above the vocabulary crashed, unset was taken for 1."""
    logits = torch.tensor([[2.0, -1, 0.5, 0, 1, 3]])
    for top_k in (0, -1, None, 6, 7, 10**9):
        assert survivors(logits[0].softmax(0).tolist(), top_k=top_k) == set(range(6))
    count = 2000
    asked = [SamplingParams(temperature=t, top_k=k) for t, k in ((0.0, 4), (1.0, 2), (1.0, None))] * count
    rows: list[Row] = [(params, [0], []) for params in asked]
    temperatures = torch.tensor([params.temperature for params in asked])
    draws = uniforms(count).repeat_interleave(3)
    ids = sample(logits.expand(3 * count, -1), temperatures, draws, controls_of(6, *rows)).view(count, 3)
    assert set(ids[:, 0].tolist()) == {5}
    assert set(ids[:, 1].tolist()) == {0, 5}
    expected = logits[0].softmax(0) * count
    seen = torch.bincount(ids[:, 2], minlength=6)
    assert ((seen - expected) ** 2 / expected).sum() < 30  # chi-square of 5 degrees of freedom: 1e-5


def test_v11_penalties_of_one_row_do_not_touch_another() -> None:
    """sendnn-inference PR#543, a sibling: rows with and without penalties in one batch."""
    logits = torch.tensor([[1.0, 0.9, 0, 0]] * 3)
    rows = [(SamplingParams(temperature=0, frequency_penalty=f), [2], [0, 0]) for f in (0.0, 0.04, 0.06)]
    assert controlled(logits, *rows).argmax(-1).tolist() == [0, 0, 1]
