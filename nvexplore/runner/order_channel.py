"""Carries orders from rank 0 to the other ranks: memory that all share, and a pipe to each that says it is filled.

The memory has no name, so none is left behind when a process is killed; and a pipe ends with the process that writes
to it, so a rank whose rank 0 is gone knows.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_HEAD: Final = struct.Struct("<qq")  # bytes told, int32 numbers
_BELL: Final = struct.Struct("<q")  # the order's number
_TOLD: Final = 1 << 16  # bytes of an order beside its numbers
_PLACES: Final = 2  # so many orders may be on their way
_PAUSE_S: Final = 50e-6


class OrderChannel:
    """Rank 0's end, or with ``file``, which is what rank 0's is in that process, the end of another.

    size: ranks in all; capacity: int32 numbers of the longest order.
    """

    def __init__(self, size: int, capacity: int, *, rank: int = 0, file: int | None = None) -> None:
        self.capacity = capacity
        self._rank = rank
        self._first = 8 * size
        self._place_bytes = _HEAD.size + _TOLD + 8 * -(-capacity // 2)
        length = self._first + _PLACES * self._place_bytes
        self._owned: IO[bytes] | None = None
        if file is None:
            folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            self._owned = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by ``close``
            self._owned.truncate(length)
            file = self._owned.fileno()
        self.file = file
        self._memory = mmap.mmap(file, length)
        # How many orders each rank is done with.
        self._done: npt.NDArray[np.int64] = np.frombuffer(self._memory, np.int64, size)
        self._bells: list[int] = []
        self._count = 0

    # --- rank 0 ---

    def add(self, bell: int) -> None:
        """Ring this pipe, too, for each order."""
        self._bells.append(bell)

    def send(self, told: bytes, numbers: Tensor, check: Callable[[], object]) -> None:
        """Write an order [n] int32 and tell of it, as soon as there is room.

        check: called while waiting; may raise. ValueError for an order that is too long, OSError where a reader has
        gone.
        """
        if len(told) > _TOLD or numbers.shape[0] > self.capacity:
            raise ValueError(
                f"an order of {len(told):,} bytes and {numbers.shape[0]:,} numbers: there is room for {_TOLD:,} and "
                f"{self.capacity:,}"
            )
        while int(self._done[1:].min(initial=self._count)) <= self._count - _PLACES:
            check()
            time.sleep(_PAUSE_S)
        begin = self._begin()
        _HEAD.pack_into(self._memory, begin, len(told), numbers.shape[0])
        begin += _HEAD.size
        self._memory[begin : begin + len(told)] = told
        self._numbers(begin + _TOLD, numbers.shape[0])[:] = numbers.numpy()
        for bell in self._bells:
            os.write(bell, _BELL.pack(self._count))
        self._count += 1

    # --- the others ---

    def receive(self, bell: IO[bytes]) -> tuple[bytes, Tensor] | None:
        """Wait for the next order; its numbers are good until the next call. None: there will be no more."""
        self._done[self._rank] = self._count
        rung = bell.read(_BELL.size)
        if len(rung) < _BELL.size:
            return None
        assert _BELL.unpack(rung) == (self._count,)
        begin = self._begin()
        length, count = _HEAD.unpack_from(self._memory, begin)
        begin += _HEAD.size
        self._count += 1
        return self._memory[begin : begin + length], torch.from_numpy(self._numbers(begin + _TOLD, count))

    def _begin(self) -> int:
        return self._first + self._count % _PLACES * self._place_bytes

    def _numbers(self, begin: int, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._memory, np.int32, count, begin)

    def close(self) -> None:
        """Let go of the memory; it lasts as long as another process has it."""
        if self._owned is not None:
            self._owned.close()
