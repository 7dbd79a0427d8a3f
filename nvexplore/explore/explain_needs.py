"""How many free blocks a waiting request needs as things stand after a step. Reads its state only."""

from __future__ import annotations

from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.state import SequenceState


def num_blocks(moment: Moment, num_tokens: int) -> int:
    return -(-num_tokens // moment.after.block_size)


def num_common(seq: SequenceState, other: SequenceState, size: int) -> int:
    """Whole blocks in which both begin alike."""
    most = (len(seq.token_ids) - 1) // size * size
    starts = range(0, most, size)
    other_than = (at for at in starts if seq.token_ids[at : at + size] != other.token_ids[at : at + size])
    return next(other_than, most) // size


def kept_free(moment: Moment, seq: SequenceState) -> int | None:
    """Blocks that must stay free beside those of ``seq``, as in ``Scheduler``: the more, the oftener it was preempted.

    None if it can't be known: requests that came before it was recorded have parameters that nobody told.
    """
    after, size = moment.after, moment.after.block_size
    if seq.num_preemptions < 2:
        return len(after.running) * seq.num_preemptions
    held = [(other, len(after.sequences[other].block_table)) for other in after.running]
    total = 0
    for seq_id, num_held in [*held, (seq.seq_id, num_blocks(moment, len(seq.token_ids)))]:
        most = moment.params.get(seq_id, {}).get("max_tokens")
        if not isinstance(most, int):
            return None
        total += max(0, -(-(after.sequences[seq_id].num_prompt_tokens + most - 1) // size) - num_held)
    return total


def needed_now(moment: Moment, seq: SequenceState) -> tuple[int, int | None]:
    """Free blocks that would let ``seq`` in: at least, and at most; None: not known.

    Between the two lies what it may share: whether the blocks of those that begin like it can be hit is not told.
    """
    after, total, kept = moment.after, num_blocks(moment, len(seq.token_ids)), kept_free(moment, seq)
    running = (after.sequences[seq_id] for seq_id in after.running)
    shared = max((num_common(seq, other, after.block_size) for other in running), default=0)
    return total - shared + (kept or 0), None if kept is None else total + kept
