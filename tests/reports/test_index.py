"""Every public report this project answers for is a test, found by its id.

The id stands in the name of the test function or class, or in the docstring of the test or of its module.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ANSWERED = [
    "N01",
    "N03",
    "N05",
    "N06",
    "N09",
    "N11",
    "N18",
    "N19",
    "N21",
    "N25",
    "N27",
    "N34",
    "N36",
    "V01",
    "V04",
    "V05",
    "V15",
    "V17",
    "V20",
    "V26",
    "V29",
    "V33",
    "V39",
    "J01",
    "J02",
    "J04",
    "J05",
    "J13",
    "J17",
    "J20",
    "J22",
    "J26",
    "J27",
]


def ids_in(source: Path) -> dict[str, set[str]]:
    """id -> the tests of ``source`` that answer for it."""
    tree, found = ast.parse(source.read_text(encoding="utf-8")), dict[str, set[str]]()
    of_module = ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or not node.name.lower().startswith("test"):
            continue
        text = f"{node.name.replace('_', ' ')} {ast.get_docstring(node) or ''} {of_module}"
        # TestV29Abort, test_n01_..., "N01"
        for name in re.findall(r"(?<![A-Za-z0-9])(?:Test)?([NVJnvj]\d{2})(?![0-9])", text):
            found.setdefault(name.upper(), set()).add(node.name)
    return found


@pytest.fixture(scope="module")
def index() -> dict[str, set[str]]:
    merged: dict[str, set[str]] = {}
    for source in sorted(TESTS.rglob("test_*.py")):
        if source != Path(__file__):
            for name, tests in ids_in(source).items():
                merged.setdefault(name, set()).update(f"{source.relative_to(TESTS)}::{test}" for test in tests)
    return merged


@pytest.mark.parametrize("report", ANSWERED)
def test_the_report_has_a_test(report: str, index: dict[str, set[str]]) -> None:
    assert index.get(report), f"no test names {report}"
