"""What each admitted request took from the prefix cache, and why no more. Reads records only."""

from __future__ import annotations

from collections.abc import Iterable

from nvexplore.explore.contents import UNKNOWN, Contents, Node, contents_of
from nvexplore.explore.explain_evicted import evicted_why, the_block
from nvexplore.explore.explain_moment import Moment
from nvexplore.explore.explain_words import Explanation, Parts, Tokens, block_ref, counted, fill, listed
from nvexplore.explore.state import SequenceState

MOST_ADMITTED = 64


def explain_admissions(moment: Moment, seq_ids: Iterable[int] | None = None) -> list[Explanation]:
    """The admissions of these requests in the step, or the first 64, in their order.

    kind: the cause of the first miss, as ``nvexplore.engine.miss.Miss`` has it, or "salt" where the same tokens are
    cached under another salt; "unknown" where the record does not say.
    """
    admitted = moment.record.planned.admitted
    wanted = set(admitted.seq_id[:MOST_ADMITTED] if seq_ids is None else seq_ids)
    places = [place for place, seq_id in enumerate(admitted.seq_id) if seq_id in wanted]
    contents = contents_of(moment.recorder) if places else Contents()
    return [_admission(moment, contents, place) for place in places]


def _admission(moment: Moment, contents: Contents, place: int) -> Explanation:
    admitted, size = moment.record.planned.admitted, moment.before.block_size
    seq_id, number = admitted.seq_id[place], admitted.number[place]
    # A request that waited has not changed since it came; one that finished in this very step is there before it only.
    seq = moment.before.sequences.get(seq_id) or moment.after.sequences[seq_id]
    hit = hit_blocks(moment, seq_id)
    total, cached = len(seq.token_ids), admitted.num_cached_tokens[place]
    possible = (total - 1) // size
    numbers = {"hit_blocks": len(hit), "possible_blocks": possible, "cached_tokens": cached, "tokens": total}
    back = "came back and " if seq.num_preemptions or seq_id in moment.record.planned.preempted.seq_id else ""
    if hit:
        template = "{back}took {n} ({cached} of its {total} tokens) from the cache{by}"
        by = _filled_by(moment, contents, seq_id, hit, number)
        what = fill(template, back=back, n=counted(len(hit), "block"), cached=cached, total=total, by=by)
    else:
        what = fill("{back}took nothing from the cache", back=back)
    cause = admitted.miss_cause[place] if admitted.miss_cause else "unknown"
    miss = _Miss(moment, contents, place, seq, len(hit))
    more, tokens = miss.words(cause)
    return Explanation(
        kind="salt" if miss.is_salted else cause,
        subject=moment.ref(seq_id),
        what=what,
        more=more,
        numbers=numbers | miss.numbers,
        tokens=tokens,
    )


def hit_blocks(moment: Moment, seq_id: int) -> list[int]:
    """The blocks that a request admitted in this step took from the cache, in logical order."""
    events = moment.record.planned.blocks
    rows = zip(events.kind, events.block_id, events.seq_id, strict=True)
    return [block for kind, block, owner in rows if kind == "hit" and owner == seq_id]


def _filled_by(moment: Moment, contents: Contents, seq_id: int, hit: list[int], number: int) -> Parts:
    owners = [filled.seq_id for block in hit if (filled := contents.content(block, number)) is not None]
    if not owners:
        return ()
    if set(owners) == {seq_id}:
        return (", which it had filled itself",)
    return fill(", filled by {owners}", owners=listed([moment.ref(owner) for owner in dict.fromkeys(owners)]))


class _Miss:
    """The first block that was not hit: number ``index`` of the request's table."""

    def __init__(self, moment: Moment, contents: Contents, place: int, seq: SequenceState, index: int) -> None:
        self.moment, self.contents, self.seq, self.index = moment, contents, seq, index
        admitted, size = moment.record.planned.admitted, moment.before.block_size
        self.number = admitted.number[place]
        self.start, self.end = index * size, (index + 1) * size
        self.here = the_block(index, size)
        self.numbers = {"block": index}
        self.is_salted = False
        self._admitted, self._place = admitted, place

    def words(self, cause: str) -> tuple[Parts, tuple[Tokens, ...]]:
        """The sentence, and the texts it speaks of: of the request first."""
        mine = self._tokens("this request")
        if cause == "partial":
            return self._partial(), ()
        if cause == "disabled":
            return ("prefix caching is off",), ()
        if cause == "bypassed":
            return ("it asks for log probabilities of its prompt, which only computing it yields",), ()
        if cause == "in_flight":
            return self._in_flight(), (mine,)
        if cause == "evicted":
            step = self._admitted.miss_step[self._place]
            return evicted_why(self.moment, self.contents, self.seq, self.index, step, self.numbers), (mine,)
        if cause == "orphaned":
            return self._orphaned(), (mine,)
        if cause == "differs":
            return self._differs()
        if cause == "unseen":
            return self._unseen(), (mine,)
        return ("the record does not say why no more",), ()

    def _tokens(self, label: str, mark: int = -1) -> Tokens:
        return Tokens((label,), self.seq.token_ids[self.start : self.end], self.start, mark)

    def _partial(self) -> Parts:
        left = self.numbers["left"] = len(self.seq.token_ids) - self.start
        if left == self.end - self.start:
            return ("no more is possible: its last block ends with its last token, which must be computed",)
        return fill("no more is possible: the {left} left fill no block", left=counted(left, "token"))

    def _in_flight(self) -> Parts:
        block, after = self._admitted.miss_block_id[self._place], self.moment.after
        wanted = self.seq.token_ids[: self.end]
        others = [self.moment.before.sequences[i] for i in self.moment.before.running]
        others += [after.sequences[i] for i in self._admitted.seq_id[: self._place] if i in after.sequences]
        # Whoever has a block for them has filled it: it was in the cache and is there no more.
        lacking = (other for other in others if len(other.block_table) <= self.index)
        same = (other.seq_id for other in lacking if other.token_ids[: self.end] == wanted)
        owner = next(iter(self.moment.before.owners.get(block, ())), None) if block is not None else None
        owner = owner if owner is not None else next(same, None)
        who: Parts = ("another request",) if owner is None else fill("{who}", who=self.moment.ref(owner))
        if block is not None:
            template = "{here} is the same as {block} of {who}, which is not full yet"
            return fill(template, block=block_ref(block), who=who, here=self.here)
        return fill("{who} has {here} too, but has not stored it yet", who=who, here=self.here)

    def _orphaned(self) -> Parts:
        block = self._admitted.miss_block_id[self._place]
        assert block is not None  # a miss of this cause names it
        template = "{block} holds {here} too, but goes on from a block that left the cache and was stored anew since"
        return fill(template, block=block_ref(block), here=self.here)

    def _differs(self) -> tuple[Parts, tuple[Tokens, ...]]:
        position, block = self._admitted.miss_position[self._place], self._admitted.miss_block_id[self._place]
        assert position is not None and block is not None  # a miss of this cause names both
        mark = self.numbers["position"] = position
        self.numbers["same"] = same = mark - self.start
        template = "{here} begins like {block}, which differs from position {mark} on"
        words = fill(template, here=self.here, block=block_ref(block), mark=mark)
        mine, theirs = self._tokens("this request", same), self.contents.content(block, self.number)
        if theirs is None:
            return words, (mine,)
        label = fill("{block}", block=block_ref(block))
        return words, (mine, Tokens(label, list(theirs.node.token_ids), self.start, same))

    def _unseen(self) -> Parts:
        salt = self._other_salt()
        if salt is not None:
            self.is_salted = True
            other = "without a salt" if salt == (None,) else "under another salt"
            return fill("{here} is cached, but {other}", here=self.here, other=other)
        if self.index:
            template = "nothing in the cache goes on from there with its token at position {start}"
            return fill(template, start=self.start)
        return ("nothing in the cache begins with its first token",)

    def _other_salt(self) -> object:
        """The salt of a cached block that holds the same prefix; None if there is none."""
        wanted, own = tuple(self.seq.token_ids[self.start : self.end]), self.moment.params.get(self.seq.seq_id)
        if own is None:
            return None

        def is_same(node: Node) -> bool:
            return node.depth == self.index and node.token_ids == wanted and node.is_prefix_of(self.seq.token_ids)

        for filled in self.contents.cached(self.moment.before).values():
            node = filled.node
            if node.salt not in (UNKNOWN, (own.get("cache_salt"),)) and is_same(node):
                return node.salt
        return None
