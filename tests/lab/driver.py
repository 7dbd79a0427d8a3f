"""A private JupyterLab or Notebook 7 server, and a notebook in it for a test to drive. No settings of the user's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Page

from tests.browser.bridge import FLAGS

CHECKOUT = Path(__file__).resolve().parents[2]
# Lab's own server, and nothing else, can be reached from the page.
LAB_FLAGS = [flag for flag in FLAGS if not flag.startswith("--host-resolver-rules")]
LAB_FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
QUIET = '{"fetchNews": "false", "checkForUpdates": false}'
SETTINGS = {
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "IPYTHONDIR": "ipython",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
}
# The front ends: the server's program, whose application shows itself to the page, and where a notebook is opened.
APPS = {
    "lab": ("jupyterlab", "LabApp", "lab/tree/{name}?reset"),
    "notebook": ("notebook", "JupyterNotebookApp", "notebooks/{name}"),
}
# The page says "idle" before there is a kernel; the application itself knows better.
READY = """() => {
  const context = window.jupyterapp?.shell?.currentWidget?.sessionContext, kernel = context?.session?.kernel;
  return context?.isReady && kernel?.status === 'idle' && kernel.connectionStatus === 'connected' }"""
EXECUTE = """async (code) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const future = kernel.requestExecute({ code });
  let shown = '';
  future.onIOPub = (message) => {
    if (message.header.msg_type === 'stream') shown += message.content.text;
    if (message.header.msg_type === 'error') shown += `${message.content.ename}: ${message.content.evalue}`;
  };
  await future.done;
  return shown }"""


@contextmanager
def lab_server(root: Path, app: str = "lab") -> Iterator[str]:
    """Serve the folder ``root / "work"`` with one of APPS; yields the address."""
    program, application, _ = APPS[app]
    (root / "work").mkdir(parents=True, exist_ok=True)
    news = root / "settings/@jupyterlab/apputils-extension"
    news.mkdir(parents=True, exist_ok=True)
    (news / "notification.jupyterlab-settings").write_text(QUIET)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", program, "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={root / 'work'}"]
    command += ["--ServerApp.disable_check_xsrf=True", f"--{application}.expose_app_in_browser=True"]
    command += ["--LabApp.extension_manager=readonly"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate"]
    env = {**os.environ, **{name: str(root / folder) for name, folder in SETTINGS.items()}}
    env |= {"JUPYTER_PLATFORM_DIRS": "1", "PYTHONPATH": str(CHECKOUT), "OMP_WAIT_POLICY": "PASSIVE"}
    log = root / f"{app}.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    base = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(server, base, log)
        yield base
    finally:
        _stop(server, base)


def _wait_until_up(server: subprocess.Popen[bytes], base: str, log: Path) -> None:
    end = time.monotonic() + 120
    while True:
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        try:
            urllib.request.urlopen(base + "/api", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)


def _stop(server: subprocess.Popen[bytes], base: str) -> None:
    """Kernels are children in their own sessions: ask the server to end them, then make sure."""
    with suppress(OSError):
        urllib.request.urlopen(urllib.request.Request(base + "/api/shutdown", method="POST"), timeout=5).close()
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def notebook_of(cells: list[str]) -> nbformat.NotebookNode:
    """A notebook of code cells."""
    notebook: nbformat.NotebookNode = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


class LabNotebook:
    """A notebook that is open in the page. errors: what the page threw; foreign: what it asked other hosts for."""

    def __init__(
        self, page: Page, base: str, work: Path, notebook: nbformat.NotebookNode, name: str, app: str = "lab"
    ) -> None:
        self.page = page
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self._own = (base, base.replace("http", "ws"), "blob:", "data:")
        page.on("pageerror", self._failed)
        page.on("request", self._requested)
        page.on("websocket", self._requested)
        nbformat.write(notebook, work / name)
        page.goto(f"{base}/{APPS[app][2].format(name=name)}")
        page.wait_for_function(READY, timeout=120_000)

    def command(self, name: str, **args: str) -> None:
        """Have the application do what one of its menus could."""
        script = "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)"
        self.page.evaluate(script, [name, args])

    def reload(self) -> None:
        """Save the notebook and load its page again; the kernel lives on."""
        self.command("docmanager:save")
        self.page.reload()

    def run_all(self) -> None:
        """Run every cell and wait for the last."""
        self.command("notebook:run-all-cells")

    def python(self, code: str) -> str:
        """Run code in the kernel beside the cells; returns what it printed, or its error."""
        return str(self.page.evaluate(EXECUTE, code)).strip()

    def wait_for(self, code: str, expected: str, seconds: float = 20.0) -> None:
        """Wait until ``print(code)`` gives ``expected``."""
        end = time.monotonic() + seconds
        while (shown := self.python(f"print({code})")) != expected:
            assert time.monotonic() < end, f"{code} is {shown!r}, not {expected!r}"
            self.page.wait_for_timeout(100)

    def number(self, view: str, name: str) -> float:
        """A number that a view tells about itself."""
        return float(self.page.locator(view).get_attribute(f"data-{name}") or "nan")

    def _failed(self, error: Any) -> None:
        # Notebook 7 throws errors of its own while it starts.
        if "/static/notebook/" not in error.stack or "blob:" in error.stack:
            self.errors.append(str(error))

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(self._own):
            self.foreign.append(request.url)
