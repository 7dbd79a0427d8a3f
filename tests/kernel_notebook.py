"""A notebook under nbclient whose cells come one by one: for the tests that need a real kernel."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

CHECKOUT = Path(__file__).resolve().parents[1]


class Notebook:
    """Runs cells as a notebook that is executed does."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    async def run(self, code: str) -> Any:
        """What the cell prints last, read as JSON; what it raises is raised as a CellExecutionError."""
        cell = nbformat.v4.new_code_cell(code)
        cells = self._client.nb.cells
        cells.append(cell)
        await self._client.async_execute_cell(cell, len(cells) - 1)
        printed = "".join(output["text"] for output in cell.outputs if output.output_type == "stream")
        return json.loads(printed.splitlines()[-1]) if printed.strip() else None

    async def rest(self, seconds: float) -> None:
        """Run no cell, but read what comes: a full queue would lose the next cell's end."""
        kernel = self._client.kc
        assert kernel is not None
        await asyncio.sleep(seconds)
        while await kernel.iopub_channel.msg_ready():
            await kernel.iopub_channel.get_msg()

    @property
    def connection_file(self) -> str:
        assert self._client.km is not None
        return str(self._client.km.connection_file)


@asynccontextmanager
async def notebook() -> AsyncIterator[Notebook]:
    """A notebook whose kernel has this checkout on its path."""
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=None, kernel_name="python3")
    async with client.async_setup_kernel(env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}):
        yield Notebook(client)
