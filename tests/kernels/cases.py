"""Which cases of a test the interpreter can do without."""

from __future__ import annotations

from itertools import combinations
from typing import Any


def needless(cases: list[Any]) -> list[Any]:
    """Those of one test's cases all of whose pairs of values meet in the others too."""
    values = {case: sorted((name, repr(value)) for name, value in params_of(case).items()) for case in cases}
    pairs = {case: set(combinations(named, 2)) for case, named in values.items() if len(named) > 2}
    missing = set().union(*pairs.values())
    left = list(pairs)
    while missing:
        best = max(left, key=lambda case: len(pairs[case] & missing))  # the first of several
        left.remove(best)
        missing -= pairs[best]
    return left


def params_of(case: Any) -> dict[str, Any]:
    return case.callspec.params if hasattr(case, "callspec") else {}
