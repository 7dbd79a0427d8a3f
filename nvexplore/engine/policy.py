"""Who runs first, who is admitted next, who gives way. A policy only chooses; the scheduler does what it says.

Write one of your own by subclassing ``Policy`` and overriding what should differ, then ``LLM(policy=MyPolicy())``::

    class ShortestFirst(Policy):
        name = "shortest_first"

        def admission_order(self, waiting):
            return sorted(waiting, key=lambda seq: seq.num_tokens)

Outputs never depend on the policy, only when each request gets its tokens. A policy must not change what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from nvexplore.checks import check_int
from nvexplore.engine.sequence import Sequence

MOST_PASSED = 2**31 - 1
"""More requests than can wait: what a policy says that passes over any number of them."""


class Policy:
    """``prefill_first``, nano-vLLM's: while prompt tokens can run they do; only a step without prefill decodes.

    name:          what records and messages call it.
    decodes_first: False: a step is either prefill or decode. True: every running sequence decodes in every step, and
                   prompts get what is left of the token budget.
    lookahead:     how many waiting requests that lack blocks may be passed over in one step for smaller ones behind.
    max_passed:    after being passed over this often, a request is passed over no more: those behind wait for it.
    Both are integers from 0 to MOST_PASSED.
    """

    name = "prefill_first"
    decodes_first = False
    lookahead = 8
    max_passed = 16

    def admission_order(self, waiting: SequenceOf[Sequence]) -> Iterable[Sequence]:
        """The waiting requests in the order in which they are tried; the default is the queue's own.

        The queue stands in order of priority (lower first), then arrival; preempted requests come before new ones.
        It can be looked at, walked and sliced, not changed. Walk it lazily where a few are enough: it may be long.
        """
        return waiting

    def victim(self, candidates: SequenceOf[Sequence], needing: Sequence) -> Sequence:
        """Which resident sequence gives up its blocks, since ``needing`` (one of them) needs one and none is free.

        candidates: in order of admission, without those that this step has scheduled already. The default: of those
        with the worst priority the one admitted last, which has lost the least.
        """
        victim = candidates[-1]
        for seq in reversed(candidates):
            if seq.priority > victim.priority:
                victim = seq
        return victim


class Mixed(Policy):
    """Decode tokens first, the rest of the budget to prefill chunks: running requests never wait for new prompts."""

    name = "mixed"
    decodes_first = True


POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Policy, Mixed)}


def make_policy(policy: str | Policy) -> Policy:
    """A policy by name, or one of the caller's own; ValueError or TypeError names what there is, or what is wrong."""
    if isinstance(policy, Policy):
        check_counts(policy)
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"policy={policy!r}: must be a name or a Policy object, not {type(policy).__name__}")
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r}: must be one of {', '.join(map(repr, POLICIES))}, or a Policy object")
    return POLICIES[policy]()


def check_counts(policy: Policy) -> tuple[int, int]:
    """``lookahead`` and ``max_passed`` as they are now; TypeError or ValueError names the policy and what is wrong."""
    lookahead, max_passed = policy.lookahead, policy.max_passed
    if type(lookahead) is type(max_passed) is int and 0 <= lookahead <= MOST_PASSED and 0 <= max_passed <= MOST_PASSED:
        return lookahead, max_passed
    name = f"policy {policy.name!r}"
    return (
        check_int(f"{name}: lookahead", lookahead, minimum=0, maximum=MOST_PASSED),
        check_int(f"{name}: max_passed", max_passed, minimum=0, maximum=MOST_PASSED),
    )
