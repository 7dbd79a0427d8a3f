"""A cell a physical KV block: its state, who holds it, how often and for how long, what the newest step wrote."""

from __future__ import annotations

from array import array
from typing import Any

from nvexplore.engine.events import StepRecord
from nvexplore.notebook.answers import Context
from nvexplore.notebook.view import View

LOOK_BACK = 256
"""Steps that are looked through for when a block was last written or freed: what is older than that is just old."""
MOST_BLOCKS = 16_384
"""Blocks that one answer tells of, those touched last: 6 bytes each."""


class BlockView(View):
    """``BlockView(explorer)``; drawn by widgets/block_view.js."""

    @staticmethod
    def answer(context: Context, id: int) -> dict[str, Any]:
        """blocks (u32), ages (u16): the blocks that the last ``num_steps`` steps wrote or freed, and how long ago.

        An age is in steps; 0: in the step that is looked at. {} where that step is not kept. id is not looked at.
        """
        ages: dict[int, int] = {}
        num_steps = 0
        while num_steps < LOOK_BACK and len(ages) < MOST_BLOCKS:
            try:
                record = context.recorder.record_of(context.step - num_steps)
            except ValueError:  # before the first one that is kept
                break
            for block in touched(record):
                ages.setdefault(block, num_steps)
            num_steps += 1
        if not num_steps:
            return {}
        blocks = list(ages)[:MOST_BLOCKS]
        return {
            "step": context.step,
            "num_steps": num_steps,
            "blocks": array("I", blocks).tobytes(),
            "ages": array("H", (ages[block] for block in blocks)).tobytes(),
        }


def touched(record: StepRecord) -> list[int]:
    """Blocks that a step, or what came before it, wrote or freed."""
    found = list(record.planned.spans.block_id)
    for events in (record.before.blocks, record.planned.blocks, record.committed.blocks):
        found += [block for kind, block in zip(events.kind, events.block_id, strict=True) if kind == "freed"]
    return found
