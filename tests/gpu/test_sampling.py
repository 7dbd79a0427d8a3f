"""Draws, controls and log probabilities on a GPU: the same with graphs and without, and as on the CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.sampling_params import SamplingParams
from tests.gpu.engines import greedy, make_llm, prompts, tokens

pytestmark = pytest.mark.gpu

MODES = pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
PROMPTS = prompts(12, 5, 30, 9, 17)


def drawn(max_tokens: int, **wishes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **{"temperature": 0.9, **wishes})


def test_draws_are_the_same_with_graphs_and_without_and_in_any_company(toy: Path) -> None:
    asked = [(prompt, drawn(20, seed=n)) for n, prompt in enumerate(PROMPTS)]
    unseeded = [(prompt, drawn(20)) for prompt in PROMPTS]
    found = []
    for enforce_eager in (True, False):
        with make_llm(toy, enforce_eager=enforce_eager, seed=4) as llm:
            found.append(tokens(llm, unseeded) + tokens(llm, asked))
            alone = [tokens(llm, [each])[0] for each in asked]
            assert alone == found[-1][len(PROMPTS) :]
    assert found[0] == found[1]
    assert len({tuple(ids) for ids in found[0]}) == 2 * len(PROMPTS)


@MODES
def test_greedy_with_controls_is_as_on_the_cpu(enforce_eager: bool, toy: Path) -> None:
    """Penalties, banned ends and plain rows in one batch; filters, which leave greedy rows alone."""
    wishes: list[dict[str, Any]] = [
        {"repetition_penalty": 1.4},
        {},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"min_tokens": 8, "stop_token_ids": list(range(33, 80))},
        {"top_k": 3, "top_p": 0.5},
    ]
    asked = [(prompt, greedy(16, **each)) for prompt, each in zip(PROMPTS, wishes, strict=True)]
    with make_llm(toy, "cpu") as llm:
        expected = tokens(llm, asked)
    with make_llm(toy, enforce_eager=enforce_eager) as llm:
        assert tokens(llm, asked) == expected


@MODES
def test_filters_that_leave_one_token_choose_it(enforce_eager: bool, toy: Path) -> None:
    asked = [
        (PROMPTS[0], drawn(10, **wishes)) for wishes in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"seed": 1})
    ]
    with make_llm(toy, enforce_eager=enforce_eager) as llm:
        *filtered, free = tokens(llm, asked)
        expected = tokens(llm, [(PROMPTS[0], greedy(10))])
        assert filtered == expected * 3
        assert free != expected[0]


@MODES
def test_draws_stay_within_what_filters_leave(enforce_eager: bool, toy: Path) -> None:
    """By the log probabilities that are told beside the tokens, which are of the raw logits."""
    params = [drawn(30, temperature=1.0, top_k=3, seed=1, logprobs=20)]
    params += [drawn(30, temperature=1.0, top_p=0.6, seed=2, logprobs=20), drawn(30, min_p=0.2, seed=3, logprobs=20)]
    with make_llm(toy, enforce_eager=enforce_eager) as llm:
        outputs = llm.generate([PROMPTS[2]] * 3, params, use_tqdm=False)
    for step, chosen in zip(outputs[0].logprobs or [], outputs[0].token_ids, strict=True):
        assert chosen in list(step)[:3]
    for step, chosen in zip(outputs[1].logprobs or [], outputs[1].token_ids, strict=True):
        likelier = [math.exp(value) for value in step.values() if value > step[chosen]]
        assert sum(likelier) < 0.6 + 1e-4
    for step, chosen in zip(outputs[2].logprobs or [], outputs[2].token_ids, strict=True):
        # min_p looks at the probabilities at the temperature.
        assert (step[chosen] - max(step.values())) / 0.9 >= math.log(0.2) - 1e-4
    assert len(set(outputs[0].token_ids)) > 3


@MODES
def test_log_probabilities_are_those_of_the_cpu(enforce_eager: bool, toy: Path) -> None:
    """Of sampled tokens and of prompts, in rows beside others that ask for none."""
    params = [greedy(12, logprobs=3), greedy(12), greedy(12, prompt_logprobs=2), greedy(12, logprobs=0), greedy(12)]
    found = []
    for device, eager in (("cpu", True), ("cuda", enforce_eager)):
        with make_llm(toy, device, enforce_eager=eager) as llm:
            found.append(llm.generate(PROMPTS, params, use_tqdm=False))
    for expected, output in zip(*found, strict=True):
        assert output.token_ids == expected.token_ids
        for name in ("logprobs", "prompt_logprobs"):
            ours, theirs = getattr(output, name), getattr(expected, name)
            assert (ours is None) == (theirs is None)
            for one, other in zip(ours or [], theirs or [], strict=True):
                assert (one is None) == (other is None)
                assert one is None or one == pytest.approx(other, abs=1e-3)


@MODES
def test_a_row_of_nan_ends_its_request_alone(enforce_eager: bool, other_toy: Path) -> None:
    """Token 200 is NaN in the embedding. Its blocks are used again, and nobody sees the NaN in them."""
    broken = [*PROMPTS[1][:2], 200, 40]
    asked = [(PROMPTS[0], greedy(10)), (broken, greedy(10)), (PROMPTS[3], drawn(10, seed=5))]
    with make_llm(other_toy, enforce_eager=enforce_eager, block_size=4, num_kvcache_blocks=24) as llm:
        expected = tokens(llm, [asked[0], asked[2]])
        assert llm.runner is not None
        with torch.inference_mode():
            llm.runner.model.model.embed_tokens.weight[200] = torch.nan
        for _ in range(4):
            seqs = [llm.add_request(*each) for each in asked]
            list(llm.steps())
            assert [seq.finish_reason for seq in seqs] == ["length", "error", "length"]
            assert [seqs[0].completion_token_ids, seqs[2].completion_token_ids] == expected
            assert seqs[1].completion_token_ids == [] and seqs[1].error
