"""Where a run ends early: what was asked for this run, and the breakpoints of all runs. Reads records; runs nothing."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nvexplore.checks import check_text
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.until import Until
from nvexplore.notebook.errors import SessionError
from nvexplore.notebook.requests import RequestLog
from nvexplore.notebook.tally import Tally

if TYPE_CHECKING:
    from nvexplore.notebook.explorer import Explorer

Condition = str | Until | Callable[[Tally], object]
"""A text or an Until (see ``Until.of``), looked for in each record; or a function of the run's sums so far."""


class Stops:
    """A subscriber that looks for what ends a run, while one goes on.

    A condition that raises has its error raised by ``reason()``: in the run, and not in the engine that delivers.
    log: the requests that the words name. Things may be set on any thread; they are looked at on the one that steps.
    """

    def __init__(self) -> None:
        self.log = RequestLog()
        self._ticked: Until | None = None
        self._breakpoints: tuple[str, ...] = ()
        self._until: Until | None = None
        self._check: Callable[[Tally], object] | None = None
        self._tally: Tally | None = None
        self._is_on = False
        self._reason: str | None = None
        self._error: Exception | None = None
        self._next_step = 0
        self._explorer: weakref.ref[Explorer] | None = None

    @property
    def breakpoints(self) -> tuple[str, ...]:
        """Names of ``nvexplore.explore.until.EVENTS`` that stop every run, or one; ValueError for another name."""
        return self._breakpoints

    @breakpoints.setter
    def breakpoints(self, names: str | Iterable[str]) -> None:
        if not isinstance(names, Iterable):
            raise TypeError(f"breakpoints={names!r}: must be names of events, not {type(names).__name__}")
        each = [names] if isinstance(names, str) else list(names)
        chosen = tuple(dict.fromkeys(check_text(f"breakpoints[{i}]", name) for i, name in enumerate(each)))
        ticked = Until.of_events(chosen)  # never Until.of: a browser may be behind this
        self._breakpoints, self._ticked = chosen, ticked if chosen else None
        explorer = self._explorer() if self._explorer is not None else None
        if explorer is not None:
            explorer.breakpoints = list(chosen)

    def begin(self, until: Condition | None = None, *, next_step: int = 0, tally: Tally | None = None) -> None:
        """A run is about to start; ``tally`` counts it. SessionError if ``until`` is a step that was made, or none."""
        condition = None if until is None or callable(until) else Until.of(until)
        if condition is not None and (never := _no_step(str(condition))) is not None:
            raise SessionError(f"until {condition}: no step has the number {never}: they are 0, 1, 2, ...")
        if condition is not None and condition.is_past(next_step):
            raise SessionError(f"until {condition}: the next step is already {next_step}")
        self._reason = self._error = None
        self._check = until if callable(until) else None
        self._tally = Tally() if tally is None and self._check is not None else tally
        self._until = condition
        self.log.finished.begin()

    def follow(self, *, is_running: bool) -> None:
        """The run has started, or has ended: what was asked for it is over then."""
        self._is_on = self.log.finished.keeps_all = is_running
        if not is_running:
            self._reason = self._error = self._until = self._check = self._tally = None

    def is_set(self) -> bool:
        """Whether each step must be looked at before the next one begins."""
        return self._until is not None or self._check is not None or self._ticked is not None

    def push(self, item: Snapshot | StepRecord) -> None:
        """A subscriber's callback; a record may come twice."""
        if isinstance(item, Snapshot):
            self._next_step = item.step
        elif item.step >= self._next_step:
            if self._is_on:
                self._look(item)
            self._next_step = item.step + 1

    def reason(self) -> str | None:
        """Why to stop after the step that was made last, if so; raises what a condition raised."""
        reason, error = self._reason, self._error
        self._reason = self._error = None
        if error is not None:
            raise error
        return reason

    def link(self, explorer: Explorer) -> Explorer:
        """Let what is ticked in the explorer's views be the breakpoints, and the other way round; returns it."""
        before = self._explorer() if self._explorer is not None else None
        if before is not explorer:
            if before is not None:
                before.unobserve(self._ticked_in_browser, "breakpoints")
            self._explorer = weakref.ref(explorer)
            explorer.breakpoints = list(self.breakpoints)
            explorer.observe(self._ticked_in_browser, "breakpoints")
        return explorer

    def _ticked_in_browser(self, change: Any) -> None:
        try:
            self.breakpoints = change["new"]
        except ValueError:  # a page may send anything; only names of events count
            change["owner"].breakpoints = list(self.breakpoints)

    def _request_id(self, seq_id: int) -> str | None:
        request = self.log.of(seq_id)
        return None if request is None else request.request_id

    def _look(self, record: StepRecord) -> None:
        try:
            if self._tally is not None:
                self._tally.push(record)
            self._reason = self._reason or self._found(record)
        except Exception as error:
            self._error = error

    def _found(self, record: StepRecord) -> str | None:
        until, ticked, check, tally = self._until, self._ticked, self._check, self._tally
        found = []
        if until is not None and (words := until.matches(record, self._request_id)) is not None:
            found.append(words)
        if check is not None and tally is not None and check(tally):
            found.append("what was asked for is so")
        if ticked is not None and (words := ticked.matches(record, self._request_id)) is not None:
            found.append(f"{words} (a breakpoint)")
        return f"step {record.step}: {'; '.join(found)}" if found else None


def _no_step(text: str) -> str | None:
    """The first number in ``step == N`` of a condition's text that no step can have; a run would go on to its end."""
    try:
        found = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):  # the name of a function
        return None
    for node in found.elts if isinstance(found, ast.Tuple) else [found]:
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
            continue
        sides = {isinstance(side, ast.Name) and side.id == "step": side for side in (node.left, *node.comparators)}
        if len(sides) == 2:
            with suppress(ValueError):  # no literal: it may be any number
                number = ast.literal_eval(sides[False])
                if not isinstance(number, (int, float)) or number < 0 or number != number // 1:
                    return ast.unparse(sides[False])
    return None
