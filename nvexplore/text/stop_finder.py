"""Finds stop strings for the engine, which knows no text. Decides nothing else, and changes no sequence."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from nvexplore.engine.sequence import Sequence
from nvexplore.text.completion_text import CompletionText
from nvexplore.text.detokenizer import Decode


class StopFinder:
    """The engine's ``StopMatcher``: which stop string the newest token of a sequence has completed.

    It remembers the text so far, but the answer follows from the ids alone: asked about a token for the second time
    (a step was undone), or after an interrupt in here, it reads the completion again from its beginning.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: WeakKeyDictionary[Sequence, tuple[int, CompletionText]] = WeakKeyDictionary()

    def __call__(self, seq: Sequence) -> str | None:
        num_known, text = self._known.pop(seq, (0, None))
        if text is None or num_known >= seq.num_completion_tokens:
            params = seq.sampling_params
            num_known, text = 0, CompletionText(self._decode, params.stop_strings, params.min_tokens)
        text.push(seq.token_ids[seq.num_prompt_tokens + num_known :])
        self._known[seq] = seq.num_completion_tokens, text
        return text.matched
