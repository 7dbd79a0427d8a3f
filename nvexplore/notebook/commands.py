"""What a press of a button reaches: callbacks, as long as they live, and why nothing came of it. Knows no widget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvexplore.notebook.errors import CLOSED, SessionError
from nvexplore.notebook.weak import weakly

COMMANDS = ("run", "pause", "step")

Find = Callable[[], Callable[..., object] | None]


def call_all(callbacks: list[Find], *arguments: Any) -> int:
    """Call those that live; how many there were."""
    alive = [callback for find in callbacks if (callback := find()) is not None]
    for callback in alive:
        callback(*arguments)
    return len(alive)


class Commands:
    """The callbacks of the buttons; a bound method is held weakly."""

    def __init__(self) -> None:
        self._callbacks: list[Find] = []

    def add(self, callback: Callable[[str], object]) -> None:
        """Call it with each command; a SessionError that it raises is what the reader is told."""
        self._callbacks.append(weakly(callback))

    def clear(self) -> None:
        """Nobody listens any more."""
        self._callbacks.clear()

    def press(self, name: Any, answer: Callable[[dict[str, Any]], object]) -> None:
        """Call all callbacks, then ``answer`` with a message for the page: why nothing came of it, "" if it was taken.

        A page may send anything: what is no name of COMMANDS is passed over. What callbacks raise besides a
        SessionError is told and passed on: it is a fault, which the kernel shows too.
        """
        if name not in COMMANDS:
            return
        refused = ""
        try:
            if not call_all(self._callbacks, name):
                refused = CLOSED
        except SessionError as error:
            refused = str(error)
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
            raise
        finally:
            answer({"type": "done", "command": name, "refused": refused})
