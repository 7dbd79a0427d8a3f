"""What LLM takes as prompts, sampling parameters, messages and token ids, and how it refuses the rest by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nvexplore import LLM, SamplingParams
from nvexplore.toy import make_toy

GREEDY = SamplingParams(temperature=0, max_tokens=4)
IDS = [97, 98, 99]
OTHERS = [100, 101, 102]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    torch.set_num_threads(1)
    path: Path = make_toy(tmp_path_factory.mktemp("toy") / "qwen3", "qwen3")
    return LLM(path, num_kvcache_blocks=64, max_num_batched_tokens=32, max_model_len=64)


def prompts_of(llm: LLM, prompts: Any) -> list[list[int]]:
    return [output.prompt_token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]


ONE_PROMPT = {
    "list": IDS,
    "tuple": tuple(IDS),
    "range": range(97, 100),
    "iterator": iter(IDS),
    "list of numpy integers": [np.int64(each) for each in IDS],
    "list of scalar tensors": [torch.tensor(each) for each in IDS],
    "array": np.array(IDS),
    "array of bytes": np.array(IDS, np.uint8),
    "tensor": torch.tensor(IDS),
    "tensor of int32": torch.tensor(IDS, dtype=torch.int32),
    "text": "abc",
    "numpy's text": np.str_("abc"),
    "dict of text": {"prompt": "abc"},
    "dict of ids": {"prompt_token_ids": IDS},
    "dict of a tensor": {"prompt_token_ids": torch.tensor(IDS)},
}


@pytest.mark.parametrize("kind", ONE_PROMPT)
def test_one_prompt_alone_in_a_list_and_by_hand(llm: LLM, kind: str) -> None:
    prompt: Any = list(IDS) if kind == "iterator" else ONE_PROMPT[kind]
    assert prompts_of(llm, iter(IDS) if kind == "iterator" else prompt) == [IDS]
    assert prompts_of(llm, [prompt, OTHERS]) == prompts_of(llm, (each for each in (prompt, OTHERS))) == [IDS, OTHERS]
    seq = llm.add_request(prompt, GREEDY)
    assert seq.prompt_token_ids == IDS and all(type(each) is int for each in seq.token_ids)
    assert llm.abort(seq.request_id)
    assert sum(len(delta.token_ids) for delta in llm.stream(prompt, GREEDY)) == 4


@pytest.mark.parametrize(
    "prompts",
    [
        [IDS, OTHERS],
        (IDS, OTHERS),
        np.array([IDS, OTHERS]),
        torch.tensor([IDS, OTHERS]),
        [np.array(IDS), torch.tensor(OTHERS)],
        ["abc", "def"],
        np.array(["abc", "def"]),
        ["abc", OTHERS],
        [{"prompt": "abc"}, {"prompt_token_ids": OTHERS}],
        {"abc": 1, "def": 2}.keys(),
    ],
    ids=repr,
)
def test_several_prompts(llm: LLM, prompts: Any) -> None:
    assert prompts_of(llm, prompts) == [IDS, OTHERS]


@pytest.mark.parametrize("nothing", [[], (), np.array([], int), torch.empty(0, 4, dtype=torch.int64)], ids=repr)
def test_nothing_gives_nothing(llm: LLM, nothing: Any) -> None:
    assert prompts_of(llm, nothing) == []


BAD_PROMPTS: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "=None: must be text or token ids"),
    (5, TypeError, "=5: must be text or token ids"),
    (True, TypeError, "=True: must be text or token ids"),
    (1.5, TypeError, "=1.5: must be text or token ids"),
    (object, TypeError, "=<class 'object'>: must be text or token ids"),
    (b"abc", TypeError, "=b'abc': must be text or token ids"),
    (bytearray(b"abc"), TypeError, "=bytearray(b'abc'): must be text or token ids"),
    (memoryview(b"abc"), TypeError, ": must be text or token ids"),
    ({97}, TypeError, "={97}: must be text or token ids"),
    (frozenset({97}), TypeError, ": must be text or token ids"),
    (np.array(5), TypeError, ": must be text or token ids"),
    (torch.tensor(5), TypeError, ": must be text or token ids"),
    ({}, ValueError, "={}: a dict must have 'prompt' or 'prompt_token_ids', and nothing else"),
    ({"text": "Hi"}, ValueError, "={'text': 'Hi'}: a dict must have 'prompt'"),
    ({"prompt": "Hi", "multi_modal_data": 1}, ValueError, "a dict must have 'prompt'"),
    ({"prompt": None}, TypeError, "['prompt']=None: must be text or token ids"),
    ({"prompt_token_ids": 5}, TypeError, "['prompt_token_ids']=5: must be text or token ids"),
    ({"prompt": "a\ud800"}, ValueError, "['prompt']: character 1 is '\\ud800', half of a surrogate pair"),
    ("\ud800abc", ValueError, ": character 0 is '\\ud800', half of a surrogate pair"),
    ("abc\udfff", ValueError, ": character 3 is '\\udfff', half of a surrogate pair"),
]


@pytest.mark.parametrize(("prompt", "error", "message"), BAD_PROMPTS, ids=map(str, range(len(BAD_PROMPTS))))
def test_a_bad_prompt_is_named_wherever_it_stands(llm: LLM, prompt: Any, error: type[Exception], message: str) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("prompts", lambda: llm.generate(prompt, use_tqdm=False)),
        ("prompts[1]", lambda: llm.generate(["fine", prompt], use_tqdm=False)),
        ("prompt", lambda: llm.add_request(prompt)),
        ("prompt", lambda: llm.stream(prompt)),
    ]
    for name, call in calls:
        with pytest.raises(error, match=re.escape(message)) as raised:
            call()
        assert str(raised.value).startswith(f"{name}") and not llm.has_unfinished
        str(raised.value).encode()  # it can be shown


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([97, 1.5], TypeError, "token_ids[1]=1.5: must be an integer, not float"),
        ([97, None], TypeError, "token_ids[1]=None: must be an integer"),
        ([True], TypeError, "token_ids[0]=True: must be an integer"),
        (np.array([True, False]), TypeError, "token_ids[0]=True: must be an integer"),
        (torch.tensor([97.0]), TypeError, "token_ids[0]=97.0: must be an integer, not float"),
        (np.zeros((1, 1, 1), int), TypeError, "token_ids[0]=[0]: must be an integer, not list"),
        ([-1], ValueError, "token_ids[0]=-1: must be at least 0"),
        ([10**30], ValueError, f"token_ids[0]={10**30}: must be at most"),
        ([97, "a"], TypeError, "prompts[0]=97: must be text or token ids, not int"),
        ([["a"]], TypeError, "token_ids[0]='a': must be an integer, not str"),
    ],
    ids=repr,
)
def test_a_bad_id_is_named(llm: LLM, prompts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        llm.generate(prompts, use_tqdm=False)
    assert not llm.has_unfinished


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (5, TypeError, "sampling_params=5: must be a SamplingParams, or one a prompt, not int"),
        ("greedy", TypeError, "sampling_params='greedy': must be a SamplingParams"),
        ({"temperature": 0}, TypeError, "sampling_params={'temperature': 0}: must be a SamplingParams"),
        (SamplingParams, TypeError, "must be a SamplingParams, or one a prompt, not type"),
        ([GREEDY, 5], TypeError, "sampling_params[1]=5: must be a SamplingParams, not int"),
        ([None], TypeError, "sampling_params[0]=None: must be a SamplingParams"),
        ([GREEDY, GREEDY], ValueError, "sampling_params: 2 given for 1 prompts"),
    ],
    ids=repr,
)
def test_bad_sampling_params_are_named(llm: LLM, params: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        llm.generate("a", params, use_tqdm=False)
    if not isinstance(params, list):
        for call in (llm.add_request, llm.stream):
            with pytest.raises(TypeError, match=r"^sampling_params="):
                call("a", params)
    assert not llm.has_unfinished


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([-1], ValueError, "token_ids[0]=-1: must be at least 0"),
        ([97, 10**30], ValueError, f"token_ids[1]={10**30}: must be at most "),
        ([2**32], ValueError, f"token_ids[0]={2**32}: must be at most "),
        ([1.5], TypeError, "token_ids[0]=1.5: must be an integer"),
        ([None], TypeError, "token_ids[0]=None: must be an integer"),
        ([True], TypeError, "token_ids[0]=True: must be an integer"),
        ([[97]], TypeError, "token_ids[0]=[97]: must be an integer"),
        (torch.tensor([[97, 98]]), TypeError, "token_ids[0]=tensor([97, 98]): must be an integer"),
        (np.array([[97, 98]]), TypeError, "token_ids[0]=array([97, 98]): must be an integer"),
        (torch.tensor([1.5]), TypeError, "token_ids[0]=tensor(1.5000): must be an integer"),
        ("abc", TypeError, "token_ids='abc': must be integers, not str"),
        (b"abc", TypeError, "token_ids=b'abc': must be integers, not bytes"),
        (5, TypeError, "token_ids=5: must be integers, not int"),
        (None, TypeError, "token_ids=None: must be integers"),
    ],
    ids=repr,
)
def test_what_has_no_text_is_named(llm: LLM, ids: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        llm.decode(ids)


def test_every_id_of_the_model_has_a_text(llm: LLM) -> None:
    """Also those that the tokenizer does not know, which a model may say all the same."""
    for ids in ([], IDS, np.array(IDS), torch.tensor(IDS), [llm.model_config.vocab_size - 1], (each for each in IDS)):
        assert llm.decode(ids) in ("", "abc")


@pytest.mark.parametrize("text", [None, 5, b"abc", ["abc"]], ids=repr)
def test_what_is_no_text_is_named(llm: LLM, text: Any) -> None:
    with pytest.raises(TypeError, match=rf"^text={re.escape(repr(text))}: must be a str, not {type(text).__name__}$"):
        llm.encode(text)


@pytest.mark.parametrize("text", ["\ud800", "ab\udc00cd", "\udcff\ud800"], ids=ascii)
def test_half_a_character_is_named(llm: LLM, text: str) -> None:
    at = next(i for i, each in enumerate(text) if "\ud800" <= each <= "\udfff")
    with pytest.raises(ValueError, match=rf"^text: character {at} is "):
        llm.encode(text)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    for call in (llm.chat_prompt, llm.chat):
        with pytest.raises(ValueError, match=rf"^messages\[1\]\['content'\]: character {at} is "):
            call(messages)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "messages='Hi': must be a list of dicts, not str"),
        (None, "messages=None: must be a list of dicts"),
        ({"role": "user", "content": "Hi"}, "must be a list of dicts, not dict"),
        (["Hi"], "messages[0]='Hi': must be a dict, not str"),
    ],
    ids=repr,
)
def test_what_is_no_conversation_is_named(llm: LLM, messages: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        llm.chat(messages)
