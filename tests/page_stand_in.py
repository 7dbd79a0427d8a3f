"""A page with all views open, without a browser: says what it shows, asks what the views ask, counts what it gets.

It talks to a kernel as JupyterLab does: questions go to a subshell where the kernel has them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

WIDGET = "application/vnd.jupyter.widget-view+json"
QUESTIONS = {"why_view": -1, "throughput_view": -1, "prefix_view": -1, "slot_view": -1, "memory_view": 1024}
"""What the views ask about where nothing is selected: a view, and the id that it gives."""
EVERY = 0.25  # seconds between two questions of one view (widgets/questions.js)
BUDGET, SPACE = 40, 0.1  # while the engine runs: of the time, and between two answers of all views (there too)


@dataclass(frozen=True)
class Sent:
    """A message of a widget. when: seconds, as its sender had them; lag: until it was read. size: bytes on the wire."""

    when: float
    size: int
    kind: str
    lag: float = 0.0


class PageStandIn(threading.Thread):
    """``start()`` it before the views are displayed; ``messages`` grows until ``close()``.

    status: how the run stands. step: the next one, as the last message told; is_whole: that was a frame.
    num_gaps: messages that were missing.
    num_others: what else came over the same channel, the cells' own messages among it. errors: what Python answered.
    """

    def __init__(self, connection_file: str | Path) -> None:
        super().__init__(daemon=True)
        self._client = BlockingKernelClient()
        self._client.load_connection_file(str(connection_file))
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)
        self._header = self._subshell()
        self._numbers = count()
        self._is_closed = threading.Event()
        self._explorer = ""
        self._asked: dict[str, tuple[str, int]] = {}  # number of an open question -> view, moment
        self._known: dict[str, int] = {}  # view -> the moment of its last answer
        self._next = dict.fromkeys(QUESTIONS, 0.0)
        self._rests_until = 0.0
        self._seq = -1
        self.status, self.step, self.is_whole = "", 0, False
        self.num_gaps = self.num_others = 0
        self.messages: list[Sent] = []
        self.errors: list[str] = []

    def _subshell(self) -> dict[str, str]:
        client = self._client
        if "kernel subshells" not in client.kernel_info(reply=True)["content"].get("supported_features", []):
            return {}
        client.control_channel.send(client.session.msg("create_subshell_request", {}))
        while (reply := client.get_control_msg(timeout=60))["msg_type"] != "create_subshell_reply":
            pass
        return {"subshell_id": reply["content"]["subshell_id"]}

    def run(self) -> None:
        socket, session = self._client.iopub_channel.socket, self._client.session
        while not self._is_closed.is_set():
            if socket.poll(5):
                frames = socket.recv_multipart()
                _, parts = session.feed_identities(frames)
                self._take(session.deserialize(parts), sum(map(len, frames)))
            self._ask()
        self._client.stop_channels()

    def close(self) -> None:
        self._is_closed.set()
        self.join()

    def _take(self, message: dict[str, Any], size: int) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "display_data" and WIDGET in content["data"]:
            self._send({"type": "shown"})
        if not kind.startswith("comm_"):
            self.num_others += 1
            return
        data = content.get("data", {})
        state, custom = data.get("state", {}), data.get("content", {})
        if "panels" in state and kind == "comm_open":
            self._explorer = content["comm_id"]
        told = state.get("frame") or (custom if custom.get("type") in ("frame", "delta") else None)
        what = custom.get("type", "frame" if told else "other")
        when = _seconds(message["header"]["date"])
        self.messages.append(Sent(when, size, what, time.time() - when))
        if content["comm_id"] != self._explorer:
            return
        if told is not None:
            self._receive(told)
        elif what == "answer":
            self._answered(custom)
        self.status = state.get("status", self.status)

    def _receive(self, told: dict[str, Any]) -> None:
        if not told["full"] and told["seq"] > self._seq + 1:
            self.num_gaps += 1
            self._send({"type": "resync"})
            return
        if told["seq"] >= self._seq:
            self._seq, self.step, self.is_whole = told["seq"], told["step"], told["full"]

    def _answered(self, answer: dict[str, Any]) -> None:
        view, moment = self._asked.pop(answer["ask"], ("", 0))
        self._known[view] = moment
        if "error" in answer:
            self.errors.append(f"{view}: {answer['error']}")
        rest = max(SPACE, answer.get("ms", 0.0) / 1e3 * BUDGET)
        self._rests_until = max(self._rests_until, time.monotonic()) + rest

    def _ask(self) -> None:
        """What the views ask in a draw: about a moment that they have no answer for, one at a time, not too often."""
        now, waiting = time.monotonic(), {view for view, _ in self._asked.values()}
        if self.status == "running" and now < self._rests_until:
            return
        for view, id_ in QUESTIONS.items():
            if self._seq < 0 or view in waiting or self._known.get(view) == self._seq or now < self._next[view]:
                continue
            number = f"stand-in-{next(self._numbers)}"
            self._asked[number] = view, self._seq
            self._next[view] = now + EVERY
            self._send({"type": "ask", "ask": number, "what": view, "id": id_, "step": -1})

    def _send(self, content: dict[str, Any]) -> None:
        data = {"method": "custom", "content": content}
        message = self._client.session.msg("comm_msg", {"comm_id": self._explorer, "data": data})
        message["header"] |= self._header
        self._client.shell_channel.send(message)


def _seconds(date: Any) -> float:
    return (date if isinstance(date, datetime) else datetime.fromisoformat(date)).timestamp()


def most_in_a_second(messages: list[Sent]) -> int:
    """The most messages in any second."""
    times = sorted(message.when for message in messages)
    most = first = 0
    for last, when in enumerate(times):
        while when - times[first] >= 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def counted(messages: list[Sent]) -> dict[str, Any]:
    """How many of each kind there are, their bytes, and how they are spread over time."""
    times = [message.when for message in messages]
    return {
        "messages": dict(Counter(message.kind for message in messages)),
        "bytes": sum(message.size for message in messages),
        "messages_a_second": round(len(times) / max(1.0, max(times, default=0.0) - min(times, default=0.0)), 1),
        "most_in_a_second": most_in_a_second(messages),
        "max_lag": round(max((message.lag for message in messages), default=0.0), 3),
    }
