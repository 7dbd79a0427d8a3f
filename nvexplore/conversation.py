"""Conversations as callers give them: a list of dicts with role and content, as OpenAI has them. Knows no template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from nvexplore.checks import check_text

Messages = SequenceOf[Mapping[str, Any]]
"""Each has "role", a text, and "content": a text, or a list of ``{"type": "text", "text": ...}``, which stands for its
texts with line ends between. What else a template takes may stand beside them."""


def checked_messages(messages: Messages) -> list[dict[str, Any]]:
    """A conversation as a list, each content one text: the texts of a list are joined with line ends.

    TypeError for what is none, ValueError for a key that is missing, content that is no text, and half a character;
    each names the message. A message with "tool_calls" may have no content.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(f"messages={messages!r}: must be a list of dicts, not {type(messages).__name__}")
    found = [_checked(f"messages[{i}]", message) for i, message in enumerate(messages)]
    if not found:
        raise ValueError(f"messages={messages!r}: must have at least one message")
    return found


def _checked(name: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"{name}={message!r}: must be a dict, not {type(message).__name__}")
    may_be_silent = bool(message.get("tool_calls"))
    for key in ("role", "content"):
        if key not in message and not (key == "content" and may_be_silent):
            raise ValueError(f"{name}={message!r}: must have {key!r}")
    checked = {
        key: check_text(f"{name}[{key!r}]", value) if isinstance(value, str) else value
        for key, value in message.items()
    }
    check_text(f"{name}['role']", checked["role"])
    if "content" in checked and not (checked["content"] is None and may_be_silent):
        checked["content"] = _text_of(f"{name}['content']", checked["content"])
    return checked


def _text_of(name: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise TypeError(f"{name}={content!r}: must be a text, or a list of text parts, not {type(content).__name__}")
    if not content:
        raise ValueError(f"{name}={content!r}: must have at least one part")
    return "\n".join(_text_of_part(f"{name}[{i}]", part) for i, part in enumerate(content))


def _text_of_part(name: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise TypeError(f"{name}={part!r}: must be a dict, not {type(part).__name__}")
    kind = part.get("type")
    if kind != "text":
        raise ValueError(f"{name}['type']={kind!r}: must be 'text': models here read nothing else")
    if "text" not in part:
        raise ValueError(f"{name}={part!r}: must have 'text'")
    return check_text(f"{name}['text']", part["text"])
