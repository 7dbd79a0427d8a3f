"""What tokens say, from a table: the text of a recording without its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class TokenTexts:
    """``TokenTexts(tokens)(token_ids)`` is their text.

    tokens: the UTF-8 of each; a character may need several tokens for it.
    """

    def __init__(self, tokens: Mapping[int, bytes]) -> None:
        self._tokens = tokens

    def __call__(self, token_ids: Iterable[int]) -> str:
        """The text; U+FFFD where a character is not whole, and for a token that is not in the table."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens.get(token_id, _MISSING)


_MISSING = "\N{REPLACEMENT CHARACTER}".encode()
