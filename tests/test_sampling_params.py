"""SamplingParams: what is refused, by name, value and limit; what is kept, and as what."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from nvexplore import SamplingParams
from tests.fakes import toy_engine


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", 10**400, "finite"),
        ("top_k", -2, "at least -1"),
        ("top_p", 0, "greater than 0"),
        ("top_p", -0.1, "greater than 0"),
        ("top_p", 1.1, "at most 1"),
        ("top_p", math.nan, "finite"),
        ("min_p", -0.01, "at least 0"),
        ("min_p", 1.01, "at most 1"),
        ("repetition_penalty", 0, "greater than 0"),
        ("repetition_penalty", math.inf, "finite"),
        ("presence_penalty", -2.1, "at least -2"),
        ("presence_penalty", 2.1, "at most 2"),
        ("frequency_penalty", -2.1, "at least -2"),
        ("frequency_penalty", 2.1, "at most 2"),
        ("seed", -1, "at least 0"),
        ("seed", 2**63, f"at most {2**63 - 1}"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -1, "at least 1"),
        ("min_tokens", -1, "at least 0"),
        ("min_tokens", 65, "at most max_tokens=64"),
        ("logprobs", -1, "at least 0"),
        ("prompt_logprobs", -1, "at least 0"),
        ("n", 0, "at least 1"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_limit(field: str, value: Any, limit: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^{field}={value!r}: must be (at least|at most|greater than|finite)"
    ) as error:
        SamplingParams(**{field: value})
    assert limit in str(error.value)


NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGERS = ("top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "n")


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in NUMBERS for value in (True, "1", None, [1])]
    + [(field, value) for field in INTEGERS for value in (True, "1", 1.0, [1])]
    + [("max_tokens", None), ("n", None), ("min_tokens", None), ("ignore_eos", 1), ("ignore_eos", None)],
)
def test_a_value_of_another_type_is_named(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{field}="):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("stop", [""], ValueError, r"stop\[0\]='': must have at least 1 character"),
        ("stop", "", ValueError, r"stop\[0\]=''"),
        ("stop", ["a", 5], TypeError, r"stop\[1\]=5: must be a str, not int"),
        ("stop", 5, TypeError, "stop=5: must be a string or several"),
        ("stop", None, TypeError, "stop=None"),
        ("stop", b"a", TypeError, "stop=b'a'"),
        ("stop_token_ids", 5, TypeError, "stop_token_ids=5: must be integers"),
        ("stop_token_ids", "5", TypeError, "stop_token_ids='5'"),
        ("stop_token_ids", [1, -1], ValueError, r"stop_token_ids\[1\]=-1: must be at least 0"),
        ("stop_token_ids", [1.5], TypeError, r"stop_token_ids\[0\]=1\.5"),
        ("stop_token_ids", [True], TypeError, r"stop_token_ids\[0\]=True"),
    ],
)
def test_what_stops_is_checked_one_by_one(field: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SamplingParams(**{field: value})


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=3)  # type: ignore[call-arg]


def test_limits_themselves_are_fine() -> None:
    SamplingParams(temperature=0, top_p=1, min_p=1, presence_penalty=-2, frequency_penalty=2, seed=2**63 - 1)
    SamplingParams(min_p=0, max_tokens=3, min_tokens=3, logprobs=0, prompt_logprobs=0, repetition_penalty=1e-3)


@pytest.mark.parametrize("off", [0, -1, None])
def test_v11_three_ways_to_turn_top_k_off(off: int | None) -> None:
    assert SamplingParams(top_k=off) == SamplingParams() and not SamplingParams(top_k=off).has_filters


def test_values_are_kept_in_one_form() -> None:
    assert SamplingParams(stop="ab").stop == SamplingParams(stop=["ab"]).stop == ("ab",)
    assert SamplingParams(stop_token_ids=np.array([3, 1])).stop_token_ids == (3, 1)
    some: dict[str, Any] = {"temperature": np.float32(0.5), "top_p": np.float64(0.25), "top_k": np.int64(7)}
    params = SamplingParams(**some)
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, 7)
    assert [type(v) for v in (params.temperature, params.top_p, params.top_k)] == [float, float, int]
    assert hash(SamplingParams(stop=["a"])) == hash(SamplingParams(stop="a"))


def test_to_dict_is_json_and_makes_the_same_again() -> None:
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[4], seed=5, logprobs=2, n=3, temperature=0)
    values = params.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert SamplingParams(**values) == params


@pytest.mark.parametrize(
    ("changes", "is_plain"),
    [
        ({}, True),
        ({"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1}, True),  # greedy: no filter matters
        ({"seed": 3, "n": 2, "stop": "x", "stop_token_ids": [1], "ignore_eos": True}, True),
        ({"top_k": 5}, False),
        ({"top_p": 0.5}, False),
        ({"min_p": 0.5}, False),
        ({"repetition_penalty": 1.1, "temperature": 0}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": -0.1}, False),
        ({"min_tokens": 1}, False),
        ({"logprobs": 0}, False),
        ({"prompt_logprobs": 0}, False),
    ],
)
def test_who_takes_the_fast_path(changes: dict[str, Any], is_plain: bool) -> None:
    assert SamplingParams(**changes).is_plain is is_plain


def test_the_engine_checks_what_only_it_can_know() -> None:
    engine = toy_engine(32)
    engine.vocab_size = 100
    with pytest.raises(ValueError, match=r"stop_token_ids\[1\]=100: must be at most 99"):
        engine.add_request([1], SamplingParams(stop_token_ids=[99, 100]))
    with pytest.raises(ValueError, match=r"stop=\('x',\): this engine has no stop_matcher"):
        engine.add_request([1], SamplingParams(stop="x"))
    assert not engine.has_unfinished
    engine.add_request([1], SamplingParams(stop_token_ids=[99]))
