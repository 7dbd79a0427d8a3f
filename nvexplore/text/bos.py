"""The begin-of-sequence token: exactly one before a conversation, and a warning where a text has two.

A chat template often writes it, and many tokenizers add it by themselves; a second one costs quality that nobody sees.
"""

from __future__ import annotations

import warnings


def with_one_bos(token_ids: list[int], bos: int | None, is_added: bool) -> list[int]:
    """``token_ids`` with one BOS in front where there are several, or where there is none and the tokenizer adds it."""
    if bos is None:
        return token_ids
    count = _count_leading(token_ids, bos)
    return ([bos] if count or is_added else []) + token_ids[count:]


def warn_of_two_bos(token_ids: list[int], bos: int | None) -> None:
    """UserWarning where ``token_ids``, made from a text, begin with BOS twice."""
    if bos is not None and _count_leading(token_ids, bos) > 1:
        warnings.warn(
            f"the prompt begins with two BOS tokens (id {bos}): the text has one, and the tokenizer added another; "
            "leave it out of the text, or give token ids",
            stacklevel=4,
        )


def _count_leading(token_ids: list[int], token_id: int) -> int:
    return next((i for i, each in enumerate(token_ids) if each != token_id), len(token_ids))
