"""The runner of live runs: flags from any thread, slices, errors, the end (J17)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from nvexplore.notebook.runner import TaskRunner


class Work:
    """So many steps to make; ``at`` is called with the number of each."""

    def __init__(self, steps: int, at: Callable[[int], None] = lambda n: None, seconds: float = 0.0) -> None:
        self.left, self.at, self.seconds = steps, at, seconds
        self.times: list[float] = []
        self.threads: set[str] = set()
        self.states: list[str] = []

    def step(self) -> None:
        self.times.append(time.monotonic())
        self.threads.add(threading.current_thread().name)
        self.at(len(self.times))
        time.sleep(self.seconds)
        self.left -= 1

    def runner(self, slice_s: float = 0.03, stop_at: int = 0) -> TaskRunner:
        return TaskRunner(
            self.step,
            lambda: self.left > 0,
            why_stop=lambda: f"step {stop_at}" if len(self) == stop_at else None,
            on_change=lambda r: self.states.append(r.status),
            slice_s=slice_s,
        )

    def __len__(self) -> int:
        return len(self.times)


def test_blocking_needs_no_loop() -> None:
    work = Work(10)
    runner = work.runner()
    assert runner.status == "paused"
    assert runner.run_blocking(max_steps=3) == 3
    assert runner.run_blocking(max_steps=2) == 2
    assert runner.run_blocking() == 5
    assert runner.run_blocking() == 0
    assert runner.status == "idle"
    assert work.states == ["running", "paused"] * 2 + ["running", "idle"] * 2
    with pytest.raises(RuntimeError, match="no event loop runs here"):
        runner.run()
    runner.pause()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.run_blocking()


def test_blocking_inside_a_running_loop() -> None:
    async def cell() -> int:
        return Work(5).runner().run_blocking()

    assert asyncio.run(cell()) == 5


def test_blocking_passes_errors_on_and_can_go_on() -> None:
    def interrupt(n: int) -> None:
        if n == 3:
            raise KeyboardInterrupt

    work = Work(6, interrupt)
    runner = work.runner()
    with pytest.raises(KeyboardInterrupt):
        runner.run_blocking()
    assert (runner.num_steps, runner.status) == (2, "paused")
    assert runner.run_blocking() == 4


def test_blocking_stops_when_another_thread_pauses() -> None:
    work = Work(10_000, seconds=0.001)
    runner = work.runner()
    threading.Timer(0.05, runner.pause).start()
    assert 0 < runner.run_blocking() < 10_000


def test_a_live_run_leaves_room_for_others() -> None:
    async def cell() -> None:
        work = Work(60, seconds=0.004)
        runner = work.runner()
        runner.run()
        assert len(work) == 0  # returns at once
        gaps, before = [], time.monotonic()
        while runner.is_running:
            await asyncio.sleep(0)
            now = time.monotonic()
            gaps.append(now - before)
            before = now
        assert len(work) == 60
        assert work.threads == {threading.current_thread().name}
        slices = [gap for gap in gaps if gap > 0.004]
        assert len(slices) >= 60 * 0.004 / 0.03  # several steps a slice, and several slices
        assert len(slices) < 60
        await runner.done()
        assert work.states[0] == "running"
        assert work.states[-1] == "idle"

    asyncio.run(cell())


def test_a_step_longer_than_a_slice_is_a_slice() -> None:
    async def cell() -> None:
        work = Work(3, seconds=0.02)
        runner = work.runner(slice_s=0.01)
        runner.run()
        for done in (0, 1, 2, 3):
            assert len(work) == done
            while runner.is_running and len(work) == done:
                await asyncio.sleep(0)

    asyncio.run(cell())


def test_commands_from_other_threads_only_set_flags() -> None:
    async def cell() -> None:
        work = Work(1_000_000)
        runner = work.runner()

        def press(*names: str) -> None:
            thread = threading.Thread(target=lambda: [getattr(runner, name)() for name in names], name="subshell")
            thread.start()
            thread.join()

        press("step", "step", "step")
        assert len(work) == 0
        await runner.done()
        assert (len(work), runner.status) == (3, "paused")
        press("run")
        await asyncio.sleep(0.05)
        assert len(work) > 3
        press("pause")
        made = len(work)
        await asyncio.sleep(0.05)
        assert len(work) == made
        assert work.states[-1] == "paused"
        press("run", "step")  # step while it runs: pause, after one more
        await runner.done()
        assert len(work) == made + 1
        assert work.threads == {threading.current_thread().name}
        runner.close()

    asyncio.run(cell())


def test_an_error_pauses_and_is_shown() -> None:
    def fail(n: int) -> None:
        if n == 2:
            raise ValueError("no such block")

    async def cell() -> None:
        work = Work(5, fail)
        runner = work.runner()
        runner.run()
        with pytest.raises(ValueError, match="no such block"):
            await runner.done()
        assert runner.status == work.states[-1] == "stopped: ValueError: no such block"
        assert repr(runner) == "TaskRunner(stopped: ValueError: no such block, 1 steps made)"
        runner.run()  # and can go on
        await runner.done()
        assert (work.left, runner.status) == (0, "idle")

    asyncio.run(cell())


def test_interrupting_the_wait_pauses_the_run() -> None:
    async def cell() -> None:
        work = Work(1_000_000)
        runner = work.runner()
        runner.run()
        waiting = asyncio.get_running_loop().create_task(runner.done())
        await asyncio.sleep(0.05)
        waiting.cancel()  # what ipykernel does to a cell that awaits
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert runner.status == "paused"
        made = len(work)
        await asyncio.sleep(0.05)
        assert len(work) <= made + 1

    asyncio.run(cell())


def test_a_blocking_run_takes_over_from_a_live_one() -> None:
    async def cell() -> None:
        work = Work(100)
        runner = work.runner()
        runner.run()
        assert runner.run_blocking(max_steps=10) == 10
        await asyncio.sleep(0.02)
        assert (len(work), runner.status) == (10, "paused")

    asyncio.run(cell())


def test_a_pace_can_be_asked_for() -> None:
    async def cell() -> None:
        work = Work(5)
        runner = work.runner()
        runner.max_hz = 50
        runner.run()
        await runner.done()
        assert all(b - a > 0.015 for a, b in zip(work.times, work.times[1:], strict=False))

    asyncio.run(cell())


def test_closed_means_not_another_step() -> None:
    async def cell() -> None:
        work = Work(1_000_000)
        runner = work.runner()
        runner.run()
        await asyncio.sleep(0.02)
        runner.close()
        runner.close()
        made = len(work)
        await asyncio.sleep(0.02)
        assert len(work) == made
        assert runner.status == "closed"
        runner.pause()
        for command in (runner.run, runner.step):
            with pytest.raises(RuntimeError, match="closed"):
                command()
        await runner.aclose()

    asyncio.run(cell())


def test_another_loop_later() -> None:
    work = Work(4)

    async def first() -> TaskRunner:
        runner = work.runner()
        runner.step()
        await runner.done()
        return runner

    async def second(runner: TaskRunner) -> None:
        runner.run()
        await runner.done()

    runner = asyncio.run(first())
    asyncio.run(second(runner))
    assert work.left == 0
