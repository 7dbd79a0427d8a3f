"""%nvx_add's options, quotes in them, and %nvx_abort of several."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.error import UsageError

from nvexplore.notebook import prompts
from nvexplore.notebook.magics_model import SAMPLING
from nvexplore.sampling_params import SamplingParams
from tests.notebook_fakes import Shell


def params_of(shell: Shell, request_id: str) -> SamplingParams:
    params: SamplingParams = shell["llm"].engine.live[request_id].sampling_params
    return params


@pytest.fixture
def reading(loaded: Shell) -> Shell:
    """One whose engine reads texts: the fake one has no tokenizer for stop strings."""
    engine = loaded["llm"].engine
    engine._committer.stop_matcher = lambda seq: None
    return loaded


OPTIONS: dict[str, tuple[str, Any]] = {
    "max_tokens": ("--max-tokens 3", 3),
    "temperature": ("--temperature 0.5", 0.5),
    "top_k": ("--top-k 7", 7),
    "top_p": ("--top-p 0.25", 0.25),
    "min_p": ("--min-p=0.125", 0.125),
    "seed": ("--seed 11", 11),
    "ignore_eos": ("--ignore-eos", True),
    "stop": ("--stop End --stop 'The end' --stop \"it's\" --stop=two\\nlines --stop '\\n'", ()),
}


@pytest.mark.parametrize("name", SAMPLING)
def test_each_option_reaches_the_request_and_no_other(reading: Shell, name: str) -> None:
    words, value = OPTIONS[name]
    request = reading.run(f"%nvx_add {words} --id r Once 'upon' a \\n time")
    assert request.prompt == "Once 'upon' a \\n time"
    usual = SamplingParams(max_tokens=64, temperature=0.0).to_dict()
    value = value if name != "stop" else ["End", "The end", "it's", "two\nlines", "\n"]
    assert params_of(reading, "r").to_dict() == usual | {name: value}
    reading.run(f"%%nvx_add {words} --id cell\nOnce")
    assert params_of(reading, "cell").to_dict() == usual | {name: value}


def test_they_are_the_fields_of_sampling_params(loaded: Shell) -> None:
    assert tuple(name for name in SAMPLING if name in SamplingParams.__dataclass_fields__) == SAMPLING
    magic: Any = loaded.ip.magics_manager.magics["line"]["nvx_add"]
    own = {"help", "id", "chat", "priority", "var", "each_line", "each_paragraph"}
    actions = {action.dest: action for action in magic.parser._actions}
    assert actions.keys() - own == set(SAMPLING)
    # What ``prompts.split`` takes for an option without a value is one.
    flags = {text for action in actions.values() if action.nargs == 0 for text in action.option_strings}
    assert flags - {"-h", "--help"} == prompts.FLAGS


BAD = {
    "%nvx_add --top-k -2 x": "top_k=-2: must be at least -1",
    "%nvx_add --top-p 0 x": "top_p=0.0: must be greater than 0",
    "%nvx_add --min-p 2 x": "min_p=2.0: must be at most 1",
    "%nvx_add --seed -1 x": "seed=-1: must be at least 0",
    "%nvx_add --seed x y": "argument --seed: invalid int value: 'x'",
    "%nvx_add --stop '' x": "stop[0]='': must have at least 1 character",
    "%nvx_add --stop": "argument --stop: expected one argument",
    "%nvx_add --id 'a b hello": "No closing quotation in: --id 'a",
}


@pytest.mark.parametrize("line", BAD)
def test_what_is_wrong_is_said_in_one_line(reading: Shell, line: str) -> None:
    with pytest.raises(UsageError) as error:
        reading.run(line)
    assert BAD[line] in str(error.value)
    assert reading.shown.count("\n") == 1 and not reading["llm"].engine.live


@pytest.mark.parametrize(
    ("line", "request_id", "prompt"),
    [
        ("--id 'a b' hello", "a b", "hello"),
        ('--id "a b" hello', "a b", "hello"),
        ("--id='a b' hello", "a b", "hello"),
        ("--id 'a  b'  hello 'x y'", "a  b", "hello 'x y'"),
        ("--id \"it's\" 'x y' z", "it's", "'x y' z"),
        ("--id 'a'\"b c\" it's", "ab c", "it's"),
        ("--id 'a b' -- -x 'y", "a b", "-x 'y"),
        ("--id ab it's open ( and", "ab", "it's open ( and"),
        ("--id ab 'open", "ab", "'open"),
    ],
)
def test_quotes_hold_an_options_value_together(loaded: Shell, line: str, request_id: str, prompt: str) -> None:
    request = loaded.run(f"%nvx_add {line}")
    assert (request.request_id, request.prompt) == (request_id, prompt)
    assert [r.request_id for r in loaded.run(f'%nvx_text "{request_id}"')] == [request_id]
    assert [r.status for r in loaded.run(f'%nvx_abort "{request_id}"')] == ["abort"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("emo nobody", "no live request nobody; ended: emo"),
        ("nobody emo other nil", "no live request nobody, nil; ended: emo, other"),
        ("nobody", "no live request nobody"),
    ],
)
def test_an_abort_tells_of_those_it_ended_too(loaded: Shell, line: str, told: str) -> None:
    loaded.run("%nvx_add --id emo x", "%nvx_add --id other x")
    with pytest.raises(UsageError) as error:
        loaded.run(f"%nvx_abort {line}")
    assert str(error.value) == told
    assert set(loaded["llm"].engine.live) == {"emo", "other"} - set(line.split())
