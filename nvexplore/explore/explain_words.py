"""Sentences whose names and numbers stay apart, so that a view can make them things to click. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Ref:
    """Something that a sentence names. kind: "sequence", "block" or "step". text: of a sequence its request id, raw."""

    kind: str
    id: int
    text: str

    def __str__(self) -> str:
        return printable(self.text)


Part = str | Ref
Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids to show beside a sentence, which begin at ``position``. mark: index of the one that matters, or -1."""

    label: Parts
    token_ids: list[int]
    position: int
    mark: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``subject`` what; more.

    kind:    what the case is, for programs; see the function that made it.
    what:    the sentence without its subject. more: what would change it, or what follows from it; may be empty.
    numbers: the numbers in both, by name.
    tokens:  texts that the sentence speaks of; whoever shows them decodes them.
    ``str()`` gives all of it in one line, with what does not print in names as escapes.
    """

    kind: str
    subject: Ref
    what: Parts
    more: Parts = ()
    numbers: dict[str, int] = field(default_factory=dict)
    tokens: tuple[Tokens, ...] = ()

    def __str__(self) -> str:
        more = f"; {joined(self.more)}" if self.more else ""
        return f"{self.subject} {joined(self.what)}{more}"

    def ids(self, kind: str) -> list[int]:
        """Ids of the sequences, blocks or steps that are named, the subject first."""
        refs = (part for part in (self.subject, *self.what, *self.more) if isinstance(part, Ref))
        return list(dict.fromkeys(ref.id for ref in refs if ref.kind == kind))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, without ``tokens``: a part that names something is [kind, id, raw text]."""
        return {
            "kind": self.kind,
            "subject": _plain(self.subject),
            "what": [_plain(part) for part in self.what],
            "more": [_plain(part) for part in self.more],
            "numbers": self.numbers,
        }


def _plain(part: Part) -> str | list[str | int]:
    return part if isinstance(part, str) else [part.kind, part.id, part.text]


def joined(parts: Parts) -> str:
    """The parts as text."""
    return "".join(map(str, parts))


def printable(text: str) -> str:
    """``text`` on one line: what does not print (line ends, controls, direction marks) as an escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def step_ref(step: int) -> Ref:
    return Ref("step", step, f"step {step}")


def block_ref(block: int) -> Ref:
    return Ref("block", block, f"block {block}")


def counted(number: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """``1 is``, ``2 are``, ``none is``."""
    return "1 is" if number == 1 else f"{number:,} are" if number else "none is"


def all_taken(places: int) -> str:
    return f"all {places:,} places are taken" if places > 1 else "the only place is taken"


def fill(template: str, **values: Part | int | Parts) -> Parts:
    """The template's parts: ``{name}`` is a text, a number, a Ref or parts again. Texts that meet become one."""
    parts: list[Part] = []

    def add(part: Part) -> None:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)

    for literal, name, _, _ in Formatter().parse(template):
        add(literal)
        if name is None:
            continue
        value = values[name]
        if isinstance(value, tuple):
            for part in value:
                add(part)
        else:
            add(f"{value:,}" if isinstance(value, int) else value)
    return tuple(parts)


def listed(refs: Sequence[Ref], most: int = MOST_NAMED) -> Parts:
    """``a``, ``a and b``, ``a, b and c``, ``a, b, c and 2 more``."""
    parts: list[Part] = [*refs] if len(refs) <= most + 1 else [*refs[:most], f"{len(refs) - most:,} more"]
    found: list[Part] = []
    for i, part in enumerate(parts):
        if i:
            found.append(" and " if i == len(parts) - 1 else ", ")
        found.append(part)
    return fill("{all}", all=tuple(found))
