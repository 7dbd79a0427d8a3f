"""Sampled ids on their way from a device to the host, which goes on meanwhile. Knows no sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Ids:
    """Ids that are on the host already. device_ns: what the device took for their step, or None."""

    device_ns: int | None = None

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids

    def wait(self) -> list[int]:
        """The ids; may be called again."""
        ids: list[int] = self._ids.tolist()
        return ids


class CudaIds(Ids):
    """Ids that a copy in the stream's order brings into page-locked memory, and the events around their step."""

    def __init__(self, ids: Tensor, place: Tensor, began: Any) -> None:
        kept = place[: ids.shape[0]]
        kept.copy_(ids, non_blocking=True)
        super().__init__(kept)
        self.place = place
        self._began = began
        self._ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._ended.record(torch.cuda.current_stream(ids.device))

    def wait(self) -> list[int]:
        self._ended.synchronize()
        if self._began is not None:
            self.device_ns = round(self._began.elapsed_time(self._ended) * 1e6)
        return super().wait()


class ReadBack:
    """Two places for ids: a step may be launched while those of the one before have not been read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._places = [torch.empty(0, dtype=torch.int64, device="cpu")] * 2

    def begin(self) -> Any:
        """A moment on the device's clock."""
        if self._device.type == "cpu":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def start(self, ids: Tensor, began: Any, unread: Ids | None) -> Ids:
        """Send ids [n] on their way. unread: what must stay readable."""
        if self._device.type == "cpu":
            return Ids(ids.clone())
        turn = isinstance(unread, CudaIds) and unread.place is self._places[0]
        if self._places[turn].shape[0] < ids.shape[0]:
            # The old one may still be written to; whoever reads it keeps it.
            self._places[turn] = torch.empty(2 * ids.shape[0], dtype=torch.int64, device="cpu", pin_memory=True)
        return CudaIds(ids, self._places[turn], began)

    def close(self) -> None:
        self._places = [torch.empty(0, dtype=torch.int64, device="cpu")] * 2
