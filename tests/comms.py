"""A comm that records what widgets send, in place of a kernel's, and plays the front end's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import comm
from comm.base_comm import BaseComm

from nvexplore.engine.engine import Engine
from nvexplore.notebook.explorer import Explorer
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine


class RecordedComm(BaseComm):
    """``sent``: (message type, data, buffers) in order; ``on_send`` is called with each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[tuple[str, dict[str, Any], list[bytes]]] = []
        self.on_send: Callable[[str, dict[str, Any], list[bytes]], None] | None = None
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any) -> None:
        message = (msg_type, data or {}, [bytes(buffer) for buffer in buffers or []])
        self.sent.append(message)
        if self.on_send is not None:
            self.on_send(*message)

    def set_state(self, **state: Any) -> None:
        """The front end changed traits."""
        self._receive({"method": "update", "state": state, "buffer_paths": []})

    def send_custom(self, **content: Any) -> None:
        """The front end sent a custom message."""
        self._receive({"method": "custom", "content": content})

    def _receive(self, data: dict[str, Any]) -> None:
        self.handle_msg({"content": {"data": data}, "buffers": []})  # type: ignore[arg-type]

    def messages(self) -> list[dict[str, Any]]:
        """The frames and deltas sent since the comm was opened, as store.js gets them."""
        found = []
        for kind, data, buffers in self.sent:
            if kind == "comm_msg" and (message := as_message(data, buffers)) is not None:
                found.append(message)
        return found


def as_message(data: dict[str, Any], buffers: list[bytes]) -> dict[str, Any] | None:
    """A frame or delta from what went over the comm; None if it is something else."""
    if data.get("method") == "update" and "frame" in data["state"]:
        frame = dict(data["state"]["frame"])
        for path, buffer in zip(data["buffer_paths"], buffers, strict=True):
            frame[path[1]] = buffer
        return frame
    if data.get("method") == "custom" and data["content"].get("type") == "delta":
        return data["content"] | dict(zip(data["content"]["buffers"], buffers, strict=True))
    return None


@contextmanager
def recorded_comms() -> Iterator[list[RecordedComm]]:
    """Widgets made inside open recorded comms; yields them in the order they were opened."""
    made: list[RecordedComm] = []

    def create(*args: Any, **kwargs: Any) -> RecordedComm:
        made.append(RecordedComm(*args, **kwargs))
        return made[-1]

    before = comm.create_comm
    comm.create_comm = create  # type: ignore[assignment]
    try:
        yield made
    finally:
        comm.create_comm = before


def comm_of(widget: Any) -> RecordedComm:
    assert isinstance(widget.comm, RecordedComm)
    return widget.comm


def small_engine(prompt: tuple[int, ...] = (1, 2, 3, 4, 5, 6)) -> Engine:
    engine = toy_engine(16, 4, max_num_batched_tokens=8)
    engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), request_id="first")
    return engine


def displayed(engine: Engine, **options: Any) -> Explorer:
    explorer = Explorer(**options)
    engine.subscribe(explorer.push)
    explorer._repr_mimebundle_()
    return explorer
