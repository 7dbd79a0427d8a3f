"""Sampling parameters at the ends of what is accepted: steps go on, recordings can be saved, the rest is refused."""

from __future__ import annotations

import enum
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nvexplore import LLM, SamplingParams
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import load_recording, save_recording
from nvexplore.layers.controls import Controls
from nvexplore.layers.sampler import sample
from nvexplore.toy import make_toy
from tests.fakes import toy_engine

LARGEST = 2**63 - 1
JUST_BELOW_ONE = 1 - 2.0**-53
TEMPERATURES = (5e-324, 1e-300, 1e-46, 1e-45, 1e-39, 1.2e-38, 1e-30, 1e30, 3.4e38, 1e39, 1.7e308)


class Colour(str, enum.Enum):  # noqa: UP042 -- what StrEnum is not: str() of it is no value
    RED = "red"


class Count(enum.IntEnum):
    TWO = 2


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    torch.set_num_threads(1)
    path = make_toy(tmp_path_factory.mktemp("toy") / "qwen3", "qwen3")
    return LLM(path, num_kvcache_blocks=64, max_num_batched_tokens=32, max_model_len=64)


# What is in range, however odd its type or size.
ACCEPTED: list[dict[str, Any]] = [
    {"stop": [np.str_("x")]},
    {"stop": np.array(["x", "yz"])},
    {"stop": Colour.RED},
    {"stop": ["\N{PILE OF POO}", "\x00"]},
    {"cache_salt": np.str_("x")},
    {"cache_salt": Colour.RED},
    {"stop_token_ids": np.array([3, 1], np.uint8)},
    {"stop_token_ids": [Count.TWO]},
    {"top_k": np.uint64(2**63)},
    {"top_k": 2**63},
    {"top_k": 10**400},
    {"top_k": Count.TWO, "n": Count.TWO, "seed": Count.TWO},
    {"logprobs": LARGEST, "prompt_logprobs": LARGEST},
    {"logprobs": Count.TWO},
    {"seed": LARGEST},
    {"temperature": Fraction(1, 3), "top_p": np.float32(0.5), "min_p": np.float64(0.5)},
    {"top_p": 5e-324, "min_p": 5e-324},
    {"repetition_penalty": 1e-20},
    {"repetition_penalty": 1e20, "presence_penalty": 2, "frequency_penalty": -2},
    *({"temperature": temperature} for temperature in TEMPERATURES),
]


@pytest.mark.parametrize("values", ACCEPTED, ids=str)
def test_what_is_accepted_is_kept_as_plain_values_and_can_be_saved(values: dict[str, Any], tmp_path: Path) -> None:
    params = SamplingParams(**{"max_tokens": 4, **values})
    kept = params.to_dict()
    for value in kept.values():
        for each in value if isinstance(value, list) else [value]:
            assert type(each) in (int, float, str, bool, type(None))
    assert SamplingParams(**json.loads(json.dumps(kept))) == params
    engine, recorder = toy_engine(64, stop_matcher=lambda seq: None), Recorder()
    engine.subscribe(recorder)
    engine.add_request([1, 2, 3], params)
    engine.step()
    found = load_recording(save_recording(recorder, tmp_path / "run")).recorder
    assert [record.before.added.sampling_params for record in found.records] == [[kept] * params.n]


@pytest.mark.parametrize("field", ["stop", "cache_salt"])
@pytest.mark.parametrize(("text", "at"), [("\ud800", 0), ("abc\udfff", 3), ("\udcff\ud800", 0), ("é\ud83dx", 1)])
def test_half_a_character_is_refused(field: str, text: str, at: int) -> None:
    name = r"stop\[0\]" if field == "stop" else field
    with pytest.raises(ValueError, match=rf"^{name}: character {at} is '\\ud.*', half of a surrogate pair") as error:
        SamplingParams(**{field: text})
    str(error.value).encode()  # it can be shown


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("logprobs", 2**63, f"at most {LARGEST}"),
        ("prompt_logprobs", 2**70, f"at most {LARGEST}"),
        ("seed", 2**64, f"at most {LARGEST}"),
        ("max_tokens", 2**63, f"at most {LARGEST}"),
        ("n", 16_385, "at most 16384"),
        ("n", 2**70, "at most 16384"),
        ("repetition_penalty", 1e-300, "at least 1e-20"),
        ("repetition_penalty", 5e-324, "at least 1e-20"),
        ("repetition_penalty", -1.0, "greater than 0"),
        ("repetition_penalty", 1.1e20, r"at most 1e\+20"),
        ("repetition_penalty", 1e300, r"at most 1e\+20"),
        ("frequency_penalty", 1e300, "at most 2"),
        ("presence_penalty", -1e300, "at least -2"),
    ],
)
def test_what_no_step_could_run_with_is_refused(field: str, value: Any, limit: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}={str(value).replace('+', '.')}: must be {limit}$"):
        SamplingParams(**{field: value})


def test_an_id_to_stop_at_has_a_limit_too() -> None:
    with pytest.raises(ValueError, match=rf"^stop_token_ids\[1\]={2**63}: must be at most {LARGEST}$"):
        SamplingParams(stop_token_ids=[1, 2**63])


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"min_tokens": 3}], ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_any_temperature_gives_tokens_of_the_vocabulary(llm: LLM, temperature: float, filters: dict[str, Any]) -> None:
    """In company, which has what it has alone; nearly 0 is greedy."""
    greedy, plain = SamplingParams(temperature=0, max_tokens=6), SamplingParams(seed=4, max_tokens=6)
    alone = [llm.generate(["abc"], params, use_tqdm=False)[0].token_ids for params in (greedy, plain)]
    params = SamplingParams(temperature=temperature, max_tokens=6, ignore_eos=True, **filters)
    ours, *others = llm.generate(["abc"] * 3, [params, greedy, plain], use_tqdm=False)
    assert [other.token_ids for other in others] == alone
    assert (ours.finish_reason, len(ours.token_ids)) == ("length", 6)
    assert all(0 <= token_id < llm.model_config.vocab_size for token_id in ours.token_ids)
    if temperature < 1e-20 and not filters.get("min_tokens"):
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        assert ours.token_ids == llm.generate(["abc"], params, use_tqdm=False)[0].token_ids


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": 2**63},
        {"top_k": 10**30},
        {"top_k": LARGEST, "top_p": 5e-324},
        {"min_p": 1.0, "top_p": 5e-324},
        {"min_p": 5e-324},
        {"repetition_penalty": 1e-20},
        {"repetition_penalty": 1e20},
        {"repetition_penalty": 1e20, "frequency_penalty": 2, "presence_penalty": 2, "temperature": 0},
        {"repetition_penalty": 1e-20, "frequency_penalty": -2, "presence_penalty": -2, "temperature": 1e300},
        {"logprobs": LARGEST, "prompt_logprobs": LARGEST},
        {"seed": LARGEST},
        {"n": 3, "top_k": 2**63},
    ],
    ids=str,
)
def test_any_accepted_values_give_tokens(llm: LLM, values: dict[str, Any]) -> None:
    (found,) = llm.generate(["hello"], SamplingParams(max_tokens=6, ignore_eos=True, **values), use_tqdm=False)
    for output in found.outputs:
        assert (output.finish_reason, output.error, len(output.token_ids)) == ("length", None, 6)
        assert all(0 <= token_id < llm.model_config.vocab_size for token_id in output.token_ids)


def test_more_than_the_vocabulary_is_all_of_it(llm: LLM) -> None:
    plain = SamplingParams(seed=1, max_tokens=8)
    (expected,) = llm.generate(["abc"], plain, use_tqdm=False)
    for top_k in (llm.model_config.vocab_size, 2**31, 2**32 + 1, 2**63, 10**40):
        (found,) = llm.generate(["abc"], SamplingParams(seed=1, max_tokens=8, top_k=top_k), use_tqdm=False)
        assert found.token_ids == expected.token_ids


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("uniform", [0.0, 0.5, JUST_BELOW_ONE])
@pytest.mark.parametrize("temperature", [*TEMPERATURES, math.inf])
def test_the_sampler_itself_stays_in_the_row(temperature: float, uniform: float, is_flushed: bool) -> None:
    """Also with tokens of no probability, wide logits, and where the processor takes denormals for 0."""
    rows = torch.tensor([[-math.inf, 1.0, -3e38, 3e38, -math.inf], [0.0, -math.inf, -0.0, -math.inf, -math.inf]])
    # As the engine's float32 has it: numpy warns of what becomes infinity.
    with np.errstate(all="ignore"):
        temperatures = torch.tensor([float(np.float32(temperature))] * 2)
    uniforms = torch.full((2,), uniform, dtype=torch.float64)
    try:
        torch.set_flush_denormal(is_flushed)
        for controls in (None, _controls(top_k=3), _controls(top_p=0.9), _controls(min_p=0.2)):
            ids = sample(rows, temperatures, uniforms, controls).tolist()
            assert ids[0] in (1, 2, 3) and ids[1] in (0, 2)
            assert temperature > 1e30 or ids[0] == 3
    finally:
        torch.set_flush_denormal(False)


def _controls(top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Controls:
    none = torch.empty(0, dtype=torch.int64)
    return Controls(
        rows=torch.arange(2),
        repetition=torch.ones(2),
        frequency=torch.zeros(2),
        presence=torch.zeros(2),
        top_k=torch.full((2,), top_k),
        top_p=torch.full((2,), top_p, dtype=torch.float64),
        min_p=torch.full((2,), min_p, dtype=torch.float64),
        seen_rows=none,
        seen_ids=none,
        seen_counts=none,
        banned_rows=none,
        banned_ids=none,
    )
