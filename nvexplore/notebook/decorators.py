"""IPython's decorators for magics, with the types that IPython leaves out. Adds nothing to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core import magic
from IPython.core import magic_arguments as arguments

F = TypeVar("F", bound=Callable[..., Any])


def magic_arguments(function: F) -> F:
    """Make a parser of the ``argument`` decorators below it; the docstring becomes the manual."""
    return _marked(arguments.magic_arguments, function)


def argument(*names: str, **options: Any) -> Callable[[F], F]:
    """One option or word: argparse's ``add_argument``."""
    decorate: Any = arguments.argument
    decorator: Callable[[F], F] = decorate(*names, **options)
    return decorator


def line_magic(function: F) -> F:
    """``%name``."""
    return _marked(lambda: magic.line_magic, function)


def line_cell_magic(function: F) -> F:
    """``%name`` and ``%%name``."""
    return _marked(lambda: magic.line_cell_magic, function)


def _marked(make: Any, function: F) -> F:
    marked: F = make()(function)
    return marked
