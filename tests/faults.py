"""What can go wrong while an engine works, from a seed: its runner, policy, eviction, watcher, and a call inside it."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar

from nvexplore.engine.subscription import SnapshotNeeded

T = TypeVar("T")

KINDS = ("runner", "choice", "watcher", "boundary")
RATES = {"begin": 0.05, "write": 0.01, "end": 0.05, "watcher": 0.05, "boundary": 0.2}
RATES |= {"order": 0.1, "victim": 0.7, "eviction": 0.1}
# What the engine says of a choice that is none.
REFUSALS = {"order": "which does not wait", "victim": "which is no candidate", "eviction": "which is not a free block"}

# Whether a code object is the engine's: asked at every call, and finding out takes longer than all the rest.
_is_engine: dict[CodeType, bool] = {}


class Injected(RuntimeError):
    """The error of a runner, a policy or a watcher that is no fault of the engine."""


class InterruptAt:
    """Raises at the n-th call or return (Python's and C's) inside the engine; ``with`` it around a call.

    seen: how many there were. place: where it raised, or "".
    """

    def __init__(self, nth: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.nth = nth
        self.error = error
        self.seen = 0
        self.place = ""
        self._hook = sys.unraisablehook

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        mine = _is_engine.get(code)
        if mine is None:
            mine = _is_engine[code] = "/nvexplore/engine/" in code.co_filename.replace("\\", "/")
        if not mine:
            return
        self.seen += 1
        if self.seen == self.nth:
            sys.setprofile(None)
            self.place = f"{event} in {code.co_name}, line {frame.f_lineno}"
            raise self.error(self.place)

    def __enter__(self) -> InterruptAt:
        self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        sys.setprofile(self)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        sys.unraisablehook = self._hook

    def _swallowed(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Python lets no error out of a generator that it closes because nobody needs it any more."""
        if self.place and isinstance(unraisable.exc_value, self.error):
            self.place = ""
        else:
            self._hook(unraisable)


class Faults:
    """Raises and misleads at random while ``call`` runs, and counts each kind; outside of ``call`` all is well.

    kinds: those of KINDS that happen. The seed alone decides where.
    """

    def __init__(self, seed: int = 0, kinds: tuple[str, ...] = ()) -> None:
        self.kinds = kinds
        self.counts: Counter[str] = Counter()
        self.in_call = False
        self._rng = random.Random(f"faults {seed}")
        self._refusal = ""  # what the engine has to say of the last invalid choice

    def _strikes(self, kind: str, stage: str) -> bool:
        return self.in_call and kind in self.kinds and self._rng.random() < RATES[stage]

    def _raise(self, kind: str, errors: tuple[type[BaseException], ...] = (KeyboardInterrupt, Injected)) -> NoReturn:
        error = self._rng.choice(errors)
        self.counts[f"{kind}_{error.__name__}"] += 1
        raise error(kind)

    def runner(self, stage: str) -> None:
        """Called by the toy runner as it proceeds: before it writes, after each token it writes, at the end."""
        if self._strikes("runner", stage):
            self._raise(f"runner_{stage}")

    def watcher(self, *, is_record: bool) -> None:
        """Called by a watcher that is told something; one that lost its place may ask for a snapshot."""
        if self._strikes("watcher", "watcher"):
            self._raise("watcher", (KeyboardInterrupt, Injected, *[SnapshotNeeded] * is_record))

    def spoil(self, what: str, choice: T, invalid: Callable[[], list[Any]]) -> T:
        """``choice`` of a policy or an eviction, or one of what would be ``invalid``; twice at most."""
        if not self._refusal and self.counts[f"invalid_{what}"] < 2 and self._strikes("choice", what):
            self.counts[f"invalid_{what}"] += 1
            self._refusal = REFUSALS[what]
            return self._rng.choice(invalid())  # type: ignore[no-any-return]
        return choice

    def call(self, do: Callable[[], T]) -> T | None:
        """What ``do`` returns; None if a fault of ours ended it. Whatever else goes wrong is raised."""
        nth = 0
        if "boundary" in self.kinds and self._rng.random() < RATES["boundary"]:
            nth = int(10 ** self._rng.uniform(0, 3))
        injector = InterruptAt(nth, self._rng.choice((KeyboardInterrupt, Injected)))
        self.in_call, self._refusal = True, ""
        try:
            if not nth:
                return self._unless_refused(do)
            with injector:
                return self._unless_refused(do)
        except (KeyboardInterrupt, Injected):
            return None
        finally:
            self.in_call = False
            if injector.place:
                self.counts[f"boundary_{injector.error.__name__}"] += 1

    def _unless_refused(self, do: Callable[[], T]) -> T | None:
        try:
            result = do()
        except RuntimeError as error:
            if not self._refusal or self._refusal not in str(error):
                raise
            return None
        assert not self._refusal, f"an invalid choice was taken; awaited: {self._refusal}"
        return result
