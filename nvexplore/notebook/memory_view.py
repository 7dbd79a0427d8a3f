"""Where the engine's memory goes, how full the KV pool is, and what one more sequence would need of it."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

from nvexplore.explore.state import State
from nvexplore.notebook.answers import Context
from nvexplore.notebook.view import View


class MemoryView(View):
    """``MemoryView(explorer)``; drawn by widgets/memory_view.js."""

    @staticmethod
    def answer(context: Context, id: int) -> dict[str, Any]:
        """The ledger (None: there is none), the slots of the blocks in use, and what ``id`` tokens more would need."""
        state, ledger = context.state, context.memory
        return {
            "step": context.step,
            "ledger": None if ledger is None else asdict(ledger) | {"pool": ledger.pool},
            "slots": slots_in_use(state),
            "need": need_of(state, id) if id > 0 else None,
        }


def slots_in_use(state: State) -> dict[str, int]:
    """The slots of the blocks that somebody holds, a shared block counted once; they add up to ``slots``.

    held:   with the key and value of a token. due: for tokens that are known but not computed yet.
    unused: beyond the last token of a sequence: internal fragmentation.
    """
    size = state.block_size
    held: dict[int, int] = {}
    known: dict[int, int] = {}
    for seq in state.sequences.values():
        last = len(seq.block_table) - 1
        for index, block in enumerate(seq.block_table):
            if index < last and seq.num_computed_tokens >= (index + 1) * size:
                held[block] = known[block] = size
                continue
            begin = index * size
            held[block] = max(held.get(block, 0), min(size, seq.num_computed_tokens - begin))
            known[block] = max(known.get(block, 0), min(size, len(seq.token_ids) - begin))
    slots, num_held, num_known = len(held) * size, sum(held.values()), sum(known.values())
    return {"slots": slots, "held": num_held, "due": num_known - num_held, "unused": slots - num_known}


def need_of(state: State, length: int) -> dict[str, int]:
    """What a new sequence of ``length`` tokens needs if none of its prefix is cached.

    blocks: ceil(length / block_size). free: blocks that nobody holds. evicted: of the first ``blocks`` free ones, in
    the order in which they are taken by default, those whose cached content would be forgotten.
    """
    blocks = -(-length // state.block_size)
    taken = islice(state.free, blocks)
    return {
        "length": length,
        "blocks": blocks,
        "free": len(state.free),
        "evicted": sum(state.hash[block] is not None for block in taken),
        "waiting": len(state.waiting),
        "running": len(state.running),
    }
