"""Conversations: what is none is refused by the name of message and key, and text parts are text (OpenAI's form)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import LLM
from nvexplore.conversation import checked_messages
from nvexplore.toy import make_toy

USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    torch.set_num_threads(1)
    path: Path = make_toy(tmp_path_factory.mktemp("toy") / "qwen3", "qwen3")
    with LLM(path, num_kvcache_blocks=16, max_model_len=64) as llm:
        yield llm


BAD: list[tuple[Any, type[Exception], str]] = [
    ([], ValueError, "messages=[]: must have at least one message"),
    ((), ValueError, "messages=(): must have at least one message"),
    (None, TypeError, "messages=None: must be a list of dicts, not NoneType"),
    ([{}], ValueError, "messages[0]={}: must have 'role'"),
    ([USER, {"content": "Hi"}], ValueError, "messages[1]={'content': 'Hi'}: must have 'role'"),
    ([{"role": "user"}], ValueError, "messages[0]={'role': 'user'}: must have 'content'"),
    ([USER, None], TypeError, "messages[1]=None: must be a dict, not NoneType"),
    ([{"role": 3, "content": "Hi"}], TypeError, "messages[0]['role']=3: must be a str, not int"),
    ([{"role": "user", "content": 3}], TypeError, "messages[0]['content']=3: must be a text, or a list of text parts"),
    ([{"role": "user", "content": None}], TypeError, "messages[0]['content']=None: must be a text"),
    ([{"role": "user", "content": {"type": "text"}}], TypeError, "messages[0]['content']={'type': 'text'}: must be a"),
    ([{"role": "user", "content": b"Hi"}], TypeError, "messages[0]['content']=b'Hi': must be a text"),
    ([{"role": "user", "content": []}], ValueError, "messages[0]['content']=[]: must have at least one part"),
    ([{"role": "user", "content": ["Hi"]}], TypeError, "messages[0]['content'][0]='Hi': must be a dict, not str"),
    ([{"role": "user", "content": [{}]}], ValueError, "messages[0]['content'][0]['type']=None: must be 'text'"),
    (
        [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b"}]}],
        ValueError,
        "messages[1]['content'][1]['type']='image_url': must be 'text'",
    ),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        ValueError,
        "messages[0]['content'][0]={'type': 'text'}: must have 'text'",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": 3}]}],
        TypeError,
        "messages[0]['content'][0]['text']=3: must be a str, not int",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": "a\ud800"}]}],
        ValueError,
        "messages[0]['content'][0]['text']: character 1 is '\\ud800'",
    ),
]


@pytest.mark.parametrize(("messages", "error", "words"), BAD, ids=map(str, range(len(BAD))))
def test_what_is_no_conversation_is_named(llm: LLM, messages: Any, error: type[Exception], words: str) -> None:
    for call in (llm.chat_prompt, llm.chat):
        with pytest.raises(error, match=f"^{re.escape(words)}"):
            call(messages)
    assert not llm.has_unfinished


def test_text_parts_are_their_texts(llm: LLM) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    given = [{"role": "user", "content": parts}]
    assert llm.chat_prompt(given) == llm.chat_prompt([{"role": "user", "content": "one\ntwo"}])
    assert given[0]["content"] is parts  # the caller's own is as it was
    assert llm.chat_prompt([{"role": "user", "content": parts[:1]}]) == llm.chat_prompt(
        [{"role": "user", "content": "one"}]
    )


def test_what_a_template_may_take_beside_them_stays() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    answer = {"role": "tool", "content": "4", "tool_call_id": "1"}
    without = {"role": "assistant", "tool_calls": [{"id": "1"}]}
    assert checked_messages([USER, call, answer, without]) == [USER, call, answer, without]
    assert checked_messages(iter([USER])) == [USER]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{{ messages[7]['content'] }}", "list object has no element 7"),
        ("{{ messages[0]['content'] + 1 }}", "can only concatenate str"),
        ("{{ messages[0].content.nothing.more }}", "'str object' has no attribute 'nothing'"),
        ("{% for", "unexpected 'end of template'"),
    ],
)
def test_what_a_template_refuses_is_said_as_such(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, template: str, words: str
) -> None:
    monkeypatch.setattr(llm.tokenizer, "chat_template", template)
    with pytest.raises(ValueError, match=r"^messages: the model's template refuses them: ") as error:
        llm.chat([USER])
    assert words.lower() in str(error.value).lower()


def test_a_long_prompt_is_refused_in_our_words_alone(
    llm: LLM, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would say of it that running it "will result in indexing errors", and it is not run."""
    from transformers.utils import logging

    monkeypatch.setattr(llm.tokenizer, "model_max_length", 64)
    monkeypatch.setattr(logging.get_logger("transformers"), "propagate", True)
    for refused in (lambda: llm.add_request("x" * 100), lambda: llm.chat([{"role": "user", "content": "x" * 100}])):
        with pytest.raises(ValueError, match="max_model_len=64"):
            refused()
    assert "indexing errors" not in capfd.readouterr().err + caplog.text
