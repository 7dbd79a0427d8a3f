"""Text bit by bit: no half characters, nothing of a stop string, one BOS; the byte tokenizer against any Unicode."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from nvexplore.text.bos import warn_of_two_bos, with_one_bos
from nvexplore.text.completion_text import CompletionText
from nvexplore.text.detokenizer import Detokenizer
from nvexplore.text.stop_finder import StopFinder
from nvexplore.text.stop_strings import Match, first_match, held_back
from nvexplore.toy import make_toy
from nvexplore.toy_tokenizer import NUM_BYTES, VOCAB_SIZE, write_byte_tokenizer


def decode_bytes(token_ids: list[int]) -> str:
    """What the byte tokenizer decodes (a test below compares them): its special tokens have no text."""
    return bytes(token_id for token_id in token_ids if token_id < NUM_BYTES).decode("utf-8", errors="replace")


def deltas(token_ids: list[int], decode: Any = decode_bytes) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.flush()]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def byte_fallback() -> Any:
    """A tokenizer like Llama 2's: words with a mark for the space, other characters as byte tokens."""
    from tokenizers import Tokenizer, decoders, models

    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    vocab |= {word: 257 + i for i, word in enumerate(["▁", "▁he", "llo", "▁wor", "ld", "é"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
any_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40)
# Bytes that are lead or continuation bytes, half of the time: runs of broken characters are rare otherwise.
broken_ids = st.lists(st.one_of(st.integers(0x80, 0xFF), st.sampled_from(list("añ€😀\ufffd".encode()))), max_size=30)


class TestDetokenizer:
    @given(any_text)
    def test_any_unicode_comes_in_whole_characters(self, text: str) -> None:
        ids = list(text.encode())
        parts = deltas(ids)
        assert "".join(parts) == text
        for part in parts:
            assert "\N{REPLACEMENT CHARACTER}" not in part or "\N{REPLACEMENT CHARACTER}" in text

    @given(st.one_of(any_ids, broken_ids))
    def test_joined_deltas_are_the_full_decode_of_any_ids(self, ids: list[int]) -> None:
        assert "".join(deltas(ids)) == decode_bytes(ids)

    @given(st.one_of(any_ids, broken_ids), st.integers(0, 2**32))
    def test_pieces_of_several_ids_give_the_same(self, ids: list[int], seed: int) -> None:
        rng, detokenizer, parts, rest = random.Random(seed), Detokenizer(decode_bytes), [], ids
        while rest:
            count = rng.randint(0, 4)
            parts.append(detokenizer.push(rest[:count]))
            rest = rest[count:]
        assert "".join(parts) + detokenizer.flush() == decode_bytes(ids)

    def test_a_character_is_shown_as_soon_as_it_is_whole(self) -> None:
        ids = [*b"a", *"😀".encode(), *"é".encode()]
        assert deltas(ids) == ["a", "", "", "", "😀", "", "é", ""]

    def test_an_unfinished_character_is_one_replacement_at_the_end(self) -> None:
        assert deltas(list("x😀".encode()[:3])) == ["x", "", "", "\N{REPLACEMENT CHARACTER}"]

    def test_flush_twice_tells_nothing_twice(self) -> None:
        detokenizer = Detokenizer(decode_bytes)
        assert detokenizer.push([0xE2]) == ""
        assert [detokenizer.flush(), detokenizer.flush()] == ["\N{REPLACEMENT CHARACTER}", ""]

    def test_a_real_replacement_character_is_told_once_it_is_sure(self) -> None:
        real = "\N{REPLACEMENT CHARACTER}"
        assert "".join(deltas(list(f"a{real}b{real}".encode()))) == f"a{real}b{real}"

    def test_only_a_few_ids_are_decoded_at_a_time(self) -> None:
        longest = 0

        def decode(ids: list[int]) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return decode_bytes(ids)

        text = "aé€😀" * 200
        assert "".join(deltas(list(text.encode()), decode)) == text
        assert longest <= 8

    def test_the_byte_tokenizer_is_what_these_tests_take_it_for(self, tokenizer: Any) -> None:
        rng = random.Random(0)
        for _ in range(300):
            ids = [rng.choice([rng.randrange(VOCAB_SIZE), rng.randrange(0x80, 256)]) for _ in range(rng.randint(0, 20))]
            assert tokenizer.decode(ids, skip_special_tokens=True) == decode_bytes(ids)

    @given(st.lists(st.sampled_from([*range(257, 263), *(1 + byte for byte in "€a".encode())]), max_size=12))
    def test_spaces_and_byte_tokens_of_another_tokenizer(self, ids: list[int]) -> None:
        """Its decoding drops the first space of a text, and gives up a whole run of bytes when one does not fit."""
        decode = byte_fallback().decode
        text, full = "".join(deltas(ids, decode)), decode(ids)
        if "\N{REPLACEMENT CHARACTER}" not in full:
            assert text == full
        # Otherwise whole characters, told before, have stayed.
        assert text.replace("\N{REPLACEMENT CHARACTER}", "").startswith(full.partition("\N{REPLACEMENT CHARACTER}")[0])

    def test_a_whole_character_before_a_broken_one_stays(self) -> None:
        tokenizer = byte_fallback()
        euro = [1 + byte for byte in "€".encode()]
        ids = [258, *euro, euro[0], 259]  # " he", the euro sign, a third of another, "llo"
        assert deltas(ids, tokenizer.decode) == ["he", "", "", "€", "", "\N{REPLACEMENT CHARACTER}llo", ""]


def reference_stop(text: str, stops: list[str]) -> str:
    """``text`` up to the stop string that is complete first; of those that are so together, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


short = st.text("abé", min_size=1, max_size=4)


class TestStopStrings:
    @given(st.text("abé", max_size=20), st.lists(short, min_size=1, max_size=3))
    def test_text_ends_before_the_first_and_nothing_of_it_was_told(self, text: str, stops: list[str]) -> None:
        expected = reference_stop(text, stops)
        for several in (False, True):
            completion = CompletionText(decode_bytes, stops)
            ids = list(text.encode())
            parts = [completion.push(ids)] if several else [completion.push([token_id]) for token_id in ids]
            for i in range(len(parts)):
                assert expected.startswith("".join(parts[: i + 1]))
            assert "".join(parts) + completion.flush() == expected
            assert (completion.matched is not None) == (expected != text)

    def test_no_more_is_held_back_than_may_become_one(self) -> None:
        completion = CompletionText(decode_bytes, ["abc"])
        assert [completion.push(list(part)) for part in (b"xa", b"b", b"x", b"ab", b"a")] == ["x", "", "abx", "", "ab"]
        assert completion.flush() == "a"

    def test_the_first_complete_one_wins_and_the_longest_of_these(self) -> None:
        assert first_match("xabcd", ["abcd", "bc"]) == Match(2, "bc")
        assert first_match("xabc", ["bc", "abc", "c"]) == Match(1, "abc")
        assert first_match("abab", ["ab"], after=2) == Match(2, "ab")
        assert first_match("abab", ["ab"], after=4) is None
        assert first_match("aaa", ["aa"], after=2) == Match(1, "aa")

    @pytest.mark.parametrize(
        ("text", "stops", "count"),
        [("xab", ["abc"], 2), ("xab", ["b"], 0), ("", ["abc"], 0), ("abc", ["abcd", "cx"], 3), ("x", ["abc"], 0)],
    )
    def test_held_back(self, text: str, stops: list[str], count: int) -> None:
        assert held_back(text, stops) == count

    def test_what_ends_within_min_tokens_is_text(self) -> None:
        completion = CompletionText(decode_bytes, ["aa"], min_tokens=2)
        assert [completion.push([token_id]) for token_id in b"aaab"] == ["", "a", "", ""]
        assert completion.matched == "aa" and completion.flush() == ""  # the one that the third token completes


class TestStopFinder:
    """The engine's matcher: its memory must not show."""

    def sequence(self, ids: list[int], stop: str = "stop", **params: Any) -> Sequence:
        seq = Sequence(0, list(b"stop"), SamplingParams(stop=stop, **params), request_id="a")
        seq.token_ids += ids
        return seq

    def answers(self, finder: StopFinder, seq: Sequence, ids: bytes) -> list[str | None]:
        found = []
        for token_id in ids:
            seq.token_ids.append(token_id)
            found.append(finder(seq))
        return found

    def test_it_finds_the_string_across_tokens_and_not_in_the_prompt(self) -> None:
        assert self.answers(StopFinder(decode_bytes), self.sequence([]), b"a stop") == [None] * 5 + ["stop"]

    def test_an_undone_token_leaves_no_trace(self) -> None:
        finder, seq = StopFinder(decode_bytes), self.sequence([])
        self.answers(finder, seq, b"sto")
        seq.token_ids[-1:] = []
        assert self.answers(finder, seq, b"xop") == [None] * 3
        seq.token_ids[-2:] = []
        assert self.answers(finder, seq, b"stop")[-1] == "stop"
        seq.token_ids[-1:] = []
        assert self.answers(finder, seq, b"p") == ["stop"]  # the step that found it is done again

    def test_an_interrupt_in_the_tokenizer_leaves_no_trace(self) -> None:
        calls = 0

        def decode(ids: list[int]) -> str:
            nonlocal calls
            calls += 1
            if calls in (2, 5, 6, 12):
                raise KeyboardInterrupt
            return decode_bytes(ids)

        finder, seq = StopFinder(decode), self.sequence([])
        found, interrupts = [], 0
        for token_id in b"a stop":
            seq.token_ids.append(token_id)
            while len(found) < seq.num_completion_tokens:
                try:
                    found.append(finder(seq))
                except KeyboardInterrupt:
                    interrupts += 1
        assert found == [None] * 5 + ["stop"] and interrupts == 4

    def test_several_sequences_at_once_and_nothing_is_kept_of_the_dead(self) -> None:
        finder, one, two = StopFinder(decode_bytes), self.sequence([]), self.sequence([], stop="po")
        assert self.answers(finder, one, b"sto") == [None] * 3
        assert self.answers(finder, two, b"spo") == [None, None, "po"]
        assert self.answers(finder, one, b"p") == ["stop"]
        assert len(finder._known) == 2
        del one, two
        assert len(finder._known) == 0

    def test_asked_late_it_reads_what_it_missed(self) -> None:
        seq = self.sequence(list(b"ab s"), min_tokens=4)
        assert self.answers(StopFinder(decode_bytes), seq, b"top") == [None, None, "stop"]


@pytest.mark.parametrize(
    ("ids", "bos", "is_added", "expected"),
    [
        ([1, 1, 5], 1, True, [1, 5]),
        ([1, 1, 1, 5, 1], 1, False, [1, 5, 1]),
        ([1, 5], 1, True, [1, 5]),
        ([5], 1, True, [1, 5]),
        ([5], 1, False, [5]),
        ([0, 0, 5], 0, True, [0, 5]),
        ([5], None, True, [5]),
        ([], 1, True, [1]),
    ],
)
def test_one_bos(ids: list[int], bos: int | None, is_added: bool, expected: list[int]) -> None:
    assert with_one_bos(ids, bos, is_added) == expected


def test_two_bos_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"two BOS tokens \(id 0\)"):
        warn_of_two_bos([0, 0, 5], 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ids, bos in (([0, 5, 0], 0), ([5, 5], None), ([], 0)):
            warn_of_two_bos(ids, bos)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "qwen3_moe"])
@pytest.mark.parametrize("files", [["tokenizer.json", "tokenizer_config.json"], ["tokenizer.json"]])
def test_a_folder_without_its_vocabulary_is_refused(architecture: str, files: list[str], tmp_path: Path) -> None:
    """transformers makes a tokenizer of one token of it: words would vanish, and id 0 would end completions."""
    from nvexplore import LLM

    path = make_toy(tmp_path, architecture)
    for file in files:
        (path / file).unlink()
    if len(files) == 1:  # what Qwen's folders say
        config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
        (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=r"has a vocabulary of 1: tokenizer\.json, or vocab\.json with merges\.txt"):
        LLM(path, num_kvcache_blocks=8)
