"""What the notebook side raises. Knows nothing else."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class SessionError(RuntimeError):
    """What cannot be done now, in a sentence for the person at the keyboard."""


class Interrupted(KeyboardInterrupt):
    """An interrupt that says what it left, and how to go on; IPython shows these words and no traceback.

    Nothing went wrong in the calls that it hit, and there are a hundred lines of them.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


Interrupted.__name__ = KeyboardInterrupt.__name__  # what front ends know an interrupt by


NO_MODEL = "no model is loaded: use %nvx_load (or Session.load) first"
CLOSED = "the model of this view is closed: the view keeps what it shows, and nothing of it runs any more"


def there(thing: T | None) -> T:
    """What a model has brought, or SessionError before there was one."""
    if thing is None:
        raise SessionError(NO_MODEL)
    return thing
