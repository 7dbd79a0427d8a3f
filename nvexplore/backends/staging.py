"""Page-locked memory in which steps are built on the host, so that the device reads them without the host waiting."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_BUFFERS: Final = 3  # steps that may be built while earlier ones are still being read


class Staging:
    """Buffers in turn. One is given out again only when the device has read what was sent from it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[tuple[Tensor, torch.cuda.Event | None]] = []
        self._turn = 0

    def take(self, size: int) -> Tensor:
        """[size] int32, good until ``sent`` and two more calls."""
        if self._device.type == "cpu":
            return torch.empty(size, dtype=torch.int32, device="cpu")
        self._turn = (self._turn + 1) % _BUFFERS
        while len(self._buffers) <= self._turn:
            self._buffers.append((torch.empty(0, dtype=torch.int32, device="cpu"), None))
        buffer, read = self._buffers[self._turn]
        if read is not None:
            read.synchronize()
        if buffer.shape[0] < size:
            buffer = torch.empty(2 * size, dtype=torch.int32, device="cpu", pin_memory=True)
        self._buffers[self._turn] = buffer, None
        return buffer[:size]

    def sent(self) -> None:
        """What was built in the newest buffer is on its way: its copy has been queued."""
        if self._buffers:
            read = torch.cuda.Event()  # type: ignore[no-untyped-call]
            read.record(torch.cuda.current_stream(self._device))
            self._buffers[self._turn] = self._buffers[self._turn][0], read

    def close(self) -> None:
        self._buffers.clear()
