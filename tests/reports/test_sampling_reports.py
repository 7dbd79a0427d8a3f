"""Public bug reports about samplers and what ends a completion, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Volumes and references
stand in test_sampler.py, test_controls.py, test_logprobs.py and test_commit.py.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nvexplore import LLM, SamplingParams
from nvexplore.layers.sampler import sample, uniforms_of
from nvexplore.runner.forward_batch import sample_key
from nvexplore.toy import make_toy
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained
from tests.test_controls import controlled, controls_of, survivors


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("sampling") / "toy", "qwen3")


def toy_llm(path: Path, **options: Any) -> LLM:
    return LLM(path, **{"block_size": 4, "num_kvcache_blocks": 64, **options})


def uniforms(count: int) -> torch.Tensor:
    return uniforms_of(torch.tensor([sample_key(11, 0, position) for position in range(count)]))


# --- N21, N24: greedy and hostile draws ---


@pytest.mark.parametrize("extra", [{}, {"top_k": 2}, {"presence_penalty": 0.0}, {"min_tokens": 1}])
def test_n21_temperature_zero_in_a_mixed_batch(extra: dict[str, Any]) -> None:
    """nano-vllm PR#249: temperature 0 was refused. Also beside rows that use filters, and using some itself."""
    logits = torch.tensor([[1.0, 3, 2, 0]]).repeat(4, 1) + torch.tensor([[0.0], [0.5], [1], [2]])
    temperatures = [0, 0.7, 0, 1e-11]
    rows = [(SamplingParams(temperature=t, **(extra if i != 1 else {})), [0], []) for i, t in enumerate(temperatures)]
    draws = torch.tensor([math.nan, 0.9, math.nan, 0.5], dtype=torch.float64)  # greedy rows look at no draw
    ids = sample(logits, torch.tensor(temperatures), draws, controls_of(4, *rows)).tolist()
    assert [ids[0], ids[2], ids[3]] == [1, 1, 1]
    alone = sample(logits[1:2], torch.tensor([0.7]), draws[1:2]).tolist()
    assert ids[1:2] == alone


def test_n21_greedy_is_what_it_is_with_any_filter(toy: Path) -> None:
    """nano-vllm PR#249, a sibling: filters do not touch a greedy row, whose argmax they all keep."""
    with toy_llm(toy) as llm:
        plain, filtered = (
            llm.generate("abc", SamplingParams(temperature=0, max_tokens=8, **more), use_tqdm=False)[0].token_ids
            for more in ({}, {"top_k": 1, "top_p": 0.01, "min_p": 1.0, "seed": 9})
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


# --- N22: what would never end ---


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, True, None])
def test_n22_max_tokens_that_never_equal_a_count(max_tokens: Any) -> None:
    """nano-vllm PR#270, vllm#10432, vllm#14525: max_tokens 0 or 1.5 generated for ever."""
    with pytest.raises((TypeError, ValueError), match="max_tokens="):
        SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize("prompt", ["", [], [-1], [272], [1.5], [True], [2**70]], ids=repr)
def test_n22_prompts_that_cannot_run(prompt: Any, toy: Path) -> None:
    """nano-vllm PR#270: an empty prompt was an IndexError in the middle of a step. The engine stays usable."""
    with toy_llm(toy) as llm:
        calls: list[Any] = [lambda each: llm.generate([each]), llm.stream, llm.add_request]
        for call in calls:
            with pytest.raises((TypeError, ValueError)):
                call(prompt)
        assert not llm.has_unfinished
        assert len(llm.generate("a", SamplingParams(max_tokens=2), use_tqdm=False)[0].token_ids) == 2


@pytest.mark.parametrize(
    ("length", "max_tokens", "fits"), [(15, 1, True), (16, 1, False), (15, 2, False), (1, 15, True)]
)
def test_n22_prompt_and_max_tokens_together_fit_or_are_refused(length: int, max_tokens: int, fits: bool) -> None:
    """nano-vllm PR#270: prompt + max_tokens beyond max_model_len was admitted; n > 1 changes nothing about it."""
    engine = toy_engine(64, max_model_len=16)
    for n in (1, 3):
        params = SamplingParams(max_tokens=max_tokens, n=n)
        if fits:
            first = engine.add_request(range(length), params)
            run_to_end(engine)
            assert {seq.finish_reason for seq in first.samples} == {"length"}
        else:
            with pytest.raises(ValueError, match="must be at most max_model_len=16"):
                engine.add_request(range(length), params)
    assert not engine.has_unfinished


def test_n29_prefix_caching_off(toy: Path) -> None:
    """nano-vllm#18: no switch. Off: nothing cached, no hash recorded, the same tokens; n samples share nothing."""
    params = SamplingParams(max_tokens=6, n=2, seed=4, top_p=0.9)
    with toy_llm(toy) as on, toy_llm(toy, enable_prefix_caching=False) as off:
        expected = [[o.token_ids for o in on.generate("abcdefghij", params, use_tqdm=False)[0].outputs] for _ in "123"]
        for tokens in expected:
            outputs = off.generate("abcdefghij", params, use_tqdm=False)[0].outputs
            assert [o.token_ids for o in outputs] == tokens
            assert [o.num_cached_tokens for o in outputs] == [0, 0]
        assert set(off.engine.snapshot().hash) == {None}


# --- V07: ids ---


@pytest.mark.parametrize("n", [1, 2])
def test_v07_two_live_requests_with_one_id(n: int) -> None:
    """vllm#15041: the second crashed the engine. Refused while the first lives, in each of its samples; fine after."""
    engine = toy_engine(32)
    params = SamplingParams(max_tokens=3, n=n)
    engine.add_request([1, 2], params, request_id="a")
    for taken in ("a", "a#1")[:n]:
        with pytest.raises(ValueError, match=f"request_id='{taken}': a live request has this id already"):
            engine.add_request([1], SamplingParams(max_tokens=1), request_id=taken)
    run_to_end(engine)
    again = engine.add_request([1, 2], params, request_id="a")
    run_to_end(engine)
    assert again.completion_token_ids == unconstrained([1, 2], 3)
    check_invariants(engine)


# --- V08: seeds ---

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


# --- V09, V11: filters ---


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
    rows = [(SamplingParams(temperature=t, top_k=k), [0], []) for t, k in ((0.0, 4), (1.0, 2), (1.0, None))] * count
    temperatures = torch.tensor([params.temperature for params, _, _ in rows])
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


# --- V23: logits that are no numbers ---


def overflowing(folder: Path, dtype: str) -> Path:
    """A checkpoint whose first layer makes numbers of about 1e5 for some tokens: too large for float16 alone."""
    make_toy(folder, "qwen3", dtype=dtype)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.down_proj.weight"][0] *= 3e4
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_v23_float16_overflow_fails_the_request_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#14126, #17154, QwenLM/Qwen3#868: NaN logits became token 0, and the output "!!!!"."""
    path = overflowing(tmp_path, "bfloat16")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    for dtype in ("auto", "float32"):
        with toy_llm(path, dtype=dtype) as llm:
            (output,) = llm.generate("abc", params, use_tqdm=False)
            assert len(output.token_ids) == 4 and output.error is None
    monkeypatch.setattr("nvexplore.runner.model_runner.ModelRunner._warm_up", lambda self: None)
    with pytest.warns(UserWarning, match="float16"):
        llm = toy_llm(path, dtype="float16")
    with llm:
        for temperature in (0.0, 1.0):
            (output,) = llm.generate("abc", SamplingParams(temperature=temperature, max_tokens=4), use_tqdm=False)
            assert (output.token_ids, output.text, output.finish_reason) == ([], "", "error")
            assert output.error is not None and "position 3" in output.error and "NaN or infinite" in output.error
        (delta,) = llm.stream("abc", params)
        assert (delta.text, delta.finish_reason) == ("", "error") and delta.error


def test_v23_the_dtype_is_the_checkpoints_and_another_choice_is_warned_of(tmp_path: Path) -> None:
    """vllm#14126: float16 for a bfloat16 model was silent. "auto" reads either spelling of the key."""
    path = make_toy(tmp_path, "qwen3", dtype="bfloat16")
    config = json.loads((path / "config.json").read_text())
    for key in ("dtype", "torch_dtype"):
        renamed = {k: v for k, v in config.items() if k not in ("dtype", "torch_dtype")} | {key: "bfloat16"}
        (path / "config.json").write_text(json.dumps(renamed))
        with warnings.catch_warnings(), toy_llm(path) as llm:
            warnings.simplefilter("error")
            assert llm.runner is not None and llm.runner.dtype == torch.bfloat16
        with pytest.warns(UserWarning, match="float16"):
            toy_llm(path, dtype="float16").close()


def test_v23_one_poisoned_request_among_healthy_ones(toy: Path) -> None:
    """vllm#17154, a sibling: the batch mates of a row of NaN keep their tokens, and its prefix can be asked again."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with toy_llm(toy) as llm:
        expected = {text: llm.generate(text, params, use_tqdm=False)[0].token_ids for text in ("healthy", "poisoned")}
        llm.engine.reset_prefix_cache()
        seqs = {text: llm.add_request(text, params) for text in expected}
        llm.step()
        assert llm.runner is not None
        llm.runner.kv_cache.pool[:, :, seqs["poisoned"].block_table[0]] = math.nan
        while llm.has_unfinished:
            llm.step()
        assert seqs["healthy"].completion_token_ids == expected["healthy"]
        assert seqs["poisoned"].finish_reason == "error"
        assert seqs["poisoned"].completion_token_ids == expected["poisoned"][:1]
        (again,) = llm.generate("poisoned", params, use_tqdm=False)
        assert again.token_ids == expected["poisoned"] and again.num_cached_tokens == 0


# --- V26: end of sequence ---


def test_v26_id_zero_ends_and_so_do_ids_of_the_request() -> None:
    """vllm#4180, PR#4182, mlx-vlm PR#309, exllamav2 PR#449: only one id stopped; 0 is one like any other."""
    prompt = next(p for p in ([i, j] for i in range(60) for j in range(60)) if unconstrained(p, 12).count(0) == 1)
    said = unconstrained(prompt, 12)
    for eos, params, end in (
        ({0}, {}, said.index(0)),
        ({0, 5}, {"ignore_eos": True}, 11),
        (set(), {"stop_token_ids": [0]}, said.index(0)),
        ({0}, {"ignore_eos": True, "stop_token_ids": [0]}, said.index(0)),
        ({0}, {"min_tokens": 12}, 11),
    ):
        engine = toy_engine(16, eos=frozenset(eos))
        seq = engine.add_request(prompt, SamplingParams(max_tokens=12, **params))
        run_to_end(engine)
        assert seq.completion_token_ids == said[: end + 1]
        assert seq.stop_reason == (0 if end < 11 else None)


# --- V37: prompt logprobs ---


@pytest.mark.parametrize("budget", [4, 512])
def test_v37_prompt_logprobs_twice_in_chunks(toy: Path, budget: int) -> None:
    """vllm#8268, #5344, PR#41411: short lists after a prefix hit or with chunks. Numbers: see test_logprobs.py."""
    prompt, params = list(range(60, 69)), SamplingParams(max_tokens=1, prompt_logprobs=1)
    with toy_llm(toy, max_num_batched_tokens=budget) as llm:
        told = [llm.generate([prompt], params, use_tqdm=False)[0].prompt_logprobs for _ in range(2)]
    for entries in told:
        assert entries is not None and entries[0] is None and len(entries) == 9
        assert all(entry is not None and prompt[i] in entry for i, entry in enumerate(entries) if i)
