"""The runner asks after each step whether to stop, and lets no step begin before that where the answer may be yes."""

from __future__ import annotations

import asyncio

from nvexplore.notebook.runner import TaskRunner
from tests.test_task_runner import Work


def test_something_stops_a_run_once() -> None:
    work = Work(10)
    runner = work.runner(stop_at=4)
    assert runner.run_blocking() == 4
    assert runner.found == "step 4"
    assert runner.status == work.states[-1] == "stopped at step 4"
    assert runner.run_blocking() == 6
    assert runner.status == "idle"

    async def cell() -> None:
        work = Work(10)
        runner = work.runner(stop_at=4)
        runner.run()
        await runner.done()
        assert (len(work), runner.status) == (4, "stopped at step 4")
        runner.run()
        await runner.done()
        assert (len(work), runner.status) == (10, "idle")
        work.left = 5
        runner = work.runner(stop_at=12)
        runner.step(4)
        await runner.done()
        assert (len(work), work.left, runner.status) == (12, 3, "stopped at step 12")

    asyncio.run(cell())


class Overlapping:
    """A step is in the air after each ``advance``; ``step`` and ``settle`` land it first."""

    def __init__(self, steps: int) -> None:
        self.left, self.is_ahead, self.is_picky = steps, False, False
        self.done: list[str] = []

    def advance(self) -> None:
        self.land("advance")
        self.is_ahead = self.left > 0

    def settle(self) -> bool:
        if was_ahead := self.is_ahead:
            self.is_ahead = False
            self.land("settle")
        return was_ahead

    def step(self) -> None:
        assert not self.settle(), "one more than was asked for"
        self.land("step")

    def land(self, how: str) -> None:
        self.left -= 1
        self.done.append(how)

    def runner(self) -> TaskRunner:
        return TaskRunner(
            self.step,
            lambda: self.left > 0,
            advance=self.advance,
            settle=self.settle,
            is_picky=lambda: self.is_picky,
            why_stop=lambda: "it" if self.is_picky and len(self.done) == 4 else None,
        )


def test_what_has_begun_is_the_next_step() -> None:
    async def cell() -> None:
        work = Overlapping(10_000_000)
        runner = work.runner()
        assert runner.run_blocking(max_steps=2) == 2
        assert work.done == ["step", "step"]
        work.advance()
        work.is_picky = True
        assert runner.run_blocking() == 1  # it is the one to stop at
        assert work.done[2:] == ["advance", "settle"]
        work.is_picky = False
        runner.run()
        while len(work.done) < 9:
            await asyncio.sleep(0)
        made = len(work.done)
        runner.step()  # while one is in the air
        await runner.done()
        assert work.done[made:] == ["settle"]
        assert runner.num_steps == len(work.done) - 1  # one was made by hand

    asyncio.run(cell())
