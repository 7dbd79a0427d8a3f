"""From the tokens of a step to the slots of the pool, and the arrays that the runner was given for it."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from nvexplore.engine.events import BlockEvents, Committed, Planned, StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State
from nvexplore.notebook.answers import Context
from nvexplore.notebook.explorer import POSITIONS
from nvexplore.notebook.view import View

MOST_TOKENS, MOST_OF_ROW, MOST_PADDING = 192, 48, 8
MOST_ROWS, MOST_BLOCKS = 64, 24
MOST_TEXT = 24
NOT_KEPT = "the record of this step is not kept"
_NO_COMMIT = Committed(number=None, seq_id=[], token_id=[], blocks=BlockEvents())


class SlotView(View):
    """``SlotView(explorer)``; drawn by widgets/slot_view.js."""

    @staticmethod
    def answer(context: Context, id: int) -> dict[str, Any]:
        """The batch of the step. id: a token whose sequence comes first, shown around it; -1: none."""
        if context.step < 0:
            return {}
        if context.record is None:
            return {"step": context.step, "missing": NOT_KEPT}
        return _Batch(context, context.record).told(*divmod(id, POSITIONS) if id >= 0 else (-1, 0))


def planned_state(recorder: Recorder, record: StepRecord) -> State:
    """The state between a step's plan and its commit: what the runner was given. ValueError if it is not kept."""
    state = recorder.state_before(record.step)
    state.apply(replace(record, committed=_NO_COMMIT))
    return state


class _Batch:
    """A step's batch, as flat as the runner has it."""

    def __init__(self, context: Context, record: StepRecord) -> None:
        self.context, self.planned = context, record.planned
        self.state = planned_state(context.recorder, record)
        self.size = self.state.block_size
        planned: Planned = record.planned
        self.pads_rows = not any(planned.is_prefill)  # a graph with prefill rows is padded by tokens of no row
        self.num_pads = planned.padding or 0
        num_rows = self.num_pads if self.pads_rows else 0
        self.num_seqs = len(planned.seq_id)
        self.counts = planned.count + [1] * num_rows
        self.contexts = planned.context_len + [0] * num_rows
        self.ends_q = list(accumulate(self.counts, initial=0))
        self.ends_k = list(accumulate(self.contexts, initial=0))
        spans = zip(planned.spans.block_id, planned.spans.offset, planned.spans.length, strict=True)
        self.slots = [block * self.size + offset + i for block, offset, length in spans for i in range(length)]

    def told(self, seq_id: int, position: int) -> dict[str, Any]:
        planned, order = self.planned, list(range(self.num_seqs))
        chosen = planned.seq_id.index(seq_id) if seq_id in planned.seq_id else -1
        if chosen >= 0:
            order.insert(0, order.pop(chosen))
        groups, left = [], MOST_TOKENS
        for row in order:
            most = min(left, MOST_TOKENS - MOST_OF_ROW if row == chosen else MOST_OF_ROW)
            if most == 0:
                break
            groups.append(self._group(row, most, position if row == chosen else 0))
            left -= len(groups[-1]["slots"])
        shown = len(groups)
        num_tokens = self.ends_q[self.num_seqs]
        lines = list(range(min(MOST_ROWS, len(self.counts))))
        if chosen >= MOST_ROWS:
            lines.append(chosen)
        return {
            "step": self.context.step,
            "block_size": self.size,
            "num_rows": self.num_seqs,
            "num_tokens": num_tokens,
            "num_pads": self.num_pads,
            "pads_rows": self.pads_rows,
            "graph_size": planned.graph_size,
            "groups": groups,
            "hidden_rows": self.num_seqs - shown,
            "hidden_tokens": num_tokens - sum(len(group["slots"]) for group in groups),
            "lines": [self._line(row) for row in lines],
            "hidden_lines": len(self.counts) - len(lines),
            "total": [len(self.counts), *self._before(len(self.counts))],
            "width": max((-(-length // self.size) for length in planned.context_len), default=0) or 1,
            "most_blocks": MOST_BLOCKS,
            "most_padding": MOST_PADDING,
        }

    def _group(self, row: int, most: int, position: int) -> dict[str, Any]:
        """A row's tokens, at most so many, with ``position`` among them if the step ran it."""
        planned, first = self.planned, self.ends_q[row]
        seq = self.state.sequences[planned.seq_id[row]]
        start, count = planned.start[row], planned.count[row]
        begin = max(0, min(position - start - most // 2, count - most))
        places = range(start + begin, start + min(count, begin + most))
        ids: list[int | None] = list(seq.token_ids[places.start : places.stop])
        ids += [None] * (len(places) - len(ids))
        return {
            "row": row,
            "seq_id": seq.seq_id,
            "name": seq.request_id,
            "is_prefill": planned.is_prefill[row],
            "samples": planned.samples[row],
            "start": start,
            "count": count,
            "first": first,
            "begin": begin,
            "ids": ids,
            "texts": [None if i is None else self._text(i) for i in ids],
            "blocks": [seq.block_table[place // self.size] for place in places],
            "slots": self.slots[first + begin : first + begin + len(places)],
        }

    def _text(self, token_id: int) -> str | None:
        return None if self.context.decode is None else self.context.decode([token_id])[:MOST_TEXT]

    def _line(self, row: int) -> dict[str, Any]:
        """A row of the arrays; of its block table the beginning. seq_id -1: padding."""
        is_padding, context = row >= self.num_seqs, self.contexts[row]
        seq = None if is_padding else self.state.sequences[self.planned.seq_id[row]]
        num_blocks = -(-context // self.size)
        return {
            "row": row,
            "seq_id": -1 if seq is None else seq.seq_id,
            "name": "" if seq is None else seq.request_id,
            "start": 0 if is_padding else self.planned.start[row],
            "count": self.counts[row],
            "context": context,
            "num_blocks": num_blocks,
            "table": [] if seq is None else seq.block_table[: min(num_blocks, MOST_BLOCKS)],
            "cu": self._before(row),
        }

    def _before(self, row: int) -> list[int]:
        """cu_seqlens_q[row], cu_seqlens_k[row], and the tokens and the context of the row before."""
        before = [self.counts[row - 1], self.contexts[row - 1]] if row else [0, 0]
        return [self.ends_q[row], self.ends_k[row], *before]
