"""Makes mutants of source code: one small change each, of the kinds that slips of the hand are made of.

A mutator of our own, over ``ast``, since the libraries do not fit. mutmut 3 (libcst) moves its operators about
(``mutmut.node_mutation`` in 3.3, ``mutmut.mutation.mutators`` in 3.8), brings a terminal toolkit along, and changes
mostly strings and arguments, no condition as a whole and no statement. cosmic-ray (parso) comes with SQLAlchemy,
aiohttp and GitPython, and what runs its mutants rewrites the files on disk.

What no test can or should notice stays as it is: annotations, docstrings, the texts of errors (all of ``raise``),
``if TYPE_CHECKING``, and how a class is declared (decorators, keywords beside its bases).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Continue: ast.Break,
    ast.Break: ast.Continue,
}
# Swapping one of these negates the comparison: negating the condition it stands for would be the same mutant.
NEGATED_BY_SWAP = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
CONDITIONS = (ast.If, ast.While, ast.IfExp)
HAVE_BODIES = (ast.If, ast.While, ast.For, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)
LEFT_OUT = {"annotation", "returns", "decorator_list"}


@dataclass(frozen=True)
class Slot:
    """A place in a tree that holds one node: a field of ``parent``, or an item of one that is a list."""

    parent: Any
    name: str
    index: int | None = None

    def get(self) -> Any:
        value = getattr(self.parent, self.name)
        return value if self.index is None else value[self.index]

    def set(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


@dataclass(frozen=True)
class Mutant:
    """One change to one file; ``code`` makes the changed module.

    name:   tells it from all others of its file, and stays what it is when another function is edited.
    before, after: what is changed: a statement or the head of one, or the part of it around the change.
    """

    line: int
    name: str
    before: str
    after: str
    tree: ast.Module = field(repr=False, compare=False)
    slot: Slot = field(repr=False, compare=False)
    new: ast.AST = field(repr=False, compare=False)

    def code(self, filename: str) -> CodeType:
        old = self.slot.get()
        self.slot.set(self.new)
        try:
            return compile(ast.fix_missing_locations(self.tree), filename, "exec")
        finally:
            self.slot.set(old)


def find_mutants(source: str) -> list[Mutant]:
    """Every mutant of ``source``, in its order."""
    tree, found, seen = ast.parse(source), [], Counter[str]()
    for slot, new, line, unit, scope in _walk(tree, None, ""):
        before, old = _one_line(unit), slot.get()
        slot.set(new)
        after = _one_line(unit)
        slot.set(old)
        name = f"{scope}: {before} -> {after}"
        seen[name] += 1
        found.append(Mutant(line, f"{name} ({seen[name]})", *_around(before, after), tree, slot, new))
    return found


Change = tuple[Slot, ast.AST, int, Slot, str]


def _walk(node: ast.AST, unit: Slot | None, scope: str) -> Iterator[Change]:
    """The changes below ``node``: where, to what, line, what to show, and the function they are in."""
    for slot in _slots(node):
        child = slot.get()
        if isinstance(child, ast.Raise) or (isinstance(child, ast.If) and _is_type_checking(child.test)):
            continue
        own = slot if unit is None or isinstance(child, ast.stmt) or isinstance(node, HAVE_BODIES) else unit
        for changed, new in _changes(slot, child):
            yield changed, new, getattr(child, "lineno", getattr(node, "lineno", 0)), own, scope
        named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
        yield from _walk(child, own, f"{scope}.{child.name}".lstrip(".") if named else scope)


def _slots(node: ast.AST) -> Iterator[Slot]:
    for name, value in ast.iter_fields(node):
        if name in LEFT_OUT or (name == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        if isinstance(value, ast.AST):
            yield Slot(node, name)
        elif isinstance(value, list):
            yield from (Slot(node, name, index) for index, each in enumerate(value) if isinstance(each, ast.AST))


def _changes(slot: Slot, node: Any) -> Iterator[tuple[Slot, ast.AST]]:
    """The changes of ``node`` itself, which stands in ``slot``."""
    if type(node) in SWAPS:
        yield slot, SWAPS[type(node)]()
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield slot, ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield slot, ast.Constant(node.value + 1)
            yield slot, ast.Constant(node.value - 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield slot, node.operand
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield slot, ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield Slot(node, "value"), ast.Constant(None)
    if isinstance(node, CONDITIONS) and not _is_negated_otherwise(node.test):
        yield Slot(node, "test"), ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            if not _is_negated_otherwise(test):
                yield Slot(node, "ifs", index), ast.UnaryOp(ast.Not(), test)


def _is_negated_otherwise(test: ast.expr) -> bool:
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and isinstance(test.ops[0], NEGATED_BY_SWAP)
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _one_line(unit: Slot) -> str:
    """What stands in ``unit``; of a statement with a body its head."""
    node = unit.get()
    head = ast.unparse(ast.fix_missing_locations(node)).strip().splitlines()
    return head[0] if isinstance(node, HAVE_BODIES) else " ".join(head)


def _around(before: str, after: str, margin: int = 40) -> tuple[str, str]:
    """Both texts without what they have in common far from where they differ."""
    head = _common(before, after)
    start, end = max(0, head - margin), max(0, _common(before[head:][::-1], after[head:][::-1]) - margin)
    return before[start : len(before) - end], after[start : len(after) - end]


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
