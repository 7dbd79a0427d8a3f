"""The browser's store, in node: give it messages, ask what it then holds."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from nvexplore.explore.state import State

DRIVER = Path(__file__).with_name("store_driver.mjs")


class StoreProcess:
    """``widgets/store.js`` as it runs in a browser, one call at a time. ``call`` takes what store_driver.mjs knows."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["node", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def receive(self, message: dict[str, Any]) -> dict[str, Any]:
        """Give a message; ``verdict`` and ``resyncs`` (how often a frame was asked for) come back."""
        told = self.call(messages=[message])
        return {**told, "verdict": told["verdicts"][0]}

    def run_timers(self) -> int:
        """Let the time pass that the store waits; returns how often it then asked for a frame."""
        resyncs: int = self.call(run_timers=True)["resyncs"]
        return resyncs

    def tell(self) -> dict[str, Any]:
        """All it holds."""
        return self.call(tell=True)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def call(
        self, *, messages: list[dict[str, Any]] | None = None, answer: dict[str, Any] | None = None, **request: Any
    ) -> dict[str, Any]:
        """One line in, one out; messages and answer may have bytes in them."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request["messages"] = [_coded(message) for message in messages or []]
        if answer is not None:
            request["answer"] = _coded(answer)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


def _coded(message: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
        for name, value in message.items()
    }


def digest(state: State, written: list[int]) -> str:
    """A hash of a fold; the driver makes the same of what its store shows. written: blocks that the last step wrote."""
    live = [state.sequences[seq_id] for seq_id in sorted(state.sequences)]
    numbers = [state.step, state.event, state.block_size, state.num_blocks, state.max_num_seqs]
    parts = [
        [*numbers, state.max_num_batched_tokens, state.waiting, state.running],
        [[s.seq_id, s.request_id, s.status, s.num_prompt_tokens, len(s.token_ids)] for s in live],
        [[s.num_cached_tokens, s.num_computed_tokens, s.num_preemptions, s.block_table] for s in live],
    ]
    hash_ = hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode())
    words = np.array(state.ref_count, "<u2") * 2 + np.array([h is not None for h in state.hash], "<u2")
    for part in (array("d", [state.time]).tobytes(), words.tobytes(), array("I", written).tobytes()):
        hash_.update(part)
    return hash_.hexdigest()
