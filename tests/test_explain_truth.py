"""What is said of waiting requests is what the scheduler knew, and what it does next, whatever the policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from nvexplore.engine.batch import Blocked, ScheduledBatch
from nvexplore.engine.events import StepRecord
from nvexplore.engine.policy import Policy
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.explain import Explanation, explain
from nvexplore.explore.recorder import Recorder
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine
from tests.toy_device import ToyDevice

Order = Callable[[random.Random, list[Sequence]], list[Sequence]]
ORDERS: dict[str, Order | None] = {
    "queue": None,
    "shortest": lambda rng, seqs: sorted(seqs, key=lambda seq: seq.num_tokens),
    "longest": lambda rng, seqs: sorted(seqs, key=lambda seq: -seq.num_tokens),
    "shuffled": lambda rng, seqs: rng.sample(seqs, len(seqs)),
    "head": lambda rng, seqs: seqs[:1],
    "subset": lambda rng, seqs: rng.sample(seqs, rng.randint(0, len(seqs))),
}
NOW = "a step planned now can admit it"


def some_policy(rng: random.Random, order: str) -> Policy:
    policy, choose = Policy(), ORDERS[order]
    policy.decodes_first = rng.random() < 0.5
    policy.lookahead = rng.choice([0, 1, 2, 8])
    policy.max_passed = rng.choice([0, 1, 3, 16])
    if choose is not None:
        policy.admission_order = lambda waiting: choose(rng, list(waiting))  # type: ignore[method-assign]
    return policy


class Look(NamedTuple):
    """One waiting request that the scheduler looked at: what it decided, from what."""

    seq_id: int
    why: Blocked | None
    shared: int
    reserve: int


class Search:
    """What the scheduler did in one step."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.named: list[int] = []
        self.num_passed: dict[int, int] = {}
        self.preempted: set[int] = set()


class Run:
    """A random engine, watched from the inside too. is_old: its records lack what older ones lack."""

    def __init__(self, seed: int, order: str, *, overlap: bool = False, is_old: bool = False) -> None:
        self.rng = rng = random.Random(f"{seed} {order} {overlap}")
        options: dict[str, Any] = {"make_runner": ToyDevice, "overlap": True} if overlap else {}
        self.engine = toy_engine(
            rng.randint(5, 12),
            rng.choice([1, 2, 4]),
            policy=some_policy(rng, order),
            max_num_batched_tokens=rng.choice([3, 6, 10, 64]),
            max_num_seqs=rng.choice([2, 3, 8]),
            enable_prefix_caching=rng.random() < 0.7,
            **options,
        )
        self.overlap, self.is_old = overlap, is_old
        self.recorder, self.searches = Recorder(), dict[int, Search]()
        self._listen()

    def _listen(self) -> None:
        scheduler, policy = self.engine.scheduler, self.engine.scheduler.policy
        schedule, admit, reserve, order = (
            scheduler.schedule, scheduler._admit, scheduler._reserve, policy.admission_order,
        )  # fmt: skip
        search = Search()

        def scheduled(step: int, **how: bool) -> ScheduledBatch:
            nonlocal search
            search = self.searches[step] = Search()
            count = {seq.seq_id: seq.num_preemptions for seq in self.engine.live.values()}
            batch = schedule(step, **how)
            for seq in self.engine.live.values():
                search.num_passed[seq.seq_id] = seq.num_passed
                if seq.num_preemptions > count[seq.seq_id]:
                    search.preempted.add(seq.seq_id)
            return batch

        def admitted(seq: Sequence, *rest: Any) -> Blocked | None:
            hits, ref_count = scheduler.blocks.find_prefix(seq), scheduler.blocks.ref_count
            shared, kept = sum(ref_count[block] > 0 for block in hits), reserve(seq)
            why = admit(seq, *rest)
            search.looks.append(Look(seq.seq_id, why, shared, kept))
            return why

        def named(waiting: SequenceOf[Sequence]) -> list[Sequence]:
            found = list(order(waiting))
            search.named = [seq.seq_id for seq in found]
            return found

        scheduler.schedule, scheduler._admit = scheduled, admitted  # type: ignore[method-assign]
        if "admission_order" in vars(policy):  # else it would no longer be seen to be the queue's own
            policy.admission_order = named  # type: ignore[method-assign]

    def watch(self) -> None:
        self.engine.subscribe(self._push)

    def _push(self, item: Any) -> None:
        if self.is_old and isinstance(item, StepRecord):
            new = {"reserve": [], "num_passed": [], "num_admitted_before": []}
            new |= {"search_end": None, "is_queue_order": None, "decodes_first": None}
            item = replace(item, planned=replace(item.planned, waiting=replace(item.planned.waiting, **new)))
        self.recorder.push(item)

    def add(self, number: int) -> bool:
        tokens = [self.rng.randint(0, 1) for _ in range(self.rng.randint(1, 14))]
        try:
            most = SamplingParams(max_tokens=self.rng.randint(1, 10), ignore_eos=True)
            self.engine.add_request(tokens, most, request_id=str(number), priority=self.rng.choice([0, 0, 1]))
        except ValueError:
            return False  # too long for the pool
        return True

    def step(self) -> None:
        if self.overlap:
            self.engine.advance()
        else:
            self.engine.step()

    def need(self, seq: Sequence) -> int:
        """Free blocks that would let it in, as the scheduler would count now."""
        scheduler = self.engine.scheduler
        return scheduler.blocks.shortage(seq, scheduler.blocks.find_prefix(seq))[0] + scheduler._reserve(seq)


def check_looked_at(run: Run, told: Explanation, search: Search) -> None:
    """The numbers of a request that was looked at are those of the look."""
    (look,) = (look for look in search.looks if look.seq_id == told.subject.id)
    assert look.why is not None and told.kind == look.why.reason
    if told.kind != "free_blocks":
        return
    numbers = told.numbers
    assert (numbers["needed"], numbers["available"]) == (look.why.needed, look.why.available)
    if "reserve" in numbers:
        assert (numbers["own"], numbers["shared"]) == (look.why.needed - look.reserve, look.shared)
        assert numbers["reserve"] == look.reserve
    else:
        assert run.is_old and "with what is kept free for others (it was preempted" in str(told)
    assert ("passed" in numbers) == (not run.is_old)
    if not run.is_old:
        assert numbers["passed"] == search.num_passed[told.subject.id]
    assert ("passed over" in str(told)) == bool(numbers.get("passed"))


def check_not_looked_at(run: Run, told: Explanation, search: Search) -> None:
    seq_id, last = told.subject.id, search.looks[-1] if search.looks else None
    assert seq_id not in [look.seq_id for look in search.looks]
    is_custom = "admission_order" in vars(run.engine.scheduler.policy)
    if told.kind == "unnamed":
        assert is_custom and seq_id not in search.named
        return
    assert told.kind == "behind" and last is not None
    if str(told).endswith("the record does not say why"):
        assert run.is_old
        return
    assert last.why is not None
    assert told.ids("sequence")[1] == last.seq_id
    policy, passed = run.engine.scheduler.policy, [look for look in search.looks[:-1] if look.why is not None]
    is_passable = last.why.reason != "free_blocks"
    if "nobody may be passed over" in str(told):
        assert policy.lookahead == 0 and last.why.reason == "free_blocks"
    elif "all that may be passed over" in str(told):
        assert len(passed) == policy.lookahead == told.numbers["others"]
        is_passable = True
    elif "passed over no more" in str(told) or "may not be passed over" in str(told):
        assert told.numbers["passed"] == search.num_passed[last.seq_id] >= policy.max_passed
    else:
        assert is_passable
    if is_custom or run.is_old:
        assert not told.more and "places_before" not in told.numbers
        return
    assert told.more[1:] == (f" must be admitted{' or passed over' if is_passable else ''} first",)
    queue = [seq.seq_id for seq in run.engine.scheduler.queues.waiting]
    if not run.overlap:
        assert told.numbers["places_before"] == queue.index(seq_id) - queue.index(last.seq_id)


def check_search(record: StepRecord, search: Search) -> None:
    """The order of the search is in the record."""
    waiting, found = record.planned.waiting, [(seq_id, True) for seq_id in record.planned.admitted.seq_id]
    for place, before in enumerate(waiting.num_admitted_before):
        found.insert(before + place, (waiting.seq_id[place], False))
    assert found == [(look.seq_id, look.why is None) for look in search.looks]


def check_now(run: Run, told: Explanation) -> None:
    """What is said of how it is now, of an engine that has nothing in the air."""
    (seq,) = (seq for seq in run.engine.live.values() if seq.seq_id == told.subject.id)
    free = len(run.engine.scheduler.blocks.free)
    assert told.numbers.get("free_now", free) == free or told.kind == "max_num_seqs"
    if "needed_now" in told.numbers:
        assert told.numbers["needed_now"] <= run.need(seq)
    if told.kind == "preempted":
        needed = told.numbers["needed"]
        assert needed <= run.need(seq) if "at least" in str(told) else needed >= run.need(seq)


def promised(told: list[Explanation]) -> tuple[set[int], set[int]]:
    """Who is said to be let in by a step that is planned now, and who is said not to be."""
    can = {each.subject.id for each in told if str(each).endswith(NOW)}
    words = (" come first", "free blocks, and ", "free block, and ")
    cannot = {each.subject.id for each in told if any(word in str(each).partition("; ")[2] for word in words)}
    return can, cannot


def play(run: Run, num_steps: int = 45) -> set[str]:
    """Run it, hold everything that is said against what it does, and return the kinds of all that was."""
    earliest: dict[int, tuple[int, bool]] = {}
    kinds, can, cannot, late = set[str](), set[int](), set[int](), run.rng.choice([0, 0, 0, 12])
    for number in range(num_steps):
        if number == late:
            run.watch()
        if number < num_steps // 2:
            for more in range(run.rng.choice([0, 0, 1, 3])):
                # What came since it was said may come first.
                can = set() if run.add(10 * number + more) else can
        run.step()
        if not run.recorder.records:
            continue
        record = run.recorder.records[-1]
        search, admitted = run.searches[record.step], record.planned.admitted.seq_id
        assert can <= set(admitted) or run.overlap
        assert run.overlap or search.preempted or not cannot & set(admitted)
        for seq_id in admitted:
            first, unless = earliest.pop(seq_id, (0, False))
            assert record.step >= first or (unless and search.preempted)
        if search.preempted:
            earliest = {seq_id: said for seq_id, said in earliest.items() if not said[1]}
        if not run.is_old:
            check_search(record, search)
        told = explain(run.recorder).waiting
        for each in told:
            kinds.add(each.kind)
            if each.kind in ("free_blocks", "max_num_seqs", "token_budget"):
                check_looked_at(run, each, search)
            elif each.kind == "preempted":
                assert each.subject.id in search.preempted
            else:
                check_not_looked_at(run, each, search)
            if not run.overlap:
                check_now(run, each)
            if "earliest" in each.numbers:
                said = each.numbers["earliest"], "unless" in str(each)
                earliest[each.subject.id] = max(said, earliest.get(each.subject.id, said))
        can, cannot = promised(told)
        assert not (can and run.is_old) and not can & cannot
    return kinds


@pytest.mark.parametrize("how", ["single", "overlapped", "old"])
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_said_holds(order: str, how: str) -> None:
    kinds = set[str]()
    for seed in range(8):
        kinds |= play(Run(seed, order, overlap=how == "overlapped", is_old=how == "old"))
    assert kinds >= {"free_blocks", "max_num_seqs", "token_budget", "preempted"}
    assert order != "head" or "unnamed" in kinds
    assert order in ("head", "subset") or "behind" in kinds
