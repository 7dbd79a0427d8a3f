"""The processes of the ranks beside rank 0: starts them, hears how they fare, ends them. Knows no model and no order.

They are started afresh, not forked, so that a GPU can be used in them; and by themselves, not through
``multiprocessing``, which would run the caller's script once more in each. They end when this process does, however it
ends, because their standard input does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import torch

from nvexplore.backends.ranks import ProcessRanks
from nvexplore.runner.order_channel import OrderChannel
from nvexplore.runner.rank_error import RankError

_MODULE = "nvexplore.runner.rank_process"
_TO_END_S = 10.0
_TO_TELL_S = 10.0  # between the end of a connection and the word of why


class _Process:
    """One of them. news: what it has said of itself, as its thread hears it."""

    def __init__(self, rank: int, size: int, argument: bytes, channel: OrderChannel, meeting: Path) -> None:
        self.rank = rank
        reads, writes = os.pipe()
        threads = max(1, torch.get_num_threads() // size)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= {"OMP_NUM_THREADS": str(threads)}
        told = [str(each) for each in (rank, size, channel.capacity, channel.file, writes, meeting)]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *told],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=(channel.file, writes),
            start_new_session=True,  # Ctrl-C in a terminal is for rank 0
        )
        os.close(writes)
        assert self.popen.stdin is not None
        self.stdin: IO[bytes] = self.popen.stdin
        self.news: IO[str] = os.fdopen(reads)
        self.is_here = self.is_loaded = self.is_ready = False
        self.is_gone = threading.Event()
        self.error: str | None = None
        with suppress(BrokenPipeError):  # its end will be heard of
            self.stdin.write(len(argument).to_bytes(8, "little") + argument)
            self.stdin.flush()


class RankProcesses:
    """Ranks 1 to n, each given one of ``arguments``: what to make its runner of, pickled."""

    def __init__(self, arguments: list[bytes], capacity: int, device: torch.device) -> None:
        size = len(arguments) + 1
        self.size = size
        self.channel = OrderChannel(size, capacity)
        self._device = device
        self._folder = Path(tempfile.mkdtemp(prefix="nvexplore-"))
        self._ranks: list[ProcessRanks] = []  # rank 0, once all have met
        self._error: str | None = None
        self._is_closing = False
        self._changed = threading.Condition()
        self._processes: list[_Process] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self.channel, self._folder, self._ranks)
        for rank, argument in enumerate(arguments, 1):
            process = _Process(rank, size, argument, self.channel, self._meeting)
            self._processes.append(process)
            self.channel.add(process.stdin.fileno())
            threading.Thread(target=_listen, args=(process, weakref.ref(self)), daemon=True).start()

    @property
    def _meeting(self) -> Path:
        return self._folder / "meeting"

    def meet(self) -> ProcessRanks:
        """Wait until all are here, and make rank 0 of them."""
        self._wait("is_here")
        ranks = ProcessRanks(0, self.size, self._device, self._meeting)
        self._ranks.append(ranks)
        return ranks

    def wait_loaded(self) -> None:
        """Wait until all have their weights: one that fails before is no part of what the others wait for together."""
        self._wait("is_loaded")

    def wait_ready(self) -> None:
        """Wait until all have made their runners."""
        self._wait("is_ready")

    def check(self) -> None:
        """Raise RankError where one has failed before."""
        if self._error is None and any(process.is_gone.is_set() for process in self._processes):
            self._fail(None)
        if self._error is not None:
            raise RankError(self._error)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is done with the others; an error in it ends them."""
        try:
            yield
        except (RankError, torch.OutOfMemoryError) as error:
            self._fail(error)
            raise
        except (BrokenPipeError, RuntimeError) as error:
            # Most likely another rank's, seen from here: its own word comes first.
            for process in self._processes:
                process.is_gone.wait(_TO_TELL_S if process.error is None else 0)
            self._fail(error)
            raise RankError(str(self._error)) from error
        except BaseException as error:
            self._fail(error)
            raise

    def heard(self, process: _Process, line: str) -> None:
        """What a process says: "here", "loaded", "ready", or why it ends."""
        news = json.loads(line)
        with self._changed:
            process.is_here |= news == "here"
            process.is_loaded |= news == "loaded"
            process.is_ready |= news == "ready"
            if isinstance(news, dict):
                process.error = news["error"]
            self._changed.notify_all()

    def lost(self, process: _Process) -> None:
        """A process has ended."""
        process.is_gone.set()
        with self._changed:
            self._changed.notify_all()
        if not self._is_closing:
            self._abort()

    def close(self) -> None:
        """End the processes and wait for that; may be called again."""
        self._is_closing = True
        self._finalizer()
        self._error = self._error or "the engine is closed"

    def _wait(self, what: str) -> None:
        with self._changed:
            while not all(getattr(process, what) for process in self._processes):
                self.check()
                self._changed.wait(1.0)

    def _fail(self, error: BaseException | None) -> None:
        if self._error is not None:
            return
        told = [(process.rank, process.error) for process in self._processes if process.error is not None]
        gone = [process for process in self._processes if process.is_gone.is_set()]
        if told:
            what = "; ".join(f"rank {rank} of {self.size} failed: {why}" for rank, why in told)
        elif gone:
            code = gone[0].popen.wait()
            what = f"rank {gone[0].rank} of {self.size} is gone" + (f" (killed by signal {-code})" if code < 0 else "")
        else:
            what = f"rank 0 of {self.size} failed: {type(error).__name__}: {error}"
        self._error = f"{what}. The engine cannot go on: close it and make a new one"
        self._is_closing = True
        for process in self._processes:
            process.popen.kill()  # it may be waiting for rank 0 in the middle of a step
        self._abort()
        self._finalizer()

    def _abort(self) -> None:
        if self._device.type == "cuda":
            for ranks in self._ranks:
                ranks.abort()  # kernels of rank 0 would wait for the others for ever


def _listen(process: _Process, owner: weakref.ref[RankProcesses]) -> None:
    """A thread's work: pass on what a process says until it ends."""
    with process.news as news:
        for line in news:
            if (processes := owner()) is not None:
                processes.heard(process, line)
            del processes
    process.popen.wait()
    process.is_gone.set()
    if (processes := owner()) is not None:
        processes.lost(process)


def _end(processes: list[_Process], channel: OrderChannel, folder: Path, ranks: list[ProcessRanks]) -> None:
    for process in processes:
        with suppress(OSError):
            process.stdin.close()
    for rank_0 in ranks:
        rank_0.close()
    for process in processes:
        try:
            process.popen.wait(_TO_END_S)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
    channel.close()
    shutil.rmtree(folder, ignore_errors=True)
