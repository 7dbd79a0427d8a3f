"""The interpreter leaves out no value, and no two values that meet in some case of a test."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernels.cases import needless


class Case:
    """A test's case, as pytest collects it."""

    def __init__(self, **params: Any) -> None:
        self.callspec = SimpleNamespace(params=params)

    @property
    def pairs(self) -> set[Any]:
        return set(combinations(self.callspec.params.items(), 2))


def test_every_pair_of_values_stays() -> None:
    cases = [
        Case(dtype=dtype, head_dim=head_dim, heads=heads, splits=splits)
        for dtype, (head_dim, heads), splits in product("abc", [(16, 2), (64, 3), (80, 1), (80, 4)], (1, 2, 4))
    ]
    spared = needless(cases)
    kept = [case for case in cases if case not in spared]
    assert len(kept) == 12 < len(cases) == 36
    assert set().union(*(case.pairs for case in kept)) == set().union(*(case.pairs for case in cases))


@pytest.mark.parametrize("names", [(), ("dtype",), ("dtype", "splits")])
def test_a_test_of_two_parameters_stays_whole(names: tuple[str, ...]) -> None:
    cases = [Case(**dict.fromkeys(names, number)) for number in range(3)]
    assert needless([*cases, object()]) == []


def test_a_case_that_was_asked_for_alone_stays() -> None:
    assert needless([Case(dtype="a", head_dim=16, splits=1)]) == []
