"""Closes the widgets of a cell that is run again: each would stay in the kernel and in the saved notebook for ever.

The cell is known where the front end names it (JupyterLab, Notebook 7 and VS Code do); elsewhere nothing is closed.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from IPython.core.getipython import get_ipython

_Made = tuple[int, list["weakref.ref[Closable]"]]
_made: dict[tuple[str, str], _Made] = {}


class Closable(Protocol):
    def close(self) -> None: ...


def current_cell() -> tuple[str, int] | None:
    """The id of the cell that runs and the number of this execution; None outside a cell or if no id is told."""
    shell: Any = get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return None
    metadata = kernel.get_parent("shell").get("metadata", {})
    cell = metadata.get("cellId")
    return (cell, shell.execution_count) if isinstance(cell, str) else None


def close_previous(widget: Closable, kind: str) -> None:
    """Close what an earlier run of this cell made of the same kind, and remember ``widget`` for the next run."""
    cell = current_cell()
    if cell is None:
        return
    cell_id, count = cell
    previous, others = _made.get((cell_id, kind), (count, []))
    if previous != count:
        for other in others:
            alive = other()
            if alive is not None:
                alive.close()
        others = []
    _made[cell_id, kind] = (count, [*others, weakref.ref(widget)])
