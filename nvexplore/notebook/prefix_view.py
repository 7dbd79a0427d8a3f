"""The prefix cache as a tree of runs of blocks, and what each admitted request took from it, and why no more."""

from __future__ import annotations

import time
from array import array
from typing import Any

from nvexplore.explore.contents import Contents, contents_of
from nvexplore.explore.explain import Explanation, Tokens, explain_admissions, moment_at
from nvexplore.explore.prefix_tree import Run, largest, prefix_tree
from nvexplore.explore.prefixes import UNKNOWN
from nvexplore.notebook.answers import Context
from nvexplore.notebook.view import View

MOST_RUNS, MOST_BLOCKS = 200, 256
MOST_ADMITTED = 16
HEAD, TAIL = 24, 12
"""Tokens of a run whose text is shown: at its beginning and at its end."""


class PrefixView(View):
    """``PrefixView(explorer)``; drawn by widgets/prefix_view.js."""

    @staticmethod
    def answer(context: Context, id: int) -> dict[str, Any]:
        """With -1 the tree, and the admissions of the step; about a sequence ``id`` its last admission alone."""
        if id >= 0:
            return _admissions(context, id)
        began, contents = time.perf_counter(), contents_of(context.recorder)
        tree = largest(prefix_tree(context.state, contents), MOST_RUNS)
        runs = [_run(context, contents, run) for run in tree.runs]
        return {
            "step": context.step,
            "ms": int(1000 * (time.perf_counter() - began)),
            "runs": runs,
            "cached": tree.num_cached,
            "unknown": tree.num_unknown,
            "hidden_runs": tree.num_hidden_runs,
            "hidden_blocks": tree.num_hidden_blocks,
            **_admissions(context, id),
        }


def _run(context: Context, contents: Contents, run: Run) -> dict[str, Any]:
    """blocks, refs: of the first 256 blocks. text: of its beginning, and of its end where that is further on."""
    state, first = context.state, run.first
    blocks = run.blocks[:MOST_BLOCKS]
    ends = [contents.content(block, state.event) for block in run.blocks[-_blocks_of(TAIL, state.block_size) :]]
    starts = [contents.content(block, state.event) for block in run.blocks[: _blocks_of(HEAD, state.block_size)]]
    head, tail = ([i for one in part if one is not None for i in one.node.token_ids] for part in (starts, ends))
    num_tokens = len(run.blocks) * state.block_size
    texts = [context.text(head[:HEAD])]
    if num_tokens > HEAD:
        texts.append(context.text(tail[-min(TAIL, num_tokens - HEAD) :]))
    refs = [state.ref_count[block] for block in run.blocks]
    owner = context.mirror.find(first.seq_id)
    return {
        "parent": run.parent,
        "depth": run.depth,
        "length": len(run.blocks),
        "blocks": array("I", blocks).tobytes(),
        "refs": bytes(min(255, ref) for ref in refs[:MOST_BLOCKS]),
        "most_refs": max(refs),
        "held": sum(ref > 0 for ref in refs),
        "hits": contents.num_hits(run.blocks[0], first, state.event),
        "text": texts,
        "step": first.step,
        "by": None if owner is None else [first.seq_id, owner.request_id],
        "is_cut": run.is_cut,
        "is_salted": first.node.salt not in (UNKNOWN, (None,)),
        "hidden_runs": run.num_hidden_runs,
        "hidden_blocks": run.num_hidden_blocks,
    }


def _blocks_of(num_tokens: int, size: int) -> int:
    return -(-num_tokens // size)


def _admissions(context: Context, id: int) -> dict[str, Any]:
    """admitted: explanations. admitted_step: of which step; -1 if there is none."""
    step = context.step
    if id >= 0:
        records = (record for record in reversed(context.recorder.records) if record.step <= context.step)
        step = next((record.step for record in records if id in record.planned.admitted.seq_id), -1)
    elif context.record is None or not context.record.planned.admitted.seq_id:
        step = -1
    if step < 0:
        return {"admitted": [], "admitted_step": -1, "num_admitted": 0}
    moment = moment_at(context.recorder, step, context.state)
    admitted = moment.record.planned.admitted.seq_id
    told = explain_admissions(moment, [id] if id >= 0 else admitted[:MOST_ADMITTED])
    found = [_admission(context, each) for each in told]
    return {"admitted": found, "admitted_step": step, "num_admitted": len(found) if id >= 0 else len(admitted)}


def _admission(context: Context, told: Explanation) -> dict[str, Any]:
    return told.to_dict() | {"texts": [_text(context, tokens) for tokens in told.tokens]}


def _text(context: Context, tokens: Tokens) -> dict[str, Any]:
    """parts: the text before the marked token, that token, and what follows."""
    ids, mark = tokens.token_ids, tokens.mark
    texts = [context.text(ids)] if mark < 0 else _around(context, ids, mark)
    label = [part if isinstance(part, str) else [part.kind, part.id, part.text] for part in tokens.label]
    return {"label": label, "position": tokens.position, "ids": ids, "mark": mark, "parts": texts}


def _around(context: Context, ids: list[int], mark: int) -> list[str]:
    """Cut out of the text of all, since a token by itself may read otherwise (without the space before it)."""
    until, with_it, whole = (context.text(ids[:end]) if end else "" for end in (mark, mark + 1, len(ids)))
    if whole.startswith(with_it) and with_it.startswith(until):
        return [until, with_it[len(until) :], whole[len(with_it) :]]
    return [context.text(part) if part else "" for part in (ids[:mark], ids[mark : mark + 1], ids[mark + 1 :])]
