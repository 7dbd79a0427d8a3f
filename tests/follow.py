"""A watcher that folds what it is told, and looks that nothing is missing in it and nothing told twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.frames._ledger import BlockLedger
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, free_run, toy_engine
from tests.faults import Injected
from tests.toy_device import ToyDevice


def numbers_of(record: StepRecord) -> list[int]:
    """The numbers of all events of a record, in order."""
    before, planned, committed = record.before, record.planned, record.committed
    columns = [
        *(before.added.number, before.aborted_number, before.cache_reset_number),
        *(before.blocks.number, before.preempted.number),
        *(planned.blocks.number, planned.admitted.number, planned.preempted.number),
        *(committed.blocks.number, committed.finished_number),
    ]
    marks = [number for number in (planned.number, committed.number) if number is not None]
    return sorted([number for column in columns for number in column] + marks)


class Follower:
    """items: all that was told. told: by seq_id the completion tokens that it told of."""

    def __init__(self) -> None:
        self.items: list[Snapshot | StepRecord] = []
        self.told: dict[int, list[int]] = {}
        self._state: State | None = None
        self._ledger: BlockLedger | None = None

    def __call__(self, item: Snapshot | StepRecord) -> None:
        if isinstance(item, Snapshot):
            self._begin(item)
        else:
            self._go_on(item)
        self.items.append(item)

    def _begin(self, item: Snapshot) -> None:
        seqs = item.sequences
        columns = zip(seqs.seq_id, seqs.num_prompt_tokens, seqs.token_ids, strict=True)
        self.told |= {seq_id: token_ids[num_prompt:] for seq_id, num_prompt, token_ids in columns}
        self._state, self._ledger = State(item), BlockLedger(item)

    def _go_on(self, record: StepRecord) -> None:
        state, ledger, planned = self._state, self._ledger, record.planned
        assert state is not None and ledger is not None, "a record before the snapshot"
        if record.step < state.step:  # a snapshot that was asked for meanwhile has it
            return
        # What a failed landing gave up is in the snapshot that followed, and in the next record too.
        new = [number for number in numbers_of(record) if number >= state.event]
        assert new == list(range(state.event, record.event)), "numbers of events"
        ledger.plan(record, state.event)
        assert planned.num_free_blocks == state.num_blocks - ledger.num_used, "free blocks while it ran"
        ledger.commit(record)
        state.apply(record)
        assert planned.num_running == len(state.running) + len(record.committed.finished_seq_id)
        assert planned.num_waiting == len(state.waiting)
        for seq_id, token_id in zip(record.committed.seq_id, record.committed.token_id, strict=True):
            self.told.setdefault(seq_id, []).append(token_id)

    @property
    def records(self) -> list[StepRecord]:
        return [item for item in self.items if isinstance(item, StepRecord)]

    def compare(self, engine: Engine) -> None:
        """Against the engine's own snapshot, for which what is in the air lands."""
        theirs = engine.snapshot()
        assert self._state is not None
        ours = self._state.snapshot()
        assert ours.same_state(theirs), f"step {theirs.step}: folded {ours}, engine {theirs}"


def overlapped(num_blocks: int = 32, block_size: int = 4, **options: Any) -> tuple[Engine, Follower]:
    """An engine whose steps overlap, and who follows it."""
    engine, follower = toy_engine(num_blocks, block_size, make_runner=ToyDevice, overlap=True, **options), Follower()
    engine.subscribe(follower)
    return engine, follower


def add(engine: Engine, prompt: Iterable[int], max_tokens: int, **params: Any) -> Sequence:
    return engine.add_request(prompt, SamplingParams(max_tokens=max_tokens, **params))


def in_the_air(engine: Engine) -> list[int]:
    """The numbers of the steps that have not landed."""
    return [flight.step for flight in engine._steps.flights]


def advance_to_end(engine: Engine) -> None:
    while engine.has_unfinished:
        assert engine.advance()


def finish(engine: Engine, follower: Follower, *seqs: Sequence, eos: frozenset[int] = frozenset()) -> None:
    """Run to the end and compare everything."""
    advance_to_end(engine)
    follower.compare(engine)
    check_invariants(engine)
    for seq in seqs:
        expected = free_run(seq.prompt_token_ids, seq.sampling_params, eos, sample_index=seq.sample_index)
        assert (seq.completion_token_ids, seq.finish_reason) == expected
        assert follower.told[seq.seq_id] == seq.completion_token_ids


class Cut:
    """Raises once where it is told to: at a stage of the device's launch or wait."""

    device: ToyDevice

    def __init__(self) -> None:
        self.at: tuple[str, str] | None = None
        self.error: type[BaseException] = Injected
        self.num_left = 0

    def __call__(self, stage: str) -> None:
        if self.at == (self.device.doing, stage):
            self.num_left -= 1
            if not self.num_left:
                self.at = None
                raise self.error(stage)

    def during(
        self, call: Callable[[], object], what: str, stage: str, error: type[BaseException], nth: int = 1
    ) -> None:
        """``call``, which must end with ``error`` when it comes to this stage for the ``nth`` time."""
        self.at, self.error, self.num_left = (what, stage), error, nth
        with pytest.raises(error):
            call()
        assert self.at is None


def fallible(num_blocks: int = 32, block_size: int = 4, **options: Any) -> tuple[Engine, Follower, Cut]:
    cut = Cut()
    engine, follower = overlapped(num_blocks, block_size, interrupt=cut, **options)
    assert isinstance(engine.runner, ToyDevice)
    cut.device = engine.runner
    return engine, follower, cut
