"""Argument checks whose messages name the argument, its value and the limit. Knows nothing else."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
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


def check_ints(name: str, values: Iterable[Any], *, minimum: int, maximum: int | None = None) -> list[int]:
    """Return ``values`` as a list of ints; what ``check_int`` refuses is refused, as ``name[i]``."""
    items = list(values)
    # Prompts are long: where all is well, nothing is done for each token that Python does itself.
    is_plain = set(map(type, items)) <= {int}
    if items and is_plain and min(items) >= minimum and (maximum is None or max(items) <= maximum):
        return items
    return [check_int(f"{name}[{i}]", each, minimum=minimum, maximum=maximum) for i, each in enumerate(items)]


def check_number(
    name: str, value: Any, *, minimum: float | None = None, maximum: float | None = None, above: float | None = None
) -> float:
    """Return ``value`` as a float; bool and str are TypeErrors, what is not finite or out of range is a ValueError.

    minimum and maximum belong to the range, ``above`` does not.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r}: must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an int of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name}={value!r}: must be finite")
    if minimum is not None and number < minimum:
        raise ValueError(f"{name}={value!r}: must be at least {minimum}")
    if above is not None and number <= above:
        raise ValueError(f"{name}={value!r}: must be greater than {above}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name}={value!r}: must be at most {maximum}")
    return number
