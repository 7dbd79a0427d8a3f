"""What single tokens say, in bytes: a tokenizer's own text of one has no half characters. Knows no engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TokenBytes:
    """``TokenBytes(tokenizer, decode)(token_id)``: joined, the bytes of tokens are the UTF-8 of their text.

    decode: token ids -> text, without special tokens, which therefore say nothing.
    """

    def __init__(self, tokenizer: Any, decode: Callable[[list[int]], str]) -> None:
        self._tokenizer, self._decode = tokenizer, decode
        # Some tokenizers leave out the space before the first token of a text: here there is one before.
        self._anchor = list(tokenizer.encode("a", add_special_tokens=False))
        self._anchor_text = decode(self._anchor)

    def __call__(self, token_id: int) -> bytes:
        text = self._decode([*self._anchor, token_id])
        if text.startswith(self._anchor_text) and _BROKEN not in text:
            return text.removeprefix(self._anchor_text).encode()
        return self._raw(token_id) or self._decode([token_id]).encode()

    def _raw(self, token_id: int) -> bytes | None:
        """From its name in the vocabulary, where that tells bytes: <0xE2>, or the alphabet of byte-level tokenizers."""
        name = str(self._tokenizer.convert_ids_to_tokens(token_id))
        if found := _BYTE.fullmatch(name):
            return bytes.fromhex(found[1])
        letters = _alphabet()
        return bytes(letters[letter] for letter in name) if all(letter in letters for letter in name) else None


@cache
def _alphabet() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte: itself where it prints, else one from U+0100 on.

    Source: GPT-2's vocabulary, which all of them follow.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
