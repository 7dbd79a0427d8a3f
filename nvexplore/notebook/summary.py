"""A headline, a table and notes: the form of everything a magic returns. Knows neither engine nor records.

Texts come from prompts and are hostile until shown: plain text escapes what is not printable, HTML escapes
markup and isolates right-to-left runs.
"""

from __future__ import annotations

import html
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary:
    """What happened, in words; ``rows`` has one tuple a line under ``columns``."""

    headline: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        table = _aligned(self.columns, self.rows)
        return "\n".join([printable(self.headline), *table, *map(_note, self.notes)])

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        names = "".join(f'<th style="text-align:left">{html.escape(name)}</th>' for name in self.columns)
        table = f"<table><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table>" if cells else ""
        notes = "".join(f"<div>{isolated(note)}</div>" for note in self.notes)
        # Else Jupyter typesets what stands between two dollar signs of a prompt as a formula.
        return f'<div class="nvx-summary mathjax_ignore"><b>{isolated(self.headline)}</b>{table}{notes}</div>'


def printable(text: str) -> str:
    """``text`` on one line: what does not print (line ends, controls, direction marks) as an escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def isolated(text: str) -> str:
    """``text`` as HTML that stays text, with its line ends, and whose writing direction stays its own."""
    lines = "\n".join(map(printable, text.split("\n")))
    return f'<bdi style="white-space:pre-wrap">{html.escape(lines)}</bdi>'


def shortened(text: str, length: int = 60) -> str:
    """The beginning of ``text``, with an ellipsis where something was cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def counted(number: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(parts: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _note(note: str) -> str:
    return "  " + printable(note)


def _cell(text: str) -> str:
    return f'<td style="text-align:left">{isolated(text)}</td>'


def _aligned(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> list[str]:
    if not rows:
        return []
    lines = [columns, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines)
    return ["  " + "  ".join(line).rstrip() for line in padded]
