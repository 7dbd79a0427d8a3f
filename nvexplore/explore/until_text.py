"""Conditions out of a text: events, and Python expressions over one record. Refuses names that it does not know."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from difflib import get_close_matches
from types import CodeType
from typing import Any, NamedTuple

from nvexplore.engine.events import StepRecord
from nvexplore.explore.step_events import FINDERS, Who
from nvexplore.explore.step_numbers import NUMBERS

PARTS: dict[str, Callable[[StepRecord], Any]] = {
    "record": lambda record: record,
    "before": lambda record: record.before,
    "planned": lambda record: record.planned,
    "committed": lambda record: record.committed,
}
NAMES = {**PARTS, **NUMBERS}
"""What an expression may name besides Python's built-in functions: the record, its parts, and its numbers."""
_STEP = re.compile(r"step\s*==\s*(\d+)")
_CHOICE = f"{', '.join(FINDERS)}, step==N"


class UntilError(RuntimeError):
    """A condition could not be evaluated: in which step, and why."""


class Condition(NamedTuple):
    """find: the words for what a record shows, none if it is not there. last_step: the only step there can be one."""

    text: str
    find: Callable[[StepRecord, Who], list[str]]
    last_step: int | None = None


def conditions(text: str) -> list[Condition]:
    """Those that stand between the commas. ValueError, in one line with ^ at the place, for what is none."""
    text = text.strip().replace("\n", " ")
    if not text:
        raise ValueError(f"nothing to stop at: there are {_CHOICE} and Python expressions")
    try:
        body = ast.parse(text, mode="eval").body
        compile(text, "until", "eval")  # finds what the parser alone lets pass
    except SyntaxError as error:
        place = error.offset - 1 if error.offset else len(text)  # no place: it ends too early
        raise ValueError(f"{error.msg} at the ^ in: {_marked(text, place)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"no Python expression ({error}): {_printable(text)}") from None
    return [_condition(text, node) for node in (body.elts if isinstance(body, ast.Tuple) else [body])]


def said_by(function: Callable[[StepRecord], object], text: str) -> Condition:
    """A condition out of a function whose result is true, or is the words, where it is met."""

    def find(record: StepRecord, _: Who) -> list[str]:
        try:
            result = function(record)
            return [] if not result else [result if isinstance(result, str) else text]
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise UntilError(f"until {text} could not be evaluated at step {record.step}: {what}") from error

    return Condition(text, find)


def _condition(whole: str, node: ast.expr) -> Condition:
    text = ast.get_source_segment(whole, node) or whole
    event = text.replace(" ", "")
    if event in FINDERS:
        return Condition(event, FINDERS[event].find)
    used = _checked_names(whole, node, text)
    step = _STEP.fullmatch(text)
    if step is not None:
        number = int(step[1])
        return Condition(event, lambda record, _: [f"step {number} is done"] if record.step == number else [], number)
    code = compile(ast.Expression(node), f"until {text}", "eval")
    return said_by(lambda record: _evaluated(code, used, text, record), text)


def _checked_names(whole: str, node: ast.expr, text: str) -> list[str]:
    """The names of ours in it; ValueError for one that is neither ours nor built in nor bound in the expression."""
    names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    bound |= {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
    for name in names:
        if name.id not in bound and name.id not in NAMES and not hasattr(builtins, name.id):
            near = get_close_matches(text, FINDERS, 1)
            near = near or [known for known in NAMES if known.startswith(name.id)] or get_close_matches(name.id, NAMES)
            hint = f"did you mean {near[0]}?" if near else f"events: {_CHOICE}"
            if name.id in FINDERS:
                hint = "an event stands by itself, between commas"
            place = len(whole.encode()[: name.col_offset].decode())
            raise ValueError(f"no name {name.id!r} at the ^ in: {_marked(whole, place)} ({hint})")
    return [name for name in NAMES if name in {name.id for name in names}]


def _evaluated(code: CodeType, used: list[str], text: str, record: StepRecord) -> str | None:
    """The words where it is true, with the numbers that made it so."""
    values = {name: NAMES[name](record) for name in used}
    shown = ", ".join(f"{name} = {value}" for name, value in values.items() if name in NUMBERS and name != "step")
    if not eval(code, values):
        return None
    return f"{text}{f', with {shown}' if shown else ''}"


def _marked(text: str, place: int) -> str:
    return f"{_printable(text[:place])}^{_printable(text[place:])}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
