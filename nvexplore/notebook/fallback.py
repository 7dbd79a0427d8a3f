"""What a view leaves where no widget can be shown (GitHub, nbconvert, a page without its kernel): text and an image.

Both tell of the step that was shown when the output was written, and say which one that was; ``still_outputs`` writes
it again when that has changed. All views have an image but one. Of the why view the sentences are what counts, and a
front end that finds an image shows nothing else: a picture of sentences can't be searched, wrapped or read aloud.

Where a notebook is opened again without its kernel, JupyterLab shows the view as it was, if the state of widgets was
saved (nbclient always does that, JupyterLab where its setting says so), and else only that the widget is missing.
"""

from __future__ import annotations

import contextlib
import logging
from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvexplore.explore.explain import explain_step, printable
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.state import State
from nvexplore.notebook.answers import Answers
from nvexplore.notebook.feed import Feed
from nvexplore.notebook.summary import counted, shortened

MAX_LINES = 24
"""Lines of a view's own words; of more the rest is counted."""
MAX_BYTES = 150_000
"""A larger image is left out: it would be saved once for each cell that shows a view."""
MAX_DRAWN = 50_000
"""Blocks of a pool of which more than a coarse map of the blocks is drawn (``still_panel.MAX_CELLS``)."""
MAX_RUNS, MAX_TEXT = 12, 60
# What is drawn for a view, the dashboard's unless it stands here.
PICTURED: dict[str, tuple[str, ...]] = {
    "": ("schedule", "blocks"),
    "schedule_view": ("schedule",),
    "block_view": ("blocks",),
    "slot_view": ("slots",),
    "memory_view": ("memory", "blocks"),
    "throughput_view": ("throughput",),
    "prefix_view": ("prefix",),
    "why_view": (),
}
# What takes a copy of the pool's state to answer or to draw.
NEEDS_COPY = {"schedule": "the schedule", "memory": "the pool over time", "slots": "the slots of the batch"}
ASKED = ("slot_view", "memory_view", "prefix_view", "why_view")
"""The views whose own question is asked."""
Bundle = tuple[dict[str, Any], dict[str, Any]]
logger = logging.getLogger(__name__)


def completed(
    bundle: Bundle | None, view: str, feed: Feed, answers: Answers, cursor: int, *, unless: str = ""
) -> Bundle | None:
    """A widget's mimebundle with the text of ``view`` ("": the dashboard) and, where one is drawn, its image.

    cursor: the step to tell of, -1: the newest. unless: None if this would be the text again.
    Whatever goes wrong here, the widget itself is shown.
    """
    if bundle is None:
        return None
    data, metadata = bundle[0], dict(bundle[1] or {})
    parts = PICTURED.get(view, PICTURED[""])
    try:
        with feed.lock:
            state = _state(feed, answers.recorder, cursor)
            if state is None or not state.step:
                return bundle  # nothing has run: the widget's name says so
            lines = [data["text/plain"], *summary(state, answers.recorder)]
            is_large = state.num_blocks > MAX_DRAWN
            left_out = [NEEDS_COPY[part] for part in parts if is_large and part in NEEDS_COPY]
            parts = tuple(part for part in parts if NEEDS_COPY.get(part) not in left_out) or (parts and ("blocks",))
            told = answers.answer(view, -1, cursor) if view in ASKED and not (is_large and view == "slot_view") else {}
            words = WORDS[view](told) if view in WORDS else []
            step, states = state.step - 1, block_states(state)
        if left_out:
            words.append(f"left out: {', '.join(left_out)}, since there are more than {MAX_DRAWN:,} blocks")
        text = "\n".join([*lines, *words])
        if text == unless:
            return None
        png = None
        if parts:  # takes longer than an engine should wait for, at first a second to import
            from nvexplore.notebook import still, still_panel

            png = still.draw(still_panel.Scene(step, states, answers.recorder, told), parts)
    except Exception:
        logger.debug("no text or image beside the widget of %s", view or "the dashboard", exc_info=True)
        return bundle
    if png is None or len(png) > MAX_BYTES:
        return {**data, "text/plain": text}, metadata
    alt = "; ".join([*lines, *words[-1:]] if left_out else lines)
    return {**data, "text/plain": text, "image/png": b64encode(png).decode()}, {**metadata, "image/png": {"alt": alt}}


def _state(feed: Feed, recorder: Recorder, cursor: int) -> State | None:
    if cursor >= 0:
        with contextlib.suppress(ValueError):  # not kept: the page shows the newest too
            return recorder.state_at(cursor)
    feed.fold()
    return None if feed.mirror is None else feed.mirror.state


def summary(state: State, recorder: Recorder) -> list[str]:
    """A few lines about one moment: the step, the queues, the pool, and what the step did."""
    _, cached, used, shared = np.bincount(block_states(state), minlength=4)
    blocks = counted(state.num_blocks, "block")
    lines = [
        f"after step {state.step - 1:,}: {len(state.running):,} running, {len(state.waiting):,} waiting",
        f"{used + shared:,} of {blocks} in use, {shared:,} of them shared; {cached:,} cached",
    ]
    try:
        return [*lines, str(explain_step(recorder.record_of(state.step - 1)))]
    except ValueError:  # its record is not kept
        return lines


def block_states(state: State) -> NDArray[np.uint8]:
    """Of each block: 0 free, 1 cached (nobody holds it, but a prompt can hit it), 2 used, 3 shared."""
    held = np.minimum(np.array(state.ref_count, np.int64), 2)
    is_cached = np.fromiter((hash_ is not None for hash_ in state.hash), bool, state.num_blocks)
    return np.where(held > 0, held + 1, is_cached).astype(np.uint8)


def why_words(answer: dict[str, Any]) -> list[str]:
    """The sentences of the why view's answer, those that tell most first."""
    if "error" in answer:
        return [printable(str(answer["error"]))]
    told = [_sentence(each) for group in ("preempted", "waiting", "running") for each in answer.get(group, [])]
    total = len(answer.get("preempted", [])) + answer.get("num_waiting", 0) + answer.get("num_running", 0)
    shown = told[:MAX_LINES]
    return shown + ([f"and {total - len(shown):,} more"] if total > len(shown) else [])


def _sentence(told: dict[str, Any]) -> str:
    def text(parts: list[Any]) -> str:
        return "".join(part if isinstance(part, str) else printable(part[2]) for part in parts)

    more = f"; {text(told['more'])}" if told["more"] else ""
    return f"{text([told['subject']])} {text(told['what'])}{more}"


def prefix_words(answer: dict[str, Any]) -> list[str]:
    """The longest runs of the prefix view's answer, and how many there are."""
    if "error" in answer:
        return [printable(str(answer["error"]))]
    runs = sorted(answer.get("runs", []), key=lambda run: -run["length"])
    num_runs = len(runs) + answer.get("hidden_runs", 0)
    blocks = counted(answer.get("cached", 0), "block")
    lines = [f"{blocks} in the prefix cache, in {counted(num_runs, 'run')}" + (", the longest:" if runs else "")]
    for run in runs[:MAX_RUNS]:
        text = shortened(printable(" … ".join(run["text"])), MAX_TEXT)
        hits = counted(run["hits"], "hit")
        lines.append(f"  {counted(run['length'], 'block')} ({run['held']:,} held, {hits}): {text}")
    return lines


def slot_words(answer: dict[str, Any]) -> list[str]:
    """How many tokens of how many rows the step wrote, or why that can't be told."""
    if "groups" not in answer:
        return [printable(str(answer[name])) for name in ("error", "missing") if name in answer]
    tokens, rows = counted(answer["num_tokens"], "token"), counted(answer["num_rows"], "row")
    names = [printable(line["name"]) for line in answer["lines"] if line["seq_id"] >= 0]
    more = f" and {answer['num_rows'] - len(names[:8]):,} more" if answer["num_rows"] > 8 else ""
    return [f"its batch wrote {tokens} of {rows} to the pool: {', '.join(names[:8])}{more}"]


def memory_words(answer: dict[str, Any]) -> list[str]:
    """What is in the slots of the blocks that somebody holds."""
    slots = answer.get("slots")
    if slots is None:
        return [printable(str(answer["error"]))] if "error" in answer else []
    kinds = f"{slots['held']:,} hold a token, {slots['due']:,} will next, {slots['unused']:,} are left over"
    return [f"{counted(slots['slots'], 'slot')} in the blocks in use: {kinds}"]


WORDS = {"why_view": why_words, "prefix_view": prefix_words, "slot_view": slot_words, "memory_view": memory_words}
