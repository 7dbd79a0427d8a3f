"""Public bug reports about text: half characters, stop strings, BOS, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvexplore import LLM, SamplingParams, TextDelta
from nvexplore.engine.batch import ScheduledBatch
from nvexplore.text.completion_text import CompletionText
from nvexplore.toy import make_toy
from nvexplore.toy_tokenizer import EOS_TOKEN_ID

BOS = "<|reserved_0|>"
Says = Callable[[bytes], LLM]


@pytest.fixture
def says(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """An LLM whose model says these bytes to every prompt, then end-of-sequence."""

    def make(text: bytes) -> LLM:
        llm = LLM(toy, num_kvcache_blocks=32)
        run = llm.runner.run  # type: ignore[union-attr]

        def scripted(batch: ScheduledBatch) -> list[int]:
            run(batch)
            seqs = [seq for seq, samples in zip(batch.seqs, batch.samples, strict=True) if samples]
            return [[*text, EOS_TOKEN_ID][min(seq.num_completion_tokens, len(text))] for seq in seqs]

        monkeypatch.setattr(llm.runner, "run", scripted)
        return llm

    return make


def streamed(llm: LLM, prompt: str | list[int], **params: Any) -> list[TextDelta]:
    """The deltas, and generate must give the same text."""
    with llm:
        asked = SamplingParams(temperature=0, **params)
        deltas = list(llm.stream(prompt, asked))
        (output,) = llm.generate([prompt], asked, use_tqdm=False)
    assert "".join(delta.text for delta in deltas) == output.text
    assert [t for delta in deltas for t in delta.token_ids] == output.token_ids
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (output.finish_reason, output.stop_reason)
    return deltas


# --- V12: stop strings ---


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "tokens", "reason"),
    [
        (["DEF", "G", "HI", "JK", "L"], ["DEFGHIJ"], "", 4, "DEFGHIJ"),
        (["x", "abc", "y"], ["b"], "xa", 2, "b"),
        (["x", "a", "b", "c"], ["abc", "ab"], "x", 3, "ab"),
        (["x", "abc", "d"], ["abc", "ab"], "x", 2, "ab"),
        (["ST", "rest"], ["S"], "", 1, "S"),
        (["a", "ab", "ac"], ["aac"], "aabac", None, None),
        (["€u", "ro"], ["u"], "€", 1, "u"),
        (["1", "\n", "\n", "2"], ["\n\n"], "1", 3, "\n\n"),
    ],
)
def test_v12_a_stop_string_over_tokens(
    pieces: list[str], stops: list[str], text: str, tokens: int | None, reason: str | None
) -> None:
    """vllm#3574, #2577, PR#3672: a stop string over several tokens was missed, or part of it was out already."""
    completion = CompletionText(lambda ids: "".join(pieces[i] for i in ids), stops)
    shown, ended = "", None
    for token_id in range(len(pieces)):
        shown += completion.push([token_id])
        assert text.startswith(shown)
        if completion.matched is not None:
            ended = token_id + 1
            break
    assert (shown + completion.flush(), ended, completion.matched) == (text, tokens, reason)


@pytest.mark.parametrize(
    ("said", "stop", "text", "tokens"),
    [
        (b"hello END more", "END", "hello ", 9),
        (b"hello EN", "END", "hello EN", 9),  # what was held back is flushed; the ninth token is end-of-sequence
        (b"END", ["END", "ND"], "", 3),
        (b"prompt", "prompt", "", 6),  # in the prompt too: only what is generated is searched
        ("é € é".encode(), "€ ", "é ", 7),
    ],
)
def test_v12_through_the_engine(says: Says, said: bytes, stop: str | list[str], text: str, tokens: int) -> None:
    """vllm#3574, #2577: the token list ends with the token that completes it, the reason is the string."""
    deltas = streamed(says(said), "the prompt", stop=stop, max_tokens=20)
    assert "".join(delta.text for delta in deltas) == text
    assert sum(len(delta.token_ids) for delta in deltas) == tokens
    found = [stop] if isinstance(stop, str) else stop
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].stop_reason == (EOS_TOKEN_ID if tokens > len(said) else found[0])


def test_v12_a_stop_string_ends_only_its_own_request(says: Says) -> None:
    """vllm PR#3672, a sibling: requests with and without stop strings, and with others, in one batch."""
    stops: list[Any] = ["c", [], ["zz", "ef"], "a"]
    with says(b"abcdefgh") as llm:
        params = [SamplingParams(temperature=0, max_tokens=8, stop=stop) for stop in stops]
        outputs = llm.generate(["p"] * 4, params, use_tqdm=False)
    assert [o.text for o in outputs] == ["ab", "abcdefgh", "abcd", ""]
    assert [o.stop_reason for o in outputs] == ["c", None, "ef", "a"]


# --- V14: half characters ---


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("a😀é".encode(), ["a", "😀", "é"]),
        ("日本".encode(), ["日", "本"]),
        ("a😀".encode()[:3], ["a", "\N{REPLACEMENT CHARACTER}"]),  # the generation ends with 2 of 4 bytes
        ("\N{REPLACEMENT CHARACTER}b".encode(), ["\N{REPLACEMENT CHARACTER}b"]),  # a real one
        (b"a\xffb", ["a", "\N{REPLACEMENT CHARACTER}b"]),
    ],
)
def test_v14_no_delta_holds_half_a_character(says: Says, said: bytes, parts: list[str]) -> None:
    """vllm#48853, vllm-mlx PR#109, ferrox#124: one U+FFFD a byte where tokens were decoded one by one."""
    deltas = streamed(says(said), "p", max_tokens=len(said), ignore_eos=True)
    assert [delta.text for delta in deltas if delta.text] == parts
    assert "".join(parts) == said.decode(errors="replace")


@pytest.mark.parametrize("said", [b"\xac!", b"!!", "€".encode()])
def test_v14_a_prompt_that_ends_in_half_a_character(says: Says, said: bytes) -> None:
    """vllm#48853: the first delta held prompt text. The completion is decoded alone: what it cannot be is U+FFFD."""
    deltas = streamed(says(said), list("x€".encode()[:3]), max_tokens=len(said), ignore_eos=True)
    assert "".join(delta.text for delta in deltas) == said.decode(errors="replace")


# --- V25: BOS ---


def with_bos(folder: Path, *, is_added: bool, in_template: bool) -> Path:
    """A toy whose tokenizer knows a BOS, adds it or not, and whose chat template writes it or not."""
    make_toy(folder, "qwen3")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    bos_id = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == BOS)
    if is_added:
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [bos_id], "tokens": [BOS]}},
        }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"bos_token": BOS}
    if in_template:
        config["chat_template"] = BOS + config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("in_template", [True, False])
@pytest.mark.parametrize("is_added", [True, False])
def test_v25_chat_has_exactly_one_bos(tmp_path: Path, is_added: bool, in_template: bool) -> None:
    """vllm#9519, PR#27515, PR#16976, PR#55288: the template wrote it and the tokenizer added another."""
    with LLM(with_bos(tmp_path, is_added=is_added, in_template=in_template), num_kvcache_blocks=16) as llm:
        bos = llm.tokenizer.bos_token_id
        ids = llm.chat_prompt([{"role": "user", "content": "hi"}])
        assert ids.count(bos) == (1 if is_added or in_template else 0)
        assert (ids[0] == bos) == (is_added or in_template)
        output = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=1))
        assert output.prompt_token_ids == ids


def test_v25_text_is_as_the_tokenizer_has_it_and_two_bos_are_warned_of(tmp_path: Path) -> None:
    """vllm#9519: nobody saw the second BOS. Ids are never touched; a text that brings its own gets a warning."""
    params = SamplingParams(max_tokens=1)
    with LLM(with_bos(tmp_path, is_added=True, in_template=True), num_kvcache_blocks=16) as llm:
        bos = llm.tokenizer.bos_token_id
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (output,) = llm.generate("hi", params, use_tqdm=False)
            assert output.prompt_token_ids == [bos, *b"hi"]
            for ids in ([*b"hi"], [bos, bos, *b"hi"]):
                assert llm.generate([ids], params, use_tqdm=False)[0].prompt_token_ids == ids
        for call in (llm.generate, llm.add_request, lambda text, params: list(llm.stream(text, params))):
            with pytest.warns(UserWarning, match="two BOS tokens"):
                call(f"{BOS}hi", params)
        assert llm.generate([[bos, *b"hi"]], params, use_tqdm=False)[0].prompt_token_ids == [bos, *b"hi"]


@pytest.mark.parametrize("texts", [["", "ok"], ["ok", "", "also ok"]])
@pytest.mark.parametrize("is_added", [True, False])
def test_v15_an_empty_text_is_a_prompt_where_the_tokenizer_adds_bos(
    tmp_path: Path, is_added: bool, texts: list[str]
) -> None:
    """vllm#7632, PR#7746: with BOS an empty text is one id and runs; without, the call is refused before it begins."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with LLM(with_bos(tmp_path, is_added=is_added, in_template=False), num_kvcache_blocks=16) as llm:
        if not is_added:
            with pytest.raises(ValueError, match="the prompt is empty"):
                llm.generate(texts, params, use_tqdm=False)
            assert not llm.has_unfinished and llm.engine.next_step == 0
            texts = [text for text in texts if text]
        outputs = llm.generate(texts, params, use_tqdm=False)
        bos = [llm.tokenizer.bos_token_id] if is_added else []
        assert [o.prompt_token_ids for o in outputs] == [[*bos, *text.encode()] for text in texts]
        assert [len(o.token_ids) for o in outputs] == [3] * len(texts)
