"""The text of one completion as its tokens come: whole characters, up to a stop string. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nvexplore.text.detokenizer import Decode, Detokenizer
from nvexplore.text.stop_strings import first_match, held_back


class CompletionText:
    """``push`` each token, get the text that is sure to belong to the completion; ``flush`` at the end.

    stops:      the text ends before the first of these strings; nothing of it is ever returned.
    min_tokens: stop strings that end within the text of the first so many tokens are text like any other.
    matched:    the stop string that was found, or None. What is pushed after it is ignored.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the new text; with stop strings ids are looked at one by one, as they would come."""
        if not self._stops:
            return self._detokenizer.push(token_ids)
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """Return what was held back: a half character as U+FFFD, the beginning of a stop string that did not come."""
        if self.matched is not None:
            return ""
        text = self._held + self._detokenizer.flush()
        self._held = ""
        return text

    def _push_one(self, token_id: int) -> str:
        if self.matched is not None:
            return ""
        self._num_tokens += 1
        seen = len(self._held)
        text = self._held + self._detokenizer.push([token_id])
        match = first_match(text, self._stops, seen) if self._num_tokens > self._min_tokens else None
        if match is not None:
            self.matched, self._held = match.stop, ""
            return text[: match.start]
        end = len(text) - held_back(text, self._stops)
        self._held = text[end:]
        return text[:end]
