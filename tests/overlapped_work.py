"""A workload whose steps overlap: most calls leave one in the air, and a fault may leave it there too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nvexplore.engine.scheduler import NEEDS_HOST, NO_BLOCKS_AHEAD
from tests.drive import Workload
from tests.toy_device import ToyDevice

T = TypeVar("T")
REFUSALS = {NO_BLOCKS_AHEAD: "refused_for_blocks", NEEDS_HOST: "refused_for_the_host"}


class OverlappedWorkload(Workload):
    """Nine of ten steps are ``advance``; after one of six what is in the air lands, and the engine is looked at."""

    def attempt(self, do: Callable[[], T]) -> T | None:
        number = self.engine.next_step
        result = super().attempt(do)
        self.counts["given_up"] += self.engine.next_step < number
        return result

    def step(self) -> bool:
        """Whether a step ran to its end. Tokens that anybody has seen stay, whatever happens."""
        rng, engine, number = self.rng, self.engine, self.engine.next_step
        lengths = [seq.num_tokens for _, seq in self.started]
        if rng.random() < 0.1:
            is_done = self._single_step()
        elif rng.random() < 0.5:
            is_done = self.attempt(engine.advance) is not None
        else:  # what a fault leaves in the air, or half undone, the next call has to deal with
            is_done = self.faults.call(engine.advance) is not None
            self.counts["given_up"] += engine.next_step < number
        self.counts["steps"] += 1
        self.counts["failed_steps"] += not is_done
        if not engine._undo:
            now = [seq.num_tokens for _, seq in self.started]
            assert all(a <= b for a, b in zip(lengths, now, strict=True)), "tokens that were taken back"
        self._count(is_done)
        return is_done

    def _single_step(self) -> bool:
        """What is in the air lands in it; its output tells only of its own tokens."""
        output = self.attempt(self.engine.step)
        if output is None:
            return False
        newest = {seq.seq_id: seq.token_ids[-1] for _, seq in self.started}
        assert output.token_ids == [newest[seq_id] for seq_id in output.seq_ids], "the output of a single step"
        return True

    def _count(self, is_done: bool) -> None:
        engine, device = self.engine, self.engine.runner
        assert isinstance(device, ToyDevice)
        steps = engine._steps
        self.counts["planned_ahead"], self.counts["fed_rows"] = device.num_ahead, device.num_fed
        if is_done:
            self.counts["late_rows"] += sum(
                seq.num_computed_tokens > seq.ends_at for seq in engine.scheduler.queues.running
            )
            if steps._sync_reason is not None:
                self.counts[REFUSALS[steps._sync_reason]] += 1

    def settles(self) -> bool:
        if self.engine.live and self.rng.random() < 5 / 6:
            return False
        self.engine.settle()
        self.told = {seq.seq_id: seq.completion_token_ids for _, seq in self.started}
        return True
