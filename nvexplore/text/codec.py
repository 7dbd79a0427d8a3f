"""Text to token ids and back, as a model's tokenizer has it, conversations included. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nvexplore.prompts import Messages
from nvexplore.text.bos import warn_of_two_bos, with_one_bos


class Codec:
    """Wraps a Hugging Face tokenizer; ``path`` is what messages call it."""

    def __init__(self, tokenizer: Any, path: Path) -> None:
        self.tokenizer = tokenizer
        self._path = path

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, with the special tokens that the tokenizer adds by itself; warns of two BOS."""
        ids = list(self.tokenizer.encode(text))
        warn_of_two_bos(ids, self.tokenizer.bos_token_id)
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of ``token_ids``, without special tokens, and with every space the model wrote."""
        ids = list(token_ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat_prompt(self, messages: Messages) -> list[int]:
        """Token ids of a conversation in the model's template; ValueError if there is none."""
        if not self.tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {self._path} has no chat template; use generate()")
        ids: Any = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
        bos = self.tokenizer.bos_token_id
        return with_one_bos(list(ids), bos, is_added=bos is not None and self.tokenizer.encode("")[:1] == [bos])
