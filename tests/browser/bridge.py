"""A real Explorer in Python and the real module in a real browser, with a recorded comm in place of the kernel.

The page has a model that behaves as anywidget's does. What Python sends is delivered to it, binary parts as DataViews
at odd offsets; what the page sends reaches the Explorer. No server: the page's files are routed.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from nvexplore.notebook import assets
from nvexplore.notebook.explorer import Explorer
from tests.comms import RecordedComm, recorded_comms

URL = "http://nvexplore.test/"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip
PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
# Two frames, and as many more as views in sight are left over for (widgets/turns.js).
SETTLED = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  await frame();
  await frame();
  for (let i = 0; i < 100 && document.querySelector("[data-due]"); i++) await frame();
}"""
# What JupyterLab's themes set.
LAB_LIGHT = """:root { --jp-layout-color0: white; --jp-ui-font-color0: rgba(0,0,0,1); --jp-ui-font-color2:
rgba(0,0,0,.54); --jp-border-color2: #e0e0e0; --jp-brand-color1: #1976d2; } body { background: white }"""
LAB_DARK = """:root { --jp-layout-color0: #111; --jp-ui-font-color0: rgba(255,255,255,1); --jp-ui-font-color2:
rgba(255,255,255,.7); --jp-border-color2: #616161; --jp-brand-color1: #2196f3; } body { background: #111 }"""


class Bridge:
    """An Explorer shown on a page."""

    def __init__(self, page: Page, **explorer_options: Any) -> None:
        self.page = page
        self.engine: Any = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        page.route(URL + "**", self._serve)
        page.expose_function("toPython", self._from_page)
        with recorded_comms() as comms:
            self.explorer = Explorer(**explorer_options)
        self.comm: RecordedComm = next(c for c in comms if c.comm_id == self.explorer.model_id)
        self.comm.on_send = lambda kind, data, buffers: self._to_page(data, buffers)
        self.open()

    def open(self) -> None:
        """Load the page (again): it starts from the model's state, as a notebook does."""
        self._is_open = False
        self._outbox: list[list[Any]] = []
        self.page.goto(URL)
        self.page.wait_for_function("() => window.ready")
        if len(self.comm.sent) > 1:
            self.comm.sent.clear()
            self.explorer.send_state()
        _, data, buffers = self.comm.sent[0]
        state, paths = data["state"], data["buffer_paths"]
        self._is_open = True  # before the model: it may ask at once for the step at the cursor
        self.page.evaluate("args => open_model(...args)", [state, paths, _coded(buffers)])

    def show(self, *names: str) -> None:
        """Mount views (none named: what the Explorer itself shows)."""
        self.page.evaluate("names => show(names)", list(names))
        while not self.explorer._feed.is_active:  # the page says that something is shown
            self.page.wait_for_timeout(5)
        self.settle()

    def settle(self) -> None:
        """Wait until everything sent is drawn."""
        self.deliver()
        self.page.evaluate(SETTLED)

    def store(self, expression: str) -> Any:
        """Evaluate JavaScript with ``store`` at hand."""
        self.deliver()
        return self.page.evaluate(f"() => {{ const store = explorer().store; return {expression}; }}")

    def _serve(self, route: Any) -> None:
        path = route.request.url.removeprefix(URL)
        texts = {
            "explorer.js": assets.module_text,
            "mount.js": assets.view_text,
            "views.css": assets.style_text,
        }
        if path == "":
            route.fulfill(body=PAGE, content_type="text/html; charset=utf-8")
        elif path in texts:
            kind = "text/css" if path.endswith("css") else "text/javascript"
            route.fulfill(body=texts[path](), content_type=f"{kind}; charset=utf-8")
        else:
            route.fulfill(status=204)

    def _from_page(self, message: dict[str, Any]) -> None:
        if message["method"] == "update":
            self.comm.set_state(**message["state"])
        else:
            self.comm.send_custom(**message["content"])

    def _to_page(self, data: dict[str, Any], buffers: list[bytes]) -> None:
        # Only noted here: this may be a callback inside Playwright's own loop, where nothing can be awaited.
        if self._is_open:
            self._outbox.append([data, _coded(buffers)])

    def deliver(self) -> None:
        """Bring to the page what Python has sent."""
        while self._outbox:
            self.page.evaluate("args => deliver(...args)", self._outbox.pop(0))


def _coded(buffers: list[bytes]) -> list[str]:
    return [base64.b64encode(buffer).decode() for buffer in buffers]
