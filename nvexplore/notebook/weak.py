"""Callbacks that do not keep alive what they call. Knows nothing else."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_Callback = TypeVar("_Callback", bound=Callable[..., object])


def weakly(callback: _Callback) -> Callable[[], _Callback | None]:
    """A function that returns ``callback``, or None once the object it is a method of is gone."""
    if inspect.ismethod(callback):
        return weakref.WeakMethod(callback)
    return lambda: callback


def if_alive(this: weakref.ref[Any], call: Callable[..., Any], *arguments: Any) -> Any:
    """``call(it, *arguments)`` for what ``this`` leads to; None once that is gone."""
    it = this()
    return None if it is None else call(it, *arguments)
