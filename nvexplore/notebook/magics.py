"""What every %nvx_ magic shares: arguments, one-line errors, results into variables. Knows no magic by name."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics

from nvexplore.config import parse_option
from nvexplore.notebook.errors import SessionError
from nvexplore.runner.rank_error import RankError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nvexplore.notebook.session import Session
    from nvexplore.notebook.settings import NvExplore


class SessionMagics(Magics):
    """Magics that act on one session. A subclass holds the magics of one subject and no state."""

    session: Session

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        super().__init__(shell)
        self.session = session

    @property
    def settings(self) -> NvExplore:
        return self.session.settings

    def arguments(self, magic: Any, line: str) -> argparse.Namespace:
        """``line`` parsed by the magic's own @argument decorators; a UsageError says what is wrong with it."""
        lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
        lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""  # quotes group; a path keeps its \\
        try:
            words = list(lexer)
        except ValueError as error:
            raise UsageError(f"{error} in: {line}") from None
        options: argparse.Namespace = magic.parser.parse_args(words)
        return options

    def store(self, name: str | None, value: object) -> None:
        """Put ``value`` into the user's variable ``name``, if there is a name."""
        if name is None:
            return
        shell: Any = self.shell
        shell.push({name: value})


def identifier(text: str) -> str:
    """An argparse type: the name of a variable."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a variable")
    return text


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return number


def stop_string(text: str) -> str:
    r"""An argparse type: a text in which \n is a line end, which a line cannot hold itself."""
    return text.replace("\\n", "\n")


def option(text: str) -> tuple[str, Any]:
    """An argparse type: ``config.parse_option``."""
    try:
        return parse_option(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextmanager
def one_line_errors(*more: type[BaseException]) -> Iterator[None]:
    """A SessionError, a RankError or one of ``more`` is told in one line as IPython tells usage errors: Run All stops.

    ``more`` is what the user can put right here. Anything else is a fault of ours or of the machine and keeps its
    traceback: a ValueError says what is wrong with a request when it is submitted, but not when a step raises it.
    """
    expected: tuple[type[BaseException], ...] = (SessionError, RankError, *more)
    try:
        yield
    except expected as error:
        told = "; ".join([str(error), *getattr(error, "__notes__", [])])
        raise UsageError(" ".join(told.split())) from None
