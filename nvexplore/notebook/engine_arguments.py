"""The engine's options as options of a magic: one for each field of ``EngineConfig``, so that none is forgotten."""

from __future__ import annotations

import argparse
import types
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge
from pydantic.fields import FieldInfo

from nvexplore.config import EngineConfig
from nvexplore.notebook.decorators import F, argument
from nvexplore.notebook.magics import positive


def engine_arguments(function: F) -> F:
    """Decorate a magic with all of them, in the order of ``EngineConfig``; what is not given is None."""
    for name, field in reversed(EngineConfig.model_fields.items()):
        function = argument(f"--{name.replace('_', '-')}", **_how(name, field))(function)
    return function


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by the names that ``LLM`` has for them."""
    return {name: value for name in EngineConfig.model_fields if (value := getattr(arguments, name)) is not None}


def _how(name: str, field: FieldInfo) -> dict[str, Any]:
    """argparse's keywords for one field. TypeError for a type that no word on a line can say."""
    kinds = [kind for kind in _parts(field.annotation) if kind is not type(None)]
    words = (field.description or "").replace("`", "").replace("None: ", "left out: ")
    help = {"help": words.replace("%", "%%")}
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if choices:
        return {"choices": choices, **help}
    if kinds == [bool]:
        return {"action": argparse.BooleanOptionalAction, **help}
    if kinds == [int]:
        is_positive = any(isinstance(limit, Ge) and limit.ge == 1 for limit in field.metadata)
        return {"type": positive if is_positive else int, "metavar": "N", **help}
    if kinds == [float]:
        return {"type": float, "metavar": "X", **help}
    if str in kinds:  # an object of the user's own beside it can be given in Python only: session.load
        return {"metavar": "NAME", **help}
    raise TypeError(f"option {name} of type {field.annotation}: not a bool, a number, a text or a choice")


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
