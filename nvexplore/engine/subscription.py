"""Delivers snapshots and records to whoever watches. A subscriber can slow the engine down but never break it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType

from nvexplore.engine.events import Snapshot, StepRecord

logger = logging.getLogger(__name__)
Subscriber = Callable[[Snapshot | StepRecord], object]


class SnapshotNeeded(ValueError):
    """A subscriber raises it when it cannot go on from the record it was given; it gets a Snapshot instead."""


class Subscription:
    """One subscriber's place in the stream; ``close()`` or leaving the ``with`` block ends it.

    error: what the subscriber raised, if it did; it is then detached, so that it never sees a gap.
    """

    def __init__(self, hub: Hub, callback: Subscriber, next_step: int) -> None:
        self._hub = hub
        self.callback = callback
        self.next_step = next_step
        self.error: Exception | None = None

    @property
    def is_active(self) -> bool:
        return self in self._hub.subscriptions

    def close(self) -> None:
        if self.is_active:
            self._hub.subscriptions.remove(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Hub:
    """The subscribers and the records they have not all received yet.

    Ctrl-C inside a callback leaves the record queued: it is delivered (again) with the next call, so a subscriber may
    see a step twice but never misses one.
    """

    def __init__(self, take_snapshot: Callable[[], Snapshot]) -> None:
        self._take_snapshot = take_snapshot
        self.subscriptions: list[Subscription] = []
        self.outbox: deque[StepRecord | Snapshot] = deque()
        self._is_delivering = False

    def __bool__(self) -> bool:
        return bool(self.subscriptions)

    def subscribe(self, callback: Subscriber, snapshot: Snapshot) -> Subscription:
        subscription = Subscription(self, callback, snapshot.step)
        try:  # Ctrl-C right after the append must not leave one attached that has seen no snapshot
            self.subscriptions.append(subscription)
            callback(snapshot)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def deliver(self) -> None:
        """Bring every queued record (or snapshot, where records were lost) to every subscriber, in step order."""
        if self._is_delivering:  # a subscriber steps the engine: the outer loop delivers what that yields
            return
        if not self.outbox:
            return
        try:
            self._is_delivering = True
            while self.outbox:
                for subscription in list(self.subscriptions):
                    self._deliver_one(subscription, self.outbox[0])
                self.outbox.popleft()
        finally:
            self._is_delivering = False

    def _deliver_one(self, subscription: Subscription, item: Snapshot | StepRecord) -> None:
        step = item.step
        if subscription.next_step > step:
            return
        error = _error_of(subscription.callback, item)
        if isinstance(error, SnapshotNeeded):
            # What is in the air lands for it. An error in there is not the subscriber's: it ends this call.
            item = self._take_snapshot()
            error = _error_of(subscription.callback, item)
        if error is not None:
            subscription.error = error
            subscription.close()
            logger.error("a subscriber failed at step %d and was detached", step, exc_info=error)
        # A snapshot may be newer than the record: it holds the steps still queued.
        subscription.next_step = item.step if isinstance(item, Snapshot) else item.step + 1


def _error_of(callback: Subscriber, item: Snapshot | StepRecord) -> Exception | None:
    """What ``callback`` raises, if it does; Ctrl-C goes through."""
    try:
        callback(item)
    except Exception as error:
        return error
    return None
