"""All of an engine's state as plain values, also what no snapshot shows: for tests that nothing has changed."""

from __future__ import annotations

from typing import Any

from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence


def deep_state(engine: Engine, *seqs: Sequence) -> dict[str, Any]:
    """The state, and that of ``seqs`` even after they have left.

    Left out is what only counts on or explains: ``num_allocated``, ``num_admitted``, remembered evictions.
    """
    blocks, cache, queues, requests = engine.blocks, engine.blocks.cache, engine.scheduler.queues, engine._requests
    return {
        "free": list(blocks.free),
        "num_free": len(blocks.free),
        "ref_count": list(blocks.ref_count),
        "num_hits": list(blocks.num_hits),
        "content": list(cache.content),
        "block_of": dict(cache._block_of),
        "children": {parent: set(children) for parent, children in cache._children.items()},
        "next_registration": cache._next_registration,
        "waiting": [seq.request_id for seq in queues.waiting],
        "running": [seq.request_id for seq in queues.running],
        "live": sorted(engine.live),
        "families": {name: [seq.request_id for seq in family] for name, family in requests._families.items()},
        "next_seq_id": requests._next_seq_id,
        "next_step": engine.next_step,
        "events": [tuple(str(part) for part in event) for event in engine._log.events],
        "base": engine._log.base,
        "is_active": engine._log.active,
        "aborted": [seq.request_id for seq in engine._steps.aborted],
        "in_the_air": [flight.step for flight in engine._steps.flights],
        "outbox": [record.step for record in engine._hub.outbox],
        "seqs": [_fields(seq) for _, seq in sorted({s.seq_id: s for s in (*engine.live.values(), *seqs)}.items())],
    }


def _fields(seq: Sequence) -> dict[str, Any]:
    """Every attribute, lists as copies."""
    values: dict[str, Any] = {}
    for name in Sequence.__slots__:
        if name == "siblings":
            values[name] = [sibling.request_id for sibling in seq.siblings]
        elif name != "__weakref__":
            value = getattr(seq, name)
            values[name] = list(value) if isinstance(value, list) else value
    return values
