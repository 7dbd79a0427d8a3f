"""Public bug reports about what a request may ask, how it ends and what it is told, each as its small input.

The ids are this project's own numbering; each docstring names the public thread it comes from. More in
test_sampling_params.py, test_commit.py and test_logprobs.py; stop strings in test_text_reports.py.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nvexplore import SamplingParams
from nvexplore.model_config import ModelConfig
from nvexplore.toy import make_toy
from tests.conftest import RunPython
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained
from tests.reports.common import GREEDY, toy_llm

ROOT = Path(__file__).parents[2]

# ---------------------------------------------------------------------------------------------------------------- N22


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


def test_n22_refusals_are_no_asserts(run_python: RunPython) -> None:
    """nano-vllm PR#270: asserts vanish under python -O, and what they refused generates for ever."""
    code = """
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine
engine = toy_engine(8, 4, max_model_len=16)
refused = 0
for prompt, options in [([], {}), ([-1], {}), ([1.5], {}), ([1] * 16, {"max_tokens": 1}), ([1], {"max_tokens": 0}),
                        ([1], {"max_tokens": True}), ([1], {"temperature": -1}), ([1], {"top_p": 0})]:
    try:
        engine.add_request(prompt, SamplingParams(**{"max_tokens": 2, **options}))
    except (TypeError, ValueError):
        refused += 1
engine.add_request([1] * 15, SamplingParams(max_tokens=1))
print(__debug__, refused, len(engine.live))
"""
    assert run_python(code, env={"PYTHONPATH": str(ROOT), "PYTHONOPTIMIZE": "1"}) == "False 8 1\n"


# ---------------------------------------------------------------------------------------------------------------- V07


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


# ---------------------------------------------------------------------------------------------------------------- V23


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


# ---------------------------------------------------------------------------------------------------------------- V26


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "expected"),
    [(5, [5, 7], {5, 7}), ([2, 3], None, {2, 3}), (None, 9, {9}), (0, None, {0}), (None, None, set())],
)
def test_v26_every_end_of_sequence_id_counts(
    toy: Path, tmp_path: Path, config_eos: Any, generation_eos: Any, expected: set[int]
) -> None:
    """vllm#4180: only the tokenizer's id stops, though generation_config.json lists several. Id 0 is an id."""
    folder = shutil.copytree(toy, tmp_path / "eos")
    config = {**json.loads((folder / "config.json").read_text()), "eos_token_id": config_eos}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    assert ModelConfig.from_path(folder).eos_token_ids == expected


def test_v26_generation_stops_at_any_of_them_unless_told_not_to(toy: Path, tmp_path: Path) -> None:
    """The sibling, end to end: the third greedy token becomes an end-of-sequence id."""
    with toy_llm(toy) as llm:
        tokens = llm.generate(["hello"], GREEDY, use_tqdm=False)[0].token_ids
    folder = shutil.copytree(toy, tmp_path / "eos")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, tokens[2]]}))
    first = tokens.index(tokens[2])
    with toy_llm(folder) as llm:
        stopped = llm.generate(["hello"], GREEDY, use_tqdm=False)[0]
        assert (stopped.token_ids, stopped.finish_reason) == (tokens[: first + 1], "stop")
        ignoring = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        assert llm.generate(["hello"], ignoring, use_tqdm=False)[0].token_ids == tokens


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


# ---------------------------------------------------------------------------------------------------------------- V37


@pytest.mark.parametrize("budget", [4, 512])
def test_v37_prompt_logprobs_twice_in_chunks(toy: Path, budget: int) -> None:
    """vllm#8268, #5344, PR#41411: short lists after a prefix hit or with chunks. Numbers: see test_logprobs.py."""
    prompt, params = list(range(60, 69)), SamplingParams(max_tokens=1, prompt_logprobs=1)
    with toy_llm(toy, max_num_batched_tokens=budget) as llm:
        told = [llm.generate([prompt], params, use_tqdm=False)[0].prompt_logprobs for _ in range(2)]
    for entries in told:
        assert entries is not None and entries[0] is None and len(entries) == 9
        assert all(entry is not None and prompt[i] in entry for i, entry in enumerate(entries) if i)
