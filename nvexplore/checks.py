"""Argument checks whose messages name the argument, its value and the limit. Knows nothing else."""

from __future__ import annotations

import operator
from typing import Any


def check_int(name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return ``value`` as an int; bool, float and str are TypeErrors, a value out of range is a ValueError."""
    # numpy's integers are welcome (token ids often come from arrays); True is an int only by accident.
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name}={value!r}: must be an integer, not {type(value).__name__}")
    number = operator.index(value)
    if minimum is not None and number < minimum:
        raise ValueError(f"{name}={number}: must be at least {minimum}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name}={number}: must be at most {maximum}")
    return number
