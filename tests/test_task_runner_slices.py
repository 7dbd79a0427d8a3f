"""Between two slices of a live run the event loop is given rounds, and now and then a moment."""

from __future__ import annotations

import asyncio
import socket

import pytest

from nvexplore.notebook.runner import REST_EVERY, ROUNDS
from tests.test_task_runner import Work

ROUNDS_OF_A_CLICK = 5  # from the socket to the button's callback, in a kernel


def test_a_message_is_read_before_the_next_slice() -> None:
    async def cell() -> None:
        page, kernel = socket.socketpair()

        def click(n: int) -> None:
            if n == 3:
                page.sendall(b"pause")

        work = Work(10, click)
        runner = work.runner(slice_s=0.0)

        async def handle() -> None:
            for _ in range(ROUNDS_OF_A_CLICK):
                await asyncio.sleep(0)
            runner.pause()

        def read() -> None:
            assert kernel.recv(5) == b"pause"
            tasks.append(asyncio.ensure_future(handle()))

        tasks: list[asyncio.Future[None]] = []
        asyncio.get_running_loop().add_reader(kernel, read)
        try:
            runner.run()
            await runner.done()
        finally:
            asyncio.get_running_loop().remove_reader(kernel)
            page.close()
            kernel.close()
        assert (len(work), runner.status, len(tasks)) == (3, "paused", 1)

    asyncio.run(cell())


def test_only_some_slices_are_followed_by_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay: float) -> None:
        delays.append(delay)
        await sleep(delay)

    async def cell() -> None:
        runner = Work(2 * REST_EVERY).runner(slice_s=0.0)  # a step each
        runner.run()
        await sleep(0.5)
        assert runner.status == "idle"

    monkeypatch.setattr(asyncio, "sleep", noted)
    asyncio.run(cell())
    assert delays == 2 * ((REST_EVERY - 1) * ROUNDS * [0.0] + [0.001])
