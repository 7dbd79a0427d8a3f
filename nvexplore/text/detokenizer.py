"""Text of token ids as they come, never a half character. Knows a decode function and no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Decode = Callable[[list[int]], str]
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """``push`` ids, get new text; all that was returned, joined, with ``flush`` at the end, is ``decode`` of all ids.

    Text that ends in U+FFFD may be the beginning of a character whose other bytes are still to come, so it is held back
    until something else follows. Only a few of the last ids are decoded each time, beginning with some whose text
    is known already: what a tokenizer does to the beginning of a text (dropping a space) concerns those alone.

    Where a tokenizer spells out unknown characters as byte tokens and the bytes are not UTF-8, decoding all ids at once
    may spoil characters before them that are complete; here they stay.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        # The window of ids and its text. Of the text, _shown has been returned; all of the first _num_shown ids' is.
        self._ids: list[int] = []
        self._text = ""
        self._shown = ""
        self._num_shown = 0

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that these ids complete."""
        self._ids += token_ids
        self._text = self._decode(self._ids)
        if not self._text.startswith(self._shown):
            # The new ids changed text that was returned: it stays, and what follows is decoded by itself.
            del self._ids[: self._num_shown]
            self._num_shown, self._shown = 0, ""
            self._text = self._decode(self._ids)
        whole = self._text.rstrip(REPLACEMENT)
        new = whole[len(self._shown) :]
        self._shown += new
        if new and len(whole) == len(self._text):
            self._move_window()
        return new

    def flush(self) -> str:
        """Return the text that was held back, at the end; the bytes of an unfinished character are one U+FFFD."""
        new = self._text[len(self._shown) :]
        self._shown = self._text
        return new

    def _move_window(self) -> None:
        """No half character stands at the end: what comes next needs only the ids since the last such place."""
        if self._num_shown:
            del self._ids[: self._num_shown]
            self._text = self._shown = self._decode(self._ids)
        self._num_shown = len(self._ids)
