"""How a frame is described and built: its columns with dtype and meaning, one table a frame. Knows no record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., pd.DataFrame])


class Column(NamedTuple):
    """dtype: a pandas dtype (capital "Int64" and "string" can be missing). meaning: with the unit, if it has one."""

    dtype: Any
    meaning: str


class Table(dict[str, Column]):
    """The columns of one frame, in order."""

    def frame(self, data: Mapping[str, Any]) -> pd.DataFrame:
        """A frame of exactly these columns and dtypes; ``data`` may be empty, or hold values for each column."""
        if data and data.keys() != self.keys():
            raise ValueError(
                f"columns {sorted(data.keys() ^ self.keys())} are in the data or in the table, not in both"
            )
        return pd.DataFrame({name: pd.Series(data.get(name, []), dtype=c.dtype) for name, c in self.items()})

    def describes(self, function: F) -> F:
        """Decorator: append the columns to the docstring."""
        width = max(map(len, self))
        lines = [f"    {name:<{width}}  {_dtype_name(c.dtype):<9} {c.meaning}" for name, c in self.items()]
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Columns:\n\n" + "\n".join(lines) + "\n"
        return function


def _dtype_name(dtype: Any) -> str:
    return "category" if isinstance(dtype, pd.CategoricalDtype) else str(dtype)


def flat(columns: list[list[Any]], dtype: type) -> NDArray[Any]:
    """Lists end to end as one array."""
    return np.fromiter(chain.from_iterable(columns), dtype, sum(map(len, columns)))
