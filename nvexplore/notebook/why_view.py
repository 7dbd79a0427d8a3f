"""Why each request runs, waits or was preempted in the step that is shown, and what would change it."""

from __future__ import annotations

from typing import Any

from nvexplore.explore.explain import (
    Explanation,
    Ref,
    explain_preemptions,
    explain_running,
    explain_step,
    explain_unseen,
    explain_waiting,
    moment_at,
)
from nvexplore.explore.state import State
from nvexplore.notebook.answers import Context
from nvexplore.notebook.view import View

MOST = 64
NOT_KEPT = ("runs; the record of this step is not kept",)


class WhyView(View):
    """``WhyView(explorer)``; drawn by widgets/why_view.js."""

    @staticmethod
    def answer(context: Context, id: int) -> dict[str, Any]:
        """The step in words. id: a sequence that is told of even if it is not among the first 64; -1: none."""
        state = context.state
        waiting, running = _chosen(state.waiting, id), _chosen(state.running, id)
        told: dict[str, list[Explanation]] = {"summary": [], "preempted": []}
        if context.record is None:
            told["waiting"] = explain_unseen(state, waiting)
            told["running"] = [_unknown(state, seq_id) for seq_id in running]
        else:
            moment = moment_at(context.recorder, context.step, state)
            # What happened since the step is in the state of the newest one: it has no reasons yet.
            queue, residents = set(moment.after.waiting), set(moment.after.running)
            told["summary"] = [explain_step(context.record)]
            told["preempted"] = explain_preemptions(moment)
            told["waiting"] = explain_waiting(moment, [seq_id for seq_id in waiting if seq_id in queue])
            told["waiting"] += explain_unseen(state, [seq_id for seq_id in waiting if seq_id not in queue])
            told["running"] = explain_running(moment, [seq_id for seq_id in running if seq_id in residents])
        numbers = {"step": context.step, "num_waiting": len(state.waiting), "num_running": len(state.running)}
        return {name: [each.to_dict() for each in found] for name, found in told.items()} | numbers


def _chosen(seq_ids: list[int], id: int) -> list[int]:
    first = seq_ids[:MOST]
    return [*first, id] if id in seq_ids and id not in first else first


def _unknown(state: State, seq_id: int) -> Explanation:
    return Explanation(
        kind="running", subject=Ref("sequence", seq_id, state.sequences[seq_id].request_id), what=NOT_KEPT
    )
