"""Makes many steps in one cell of a real kernel, with all views open, and looks at what the page is left with."""

from __future__ import annotations

import time
from typing import Any

from tests.kernel_notebook import notebook
from tests.page_stand_in import PageStandIn, counted

SETUP = """
import json, time
import nvexplore.llm
from nvexplore.notebook.display import MODULES, VIEWS
from nvexplore.notebook.extension import active_session
from tests.notebook_fakes import FakeLLM

nvexplore.llm.LLM = FakeLLM
get_ipython().run_line_magic("load_ext", "nvexplore")
session = active_session(get_ipython())
session.load(num_kvcache_blocks=2_000, max_model_len=1_000, max_num_seqs=1)
session.explorer.panels = list(MODULES.values())
for name in VIEWS:
    display(session.watch(name))

def queue(steps):
    for _ in range(steps // 100):
        session.add("again", max_tokens=100, ignore_eos=True)

def ended(begin):
    print(json.dumps({"seconds": time.time() - begin, "at": time.time(), "next_step": session.llm.engine.next_step}))
"""
LOOP = """
queue({steps})
begin = time.time()
for _ in range({steps}):
    session.llm.engine.step()
ended(begin)
"""
RUN = """
queue({steps})
begin = time.time()
session.run(max_steps={steps})
ended(begin)
"""


async def flood(steps: int) -> list[dict[str, Any]]:
    """The figures of ``steps`` steps in a loop of the cell's own, and of as many by ``session.run``.

    idle_after, shown_after: seconds from the end of the cell's code to the moment in which a page knows that the kernel
    is idle, and to the one in which it shows the last step. next_step, shown: of the engine, on the page.
    """
    async with notebook() as cells:
        page = PageStandIn(cells.connection_file)
        page.start()
        try:
            await cells.run(SETUP)
            await cells.rest(1.5)  # what the views say of themselves when they come is no part of a flood
            found = []
            for code in (LOOP, RUN):
                before = len(page.messages)
                told = await cells.run(code.format(steps=steps))
                idle = time.time()
                while page.step < told["next_step"] and time.time() < idle + 10:
                    await cells.rest(0.02)
                shown = time.time()
                await cells.rest(1.5)  # the state at rest follows, as a frame
                told |= {"idle_after": idle - told["at"], "shown_after": shown - told["at"], "shown": page.step}
                found.append(told | {"is_frame_last": page.is_whole} | counted(page.messages[before:]))
        finally:
            page.close()
    return [told | {"gaps": page.num_gaps} for told in found]
