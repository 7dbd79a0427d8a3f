"""Where to stop: events, or a Python expression, looked for in one record after the other. Knows no engine.

    until = Until.of("preempt,evict")
    for record in llm.steps():
        if why := until.matches(record):
            break

An expression runs with the rights of the process: it must come from the person at the keyboard. What a browser sends
goes through ``Until.of_events``, which evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nvexplore.engine.events import StepRecord
from nvexplore.explore.step_events import FINDERS
from nvexplore.explore.until_text import NAMES, Condition, UntilError, conditions, said_by

__all__ = ["EVENTS", "NAMES", "Until", "UntilError"]

EVENTS = {name: event.meaning for name, event in FINDERS.items()}
"""Event -> when a step counts, in words."""


class Until:
    """One or more conditions, any of which is enough; made by ``Until.of`` or ``Until.of_events``.

    Remembers the request ids of live requests in the records that it has seen, so that it can name them.
    """

    def __init__(self, conditions: Iterable[Condition]) -> None:
        self._conditions = tuple(conditions)
        self._request_ids: dict[int, str] = {}

    @classmethod
    def of(cls, what: str | Callable[[StepRecord], object] | Until) -> Until:
        """From a text, or from a function of a record whose result is true (or the words) where it is to stop.

        The text holds one or more of these, with commas between; any is enough:

        preempt:    a request was sent back to wait, by another that needed a block or by a step that failed.
        hit:        a request was admitted with tokens from the prefix cache.
        miss:       a request was admitted and the cache gave less than it could have: ``Miss.cause`` is "unseen",
                    "differs", "evicted", "orphaned" or "in_flight". No miss: "partial" (no whole block was left),
                    "disabled" (the cache is off) and "bypassed" (the request has its prompt computed whatever the
                    cache holds). One admission may be a hit and a miss.
        finish:     a request ended by itself: stop, length or error. Not one that was aborted.
        evict:      a block was allocated whose cached content was forgotten for it. Not a reset of the cache, and not
                    content that gave way to newer content under its hash.
        graph-miss: a step of decode rows alone ran without a CUDA graph for a reason of its own, which "cpu" and
                    "enforce_eager" are not.
        step==N:    step N was made.
        expression: anything else is Python over ``NAMES``, such as ``num_waiting > 4 and not num_free_blocks`` or
                    ``any(count > 64 for count in planned.count)``.

        Raises ValueError, in one line with ^ at the place, for a syntax error or an unknown name.
        """
        if isinstance(what, Until):
            return what
        if isinstance(what, str):
            return cls(conditions(what))
        if not callable(what):
            raise TypeError(f"until={what!r}: must be a text or a function of a record")
        return cls([said_by(what, getattr(what, "__name__", type(what).__name__))])

    @classmethod
    def of_events(cls, names: Iterable[str]) -> Until:
        """From names of ``EVENTS`` and nothing else: evaluates nothing. Raises ValueError for another name."""
        names = tuple(names)
        for name in names:
            if name not in FINDERS:
                raise ValueError(f"no event {name!r}: there are {', '.join(FINDERS)}")
        return cls(Condition(name, FINDERS[name].find) for name in names)

    def matches(self, record: StepRecord, name: Callable[[int], str | None] | None = None) -> str | None:
        """What ``record`` shows of what is looked for, in words: ``request b was preempted for a``; None if nothing.

        name: the request id of a seq_id; without one, or where it has none, what the records seen so far tell.
        Raises UntilError.
        """
        added = record.before.added
        self._request_ids.update(zip(added.seq_id, added.request_id, strict=True))

        def who(seq_id: int) -> str:
            request_id = (name(seq_id) if name is not None else None) or self._request_ids.get(seq_id)
            return f"sequence {seq_id}" if request_id is None else f"request {request_id}"

        found = [words for condition in self._conditions for words in condition.find(record, who)]
        for seq_id in (*record.before.aborted_seq_id, *record.committed.finished_seq_id):
            self._request_ids.pop(seq_id, None)
        return "; ".join(found) if found else None

    def is_past(self, next_step: int) -> bool:
        """Whether no step from ``next_step`` on can be one: all conditions are ``step==N``, and those are over."""
        return all(c.last_step is not None and c.last_step < next_step for c in self._conditions)

    def __str__(self) -> str:
        return ",".join(condition.text for condition in self._conditions)

    def __repr__(self) -> str:
        return f"Until({str(self)!r})"
