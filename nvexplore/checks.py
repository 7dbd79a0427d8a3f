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
    try:
        number = None if isinstance(value, bool) else int(operator.index(value))  # an enum's becomes a plain int too
    except TypeError:  # some arrays have an index, others of the same type do not
        number = None
    if number is None:
        raise TypeError(f"{name}={value!r}: must be an integer, not {type(value).__name__}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{name}={number}: must be at least {minimum}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name}={number}: must be at most {maximum}")
    return number


def check_ints(name: str, values: Iterable[Any], *, minimum: int, maximum: int | None = None) -> list[int]:
    """Return ``values`` as a list of ints; what ``check_int`` refuses is refused, as ``name[i]``."""
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r}: must be integers, not {type(values).__name__}")
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
    if above is not None and number <= above:
        raise ValueError(f"{name}={value!r}: must be greater than {above}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{name}={value!r}: must be at least {minimum}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name}={value!r}: must be at most {maximum}")
    return number


def check_text(name: str, value: Any) -> str:
    """Return ``value`` as a plain str; another type is a TypeError, a lone surrogate in it a ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: must be a str, not {type(value).__name__}")
    text = str.__str__(value)  # of numpy's and others' subclasses what they say, not what they print
    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise ValueError(
            f"{name}: character {at} is {text[at]!r}, half of a surrogate pair: must be whole characters, as UTF-8 has"
        ) from None
    return text
