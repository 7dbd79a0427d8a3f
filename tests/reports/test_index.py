"""Every public report is accounted for: a test found by its id, or a place in the table of what later work answers.

The id stands in the name of the test function or class, or in the docstring of the test or of its module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def expanded(ids: str) -> list[str]:
    """ "N01 N05-07" -> N01, N05, N06, N07."""
    found = []
    for letter, first, last in re.findall(r"([NVJ])(\d\d)(?:-(\d\d))?", ids):
        found += [f"{letter}{number:02}" for number in range(int(first), int(last or first) + 1)]
    return found


REPORTS = expanded(
    "N01 N03 N05-07 N09 N11-12 N15-16 N18-19 N21-22 N24-27 N29-31 N34 N36 "
    "V01 V03-05 V07-09 V11-12 V14-18 V20 V22-26 V29 V31 V33-35 V37 V39 "
    "J01-02 J04-06 J08-10 J12-13 J15-17 J19-20 J22 J24 J26-27"
)

ANSWERED = {
    "scheduler and steps": expanded("N01 N05 N11 N26 N36 V03-04 V17 V34-35"),
    "prefix cache": expanded("N03 N09 N29 V01 V05 V39"),
    "aborts and interrupts": expanded("V29 J04"),
    "runner and model": expanded("N06 N12 N25 N27 N30 N34 V24"),
    "architectures and weights": expanded("N15-16 N18-19 V16 V18 V20 V22 V33"),
    "memory": expanded("V31"),
    "sampling": expanded("N21 N24 V08-09 V11"),
    "requests and their ends": expanded("N22 V07 V15 V23 V26 V37"),
    "text": expanded("V12 V14 V25"),
    "engines in one process": expanded("J09 J26-27"),
    "notebook": expanded("J01-02 J05-06 J08 J13 J15-17 J19-20 J22"),
}

# What waits for work that is still to be done, and the reason where it is not the title itself.
LATER = {
    "tensor parallelism": {
        "N07": "what a sequence takes along to a worker",
        "N15": "in processes: so far the shares of two ranks are loaded and compared in one",
        "N30": "a rendezvous for several ranks",
        "N31": "shared memory",
        "V18": "in processes: so far the shares of two ranks are loaded and compared in one",
        "J10": "workers that are started from a notebook",
        "J12": "workers whose kernel was killed",
        "J24": "an interrupt that reaches the workers",
    },
}
# Reports of which one half is a test and the other stands above.
HALVES = expanded("N15 N30 V18")


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Named:
    """A test that names reports, and why it would prove nothing, or None."""

    where: str
    ids: frozenset[str]
    flaw: str | None


def named_in(source: str, where: str) -> Iterator[Named]:
    """The tests of a file that name reports."""
    tree = ast.parse(source)
    of_module = ast.get_docstring(tree) or ""
    functions = functions_of(tree)
    is_skipped = any("skip" in ast.unparse(node) for node in tree.body if "pytestmark" in ast.unparse(node)[:10])
    inner = [each for node in tree.body if isinstance(node, ast.ClassDef) for each in node.body]
    for node in [*tree.body, *inner]:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or not node.name.lower().startswith("test"):
            continue
        text = f"{node.name.replace('_', ' ')} {ast.get_docstring(node) or ''} {of_module}"
        # TestV29Abort, test_n01_..., "N01"
        ids = frozenset(map(str.upper, re.findall(r"(?<![A-Za-z0-9])(?:Test)?([NVJnvj]\d{2})(?![0-9])", text)))
        if ids:
            flaw = "its module is skipped" if is_skipped else flaw_of(node, functions)
            yield Named(f"{where}::{node.name}", ids, flaw)


def functions_of(tree: ast.Module) -> dict[str, Function]:
    """The functions and methods of a file, and of the files of tests that it imports from."""
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    found: dict[str, Function] = {}
    for module in imported:
        if module.startswith("tests."):
            found |= own_functions(TESTS.parent.joinpath(*module.split(".")).with_suffix(".py"))
    return found | {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}


@cache
def own_functions(file: Path) -> dict[str, Function]:
    tree = ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")
    return {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}


def flaw_of(node: ast.FunctionDef | ast.ClassDef, functions: dict[str, Function]) -> str | None:
    """Why a test, or one of a class of tests, would prove nothing."""
    if any(re.search(r"skip|xfail", ast.unparse(decorator)) for decorator in node.decorator_list):
        return "it is skipped"
    if isinstance(node, ast.ClassDef):
        tests = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test")]
        flaws = [f"{test.name}: {flaw}" for test in tests if (flaw := flaw_of(test, functions)) is not None]
        return "; ".join(flaws) or (None if tests else "it has no test")
    called = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
    if any(re.fullmatch(r"pytest\.(skip|xfail|importorskip)", name) for name in called):
        return "it skips itself"
    return None if asserts(node, functions, set()) else "it asserts nothing"


def asserts(node: ast.AST, functions: dict[str, Function], seen: set[str]) -> bool:
    """An assertion stands in the function, or in one that it calls: by name, as a method of its own, as x.check()."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assert) and not isinstance(each.test, ast.Constant):
            return True
        if not isinstance(each, ast.Call):
            continue
        name = ast.unparse(each.func)
        if name in ("pytest.raises", "pytest.warns", "torch.testing.assert_close"):
            return True
        owner, _, short = name.rpartition(".")
        if owner not in ("", "self", "cls") and not short.startswith(("check", "assert")):
            continue
        if short in functions and short not in seen and asserts(functions[short], functions, seen | {short}):
            return True
    return False


@pytest.fixture(scope="module")
def index() -> dict[str, list[Named]]:
    """id -> the tests that name it."""
    merged: dict[str, list[Named]] = {}
    for source in sorted(TESTS.rglob("test_*.py")):
        if source != Path(__file__):
            for test in named_in(source.read_text(encoding="utf-8"), str(source.relative_to(TESTS))):
                for name in test.ids:
                    merged.setdefault(name, []).append(test)
    return merged


def test_all_reports_are_accounted_for_once() -> None:
    answered = [name for ids in ANSWERED.values() for name in ids]
    later = [name for ids in LATER.values() for name in ids]
    assert len(REPORTS) == len(set(REPORTS)) == 69
    assert len(answered) == len(set(answered)) and len(later) == len(set(later))
    assert set(answered) | set(later) == set(REPORTS)
    assert set(answered) & set(later) == set(HALVES)
    assert all(reason for ids in LATER.values() for reason in ids.values())


@pytest.mark.parametrize("report", REPORTS)
def test_the_report_has_tests_that_prove_something(report: str, index: dict[str, list[Named]]) -> None:
    is_answered = any(report in ids for ids in ANSWERED.values())
    tests = index.get(report, [])  # of what is left for later: none, or real ones too
    assert tests or not is_answered, f"no test names {report}"
    assert [(test.where, test.flaw) for test in tests if test.flaw is not None] == []


def test_every_id_in_a_test_is_one_of_the_reports(index: dict[str, list[Named]]) -> None:
    assert {name: tests for name, tests in index.items() if name not in REPORTS} == {}


@pytest.mark.parametrize(
    ("source", "flaw"),
    [
        ("def test_n01():\n    x = 1\n    assert x", None),
        ("def test_n01():\n    with pytest.raises(ValueError):\n        f()", None),
        ("def check(x):\n    assert x\ndef test_n01():\n    check(1)", None),
        ("class TestN01:\n    def gone(self, x):\n        assert x\n    def test_a(self):\n        self.gone(1)", None),
        ("async def main(x):\n    assert x\ndef test_n01():\n    asyncio.run(main(1))", None),
        ("def test_n01():\n    '''Later.'''", "it asserts nothing"),
        ("def test_n01():\n    assert True", "it asserts nothing"),
        ("def check(x):\n    return check(x)\ndef test_n01():\n    check(1)", "it asserts nothing"),
        ("class TestN01:\n    def helper(self): ...", "it has no test"),
        ("class TestN01:\n    def test_a(self): ...", "test_a: it asserts nothing"),
        ("@pytest.mark.skip\ndef test_n01():\n    assert x", "it is skipped"),
        ("@pytest.mark.skipif(sys.platform, reason='')\ndef test_n01():\n    assert x", "it is skipped"),
        ("def test_n01():\n    pytest.skip('later')\n    assert x", "it skips itself"),
        ("pytestmark = pytest.mark.skip\ndef test_n01():\n    assert x", "its module is skipped"),
    ],
)
def test_a_test_that_proves_nothing_is_found_out(source: str, flaw: str | None) -> None:
    found = next(named_in(source, "made_up.py"))
    assert found == Named(f"made_up.py::{'TestN01' if 'class' in source else 'test_n01'}", frozenset({"N01"}), flaw)


def test_ids_are_read_wherever_they_may_stand() -> None:
    source = "'''About J02.'''\ndef test_v04_x():\n    '''N19 too, not X11.'''\n    assert x\ndef helper_n05(): ..."
    assert [sorted(test.ids) for test in named_in(source, "")] == [["J02", "N19", "V04"]]
    source = "class TestThings:\n    def test_v29_abort(self):\n        assert x\n    def test_other(self): ..."
    assert [(test.where, sorted(test.ids)) for test in named_in(source, "a.py")] == [("a.py::test_v29_abort", ["V29"])]
    assert expanded("N01 V05-07") == ["N01", "V05", "V06", "V07"]
