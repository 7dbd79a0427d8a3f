"""Why the prefix cache gave a request no more than it did. Asked only when a record is wanted; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nvexplore.engine.block_manager import BlockManager
from nvexplore.engine.sequence import Sequence


class Miss(NamedTuple):
    """What ended the run of hits.

    cause: "partial"   no whole block was left to hit (the last token must run, so a block that ends there cannot be)
           "disabled"  prefix caching is off
           "bypassed"  the request asks for prompt_logprobs: its prompt is computed whatever the cache holds
           "in_flight" a resident request has the same tokens there, but has not been scheduled that far yet; block_id
                       is None while it has no block for them
           "evicted"   the block was in the cache and was evicted in ``step``, or forgotten after it in a reset; a
                       resident request may hold it all the same
           "orphaned"  ``block_id`` holds the same tokens, but goes on from a block that has left the cache: the same
                       prefix was stored anew since, and nothing goes on from there
           "differs"   ``block_id`` begins alike (it follows the same prefix); the first other token is at ``position``
           "unseen"    nothing in the cache follows this prefix with the same first token
    """

    cause: str
    position: int | None = None
    block_id: int | None = None
    step: int | None = None


def explain_miss(seq: Sequence, hits: list[int], blocks: BlockManager, resident: Iterable[Sequence]) -> Miss:
    """The cause of the first miss of ``seq`` after ``hits``."""
    size = blocks.block_size
    if not blocks.is_caching:
        return Miss("disabled")
    if seq.lacks_prompt_logprobs:
        return Miss("bypassed")
    start = len(hits) * size
    end = start + size
    if end >= seq.num_tokens:
        return Miss("partial")
    wanted, salt = seq.token_ids[start:end], seq.sampling_params.cache_salt
    for other in resident:
        # What has been registered once and is not hit was forgotten: nobody is about to fill it.
        is_due = len(other.chain) <= len(hits) and other.num_tokens >= end
        if is_due and other.sampling_params.cache_salt == salt and other.token_ids[:end] == seq.token_ids[:end]:
            # With one token a block, that of its newest token is allocated only when the request decodes again.
            table = other.block_table
            return Miss("in_flight", block_id=table[len(hits)] if len(table) > len(hits) else None)
    parent = blocks.cache.link(hits[-1]) if hits else blocks.cache.root(salt)
    orphan = blocks.cache.orphan(parent, wanted)
    if orphan is not None:
        return Miss("orphaned", block_id=orphan)
    step = blocks.cache.evicted_at(parent, wanted)
    if step is not None:
        return Miss("evicted", step=step)
    nearest, most = None, 0
    for block in blocks.cache.children(parent):
        theirs = blocks.cache.token_ids[block]
        if theirs[most] != wanted[most]:  # no more alike than the nearest; most are told by this one token
            continue
        # They differ somewhere: a block that holds all of ``wanted`` would have been hit.
        common = next(i for i, token in enumerate(theirs) if wanted[i] != token)
        if common > most:
            nearest, most = block, common
    if nearest is None:
        return Miss("unseen")
    return Miss("differs", position=start + most, block_id=nearest)
