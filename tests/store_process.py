"""The browser's store, in node: give it messages, ask what it then holds."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("store_driver.mjs")


class StoreProcess:
    """``widgets/store.js`` as it runs in a browser, one call at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["node", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def receive(self, message: dict[str, Any]) -> dict[str, Any]:
        """Give a message; ``verdict`` and ``resyncs`` (how often a frame was asked for) come back."""
        coded = {
            name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for name, value in message.items()
        }
        return self._call(message=coded)

    def run_timers(self) -> int:
        """Let the time pass that the store waits; returns how often it then asked for a frame."""
        resyncs: int = self._call(run_timers=True)["resyncs"]
        return resyncs

    def tell(self) -> dict[str, Any]:
        """All it holds."""
        return self._call(tell=True)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _call(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
