"""Messages that are dear to make come less often; what has to be told at once does not wait for that."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from nvexplore.notebook.feed import COST_SHARE, MAX_WAIT_S, TIMER_S
from tests.fakes import toy_engine
from tests.watch import Watch, greedy


class Dear(Watch):
    """A message takes ``cost`` seconds to send, in which the clock moves on."""

    def __init__(self, cost: float) -> None:
        super().__init__()
        self.cost = cost

    def _sent(self, message: dict[str, Any]) -> None:
        super()._sent(message)
        self.now += self.cost

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        super().wait(seconds)
        if self.times[-1] + self.cost > end:
            self.now = self.times[-1] + self.cost

    def waits(self) -> list[float]:
        """Seconds from each message's end to the next."""
        return [later - sent - self.cost for sent, later in pairwise(self.times)]


@pytest.mark.parametrize(("cost", "least"), [(0.0005, 0.05), (0.002, 0.1), (0.02, MAX_WAIT_S), (1.0, MAX_WAIT_S)])
def test_a_message_that_took_long_is_followed_by_a_later_one(cost: float, least: float) -> None:
    watch, engine = Dear(cost), toy_engine(400, 4)
    engine.add_request([1, 2, 3], greedy(1500))
    with engine.subscribe(watch.feed.push):
        watch.feed.start()
        for _ in range(1000):
            engine.step()
            watch.wait(0.002)
        waits = watch.waits()
        assert len(waits) > 1 and all(least - cost - TIMER_S <= wait <= least + TIMER_S for wait in waits)
        if least < MAX_WAIT_S:
            assert len(waits) * cost / (watch.now - 100.0) < COST_SHARE + 0.001
        engine.step()
        watch.wait(MAX_WAIT_S + 2 * cost)
        assert watch.messages[-1]["step"] == engine.next_step, "the newest step is shown without a flush"
        watch.wait(5 + 2 * cost)
    assert watch.messages[-1]["full"] and watch.timer is None, "and kept when things have come to rest"


def test_what_is_asked_for_and_the_end_of_a_run_do_not_wait() -> None:
    watch, engine = Dear(0.05), toy_engine(400, 4)
    engine.add_request([1, 2, 3], greedy(200))
    with engine.subscribe(watch.feed.push):
        for tell in (watch.feed.start, watch.feed.flush, watch.feed.keyframe, watch.feed.resync):
            engine.step()
            before = len(watch.messages)
            tell()
            assert len(watch.messages) == before + 1 and watch.messages[-1]["step"] == engine.next_step
