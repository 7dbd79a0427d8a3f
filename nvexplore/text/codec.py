"""Text to token ids and back, as a model's tokenizer has it, conversations included. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from nvexplore.checks import check_ints, check_text
from nvexplore.conversation import Messages, checked_messages
from nvexplore.prompts import Prompt, as_prompt
from nvexplore.text.bos import warn_of_two_bos, with_one_bos

_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
"""What transformers notes once it has warned of a text that is longer than the tokenizer's model_max_length."""


class Codec:
    """Wraps a Hugging Face tokenizer; ``path`` is what messages call it. vocab_size: the model's.

    ValueError for one without a vocabulary, which is what transformers makes of a Qwen folder that lacks the files: all
    text would vanish in it, and its only token, with id 0, end completions.
    """

    def __init__(self, tokenizer: Any, path: Path, vocab_size: int) -> None:
        if tokenizer.vocab_size < 2:
            raise ValueError(
                f"the tokenizer of {path} has a vocabulary of {tokenizer.vocab_size}: tokenizer.json, or vocab.json "
                "with merges.txt, is missing there"
            )
        # The engine refuses what is too long, in its own words; transformers would foretell errors that do not come.
        vars(tokenizer).setdefault("deprecation_warnings", {})[_TOO_LONG] = True
        self.tokenizer = tokenizer
        self._path = path
        self._vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, with the special tokens that the tokenizer adds by itself; warns of two BOS.

        TypeError for what is no text, ValueError for half a character, which no tokenizer takes.
        """
        ids = list(self.tokenizer.encode(check_text("text", text)))
        warn_of_two_bos(ids, self.tokenizer.bos_token_id)
        return ids

    def ids_of(self, prompt: Prompt) -> SequenceOf[int]:
        """Token ids of a prompt: of its text, or those that it gives, which are not checked."""
        given = as_prompt("prompt", prompt)
        return self.encode(given) if isinstance(given, str) else given

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of ``token_ids``, without special tokens, and with every space the model wrote."""
        ids = list(token_ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def text_of(self, token_ids: Iterable[int]) -> str:
        """``decode`` for ids of any origin: TypeError or ValueError for what is no id of the model's."""
        return self.decode(check_ints("token_ids", token_ids, minimum=0, maximum=self._vocab_size - 1))

    def chat_prompt(self, messages: Messages) -> list[int]:
        """Token ids of a conversation in the model's template.

        TypeError or ValueError for what is no conversation, ValueError for one that the template refuses, or without
        a template.
        """
        if not self.tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {self._path} has no chat template; use generate()")
        checked = checked_messages(messages)
        try:
            ids: Any = self.tokenizer.apply_chat_template(checked, add_generation_prompt=True, return_dict=False)
        except Exception as error:  # a template is a program of the model's makers: it may raise anything
            raise ValueError(f"messages: the model's template refuses them: {error}") from error
        bos = self.tokenizer.bos_token_id
        return with_one_bos(list(ids), bos, is_added=bos is not None and self.tokenizer.encode("")[:1] == [bos])
