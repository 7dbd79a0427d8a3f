"""Keeps Python's garbage collector from walking through everything that was there before a run.

A full collection in a process with torch and a notebook takes 0.2 s, in which no step is launched: a GPU has nothing
to do, and a run of some seconds is some percent slower. It looks for cycles that nobody needs any more, and a run makes
few of them.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOBODYS = 1000
"""Fewer frozen objects than this are the interpreter's own: Python 3.12 starts with some hundred."""
_lock = threading.Lock()
_runs = 0


@contextmanager
def few_collections() -> Iterator[None]:
    """While this is entered, in any thread, collections look only at what was made since.

    Where somebody else has frozen objects already (``gc.freeze``) nothing is done: they would be thawed with ours.
    """
    global _runs
    with _lock:
        is_ours = _runs > 0 or gc.get_freeze_count() < _NOBODYS
        if is_ours:
            _runs += 1
            if _runs == 1:
                gc.freeze()
    try:
        yield
    finally:
        with _lock:
            if is_ours:
                _runs -= 1
                if _runs == 0:
                    gc.unfreeze()


def collect_all() -> None:
    """A full collection, of what was there before a run too."""
    with _lock:
        if _runs:
            gc.unfreeze()
        gc.collect()
        if _runs:
            gc.freeze()
