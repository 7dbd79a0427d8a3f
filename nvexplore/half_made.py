"""Frees what was half made when the making fails, even while somebody keeps the error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def closed_if_it_fails(close: Callable[[], object]) -> Iterator[None]:
    """An error inside ends in ``close``, and keeps no local variable of the calls that it came through.

    A notebook keeps its last error, and that its frames, which hold models and what these compute.
    """
    handled = sys.exception()
    try:
        yield
    except BaseException as error:
        at: BaseException | None = error
        while at is not None and at is not handled:  # what the caller was about before is the caller's
            traceback.clear_frames(at.__traceback__)
            at = at.__context__
        close()
        raise
