"""The end of an engine whose ranks do not go together any more. Imports no torch."""

from __future__ import annotations


class RankError(RuntimeError):
    """A process that holds a share of the model has failed, and the engine with it; the message says which and why."""
