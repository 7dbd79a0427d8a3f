"""Presses run and pause in a real kernel, as a page would, and looks at when steps began.

By itself for several kernels: ``python -m tests.kernel_pause 6.31 7.4`` installs these ipykernels into folders under
build/ (for which it needs a network), and says what it found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

CHECKOUT = Path(__file__).resolve().parents[1]
STEP_S = 0.05  # how long a step takes
MOST_S = 0.25  # from the click to the word "paused"
SETUP = f"""
import json, time
import ipykernel
import nvexplore.llm
from nvexplore.notebook.extension import active_session
from tests.notebook_fakes import FakeLLM

begun, got = [], []

def slow(stage):
    if stage == "begin":
        begun.append(time.time())
        time.sleep({STEP_S})

nvexplore.llm.LLM = FakeLLM
get_ipython().run_line_magic("load_ext", "nvexplore")
session = active_session(get_ipython())
session.load(interrupt=slow, num_kvcache_blocks=4000)
for name in "abc":
    session.add("go on", max_tokens=4000, request_id=name)
session.explorer.on_msg(lambda widget, content, buffers: got.append(time.time()))
print(json.dumps([ipykernel.__version__, session.explorer.model_id]))
"""


@dataclass(frozen=True)
class Pause:
    """One click on pause.

    told:        seconds from the click to the status "paused" on the page.
    num_after:   steps that began after the kernel got the click.
    num_between: steps that began after the click.
    """

    told: float
    num_after: int
    num_between: int


class Page:
    """The front end's part: code to run, clicks, and what the explorer's status is said to be."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self._subshell: dict[str, str] = {}
        self.version, self._comm_id = self.python(SETUP)

    def use_subshell(self) -> bool:
        """Click on a thread of its own from now on, as JupyterLab does; False if this kernel has none."""
        features = self._client.kernel_info(reply=True)["content"].get("supported_features", [])
        if "kernel subshells" not in features:
            return False
        request = self._client.session.msg("create_subshell_request", {})
        self._client.control_channel.send(request)
        while (reply := self._client.get_control_msg(timeout=60))["msg_type"] != "create_subshell_reply":
            pass
        self._subshell = {"subshell_id": reply["content"]["subshell_id"]}
        return True

    def python(self, code: str) -> Any:
        """What the code prints, read as JSON; an error raises RuntimeError."""
        shown = ""
        request = self._client.execute(code)
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown += content["text"]
            elif kind == "error":
                raise RuntimeError(f"{content['ename']}: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                return json.loads(shown) if shown.strip() else None

    def click(self, command: str, becomes: str) -> float:
        """Press a button; returns how long it took until the status began like this."""
        content = {"method": "custom", "content": {"type": "command", "command": command}}
        message = self._client.session.msg("comm_msg", {"comm_id": self._comm_id, "data": content})
        message["header"] |= self._subshell
        clicked = time.monotonic()
        self._client.shell_channel.send(message)
        while time.monotonic() < clicked + 30:
            try:
                news = self._client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if news["msg_type"] == "comm_msg" and news["content"]["comm_id"] == self._comm_id:
                status = news["content"]["data"].get("state", {}).get("status", "")
                if status.startswith(becomes):
                    return time.monotonic() - clicked
        raise RuntimeError(f"{command} was clicked, and the status did not become {becomes!r}")


@contextmanager
def kernel(front: Path | None = None) -> Iterator[Page]:
    """A kernel of the installed ipykernel, or of the one in the folder ``front``."""
    paths = [str(path) for path in (front, CHECKOUT) if path is not None]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_WAIT_POLICY": "PASSIVE"}
    manager, client = start_new_kernel(startup_timeout=120, kernel_name="python3", env=env)
    try:
        yield Page(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def pauses(page: Page, times: int) -> list[Pause]:
    """Run and pause so many times, at different moments of a step."""
    found = []
    for number in range(times):
        page.click("run", "running")
        time.sleep(0.2 + 0.01 * number)
        clicked = time.time()
        told = page.click("pause", "paused")
        time.sleep(4 * STEP_S)  # time for steps that should not be
        received, begun = page.python("print(json.dumps([got[-1], begun]))")
        num_after, num_between = (sum(start > moment for start in begun) for moment in (received, clicked))
        assert len(begun) > 2, "it did not run"
        found.append(Pause(told, num_after, num_between))
    return found


def installed(version: str) -> Path:
    """A folder with this ipykernel, without what it needs: that is taken from the environment."""
    folder = CHECKOUT / "build" / "kernels" / version
    if not (folder / "ipykernel").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, f"ipykernel=={version}.*"], check=True)
    return folder


def main(versions: list[str]) -> int:
    """Tell for each version; 1 if a step began after the click had arrived, or the word came too late."""
    failed = False
    for version in versions:
        with kernel(installed(version)) as page:
            found = pauses(page, 10)
            if page.use_subshell():
                found += pauses(page, 10)
        late, longest = sum(pause.num_after for pause in found), max(pause.told for pause in found)
        failed |= late > 0 or longest > MOST_S
        times = ", ".join(f"{pause.told * 1e3:.0f}" for pause in found)
        print(
            f"ipykernel {page.version}, steps of {STEP_S * 1e3:.0f} ms: {late} steps began late; paused in {times} ms"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["6.31", "7.4"]))
