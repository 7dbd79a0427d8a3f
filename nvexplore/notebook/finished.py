"""The requests that have ended: all of the newest run, of the others the newest. Knows no record and no engine."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from nvexplore.notebook.summary import counted

if TYPE_CHECKING:
    from nvexplore.notebook.requests import Request

MAX_FINISHED = 1000
"""Beyond so many the oldest are forgotten, so that a long session stays small; those of the newest run do not count."""


class Finished:
    """Requests by seq_id, in the order in which they ended.

    keeps_all: a run is on: what ends now is its own, and kept until ``begin``. num_forgotten: how many are gone.
    """

    def __init__(self) -> None:
        self.keeps_all = False
        self.num_forgotten = 0
        self._before: dict[int, Request] = {}
        self._of_run: dict[int, Request] = {}
        self._after: dict[int, Request] = {}

    def begin(self) -> None:
        """A run is about to start: what ended in the one before is kept no longer than the rest."""
        before = self.all()
        num_more = max(0, len(before) - MAX_FINISHED)
        # All at once, here and below: Ctrl-C between two of them would lose some, or count them twice.
        vars(self).update(
            _before=dict(islice(before.items(), num_more, None)),
            _of_run={},
            _after={},
            num_forgotten=self.num_forgotten + num_more,
        )

    def add(self, request: Request) -> None:
        """Note a request that has ended; one that is here is passed over."""
        if request.seq_id not in self:
            (self._of_run if self.keeps_all else self._after)[request.seq_id] = request

    def trim(self) -> None:
        """Forget what is too old."""
        num_more = len(self._before) + len(self._after) - MAX_FINISHED
        if num_more > 0:
            num_before = min(num_more, len(self._before))
            vars(self).update(
                _before=dict(islice(self._before.items(), num_before, None)),
                _after=dict(islice(self._after.items(), num_more - num_before, None)),
                num_forgotten=self.num_forgotten + num_more,
            )

    def all(self) -> dict[int, Request]:
        """seq_id -> request of all that are kept, those that ended first before the others."""
        return dict(chain(self._before.items(), self._of_run.items(), self._after.items()))

    def get(self, seq_id: int) -> Request | None:
        return self._of_run.get(seq_id) or self._after.get(seq_id) or self._before.get(seq_id)

    def __contains__(self, seq_id: int) -> bool:
        return self.get(seq_id) is not None


def forgotten(number: int) -> str:
    """How many requests are no longer kept, in words; empty where none."""
    if not number:
        return ""
    are = "is" if number == 1 else "are"
    kept = f"those of the newest run are kept, and {MAX_FINISHED:,} more"
    return f"{counted(number, 'request')} that ended long ago {are} forgotten: {kept}"
